//! Whether a step of a transaction would be refused, asked before any replica takes it.

use coldproof_checkpoint::TensorRef;
use coldproof_contract::transaction::State;

use super::core::Core;
use super::{EngineError, Promise};

impl Core {
    /// Whether [`Core::apply`] would write these tensors.
    pub(super) fn check_apply(&mut self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        let _ = self.writable("apply")?;
        self.admit_bucket(tensors)
    }

    /// Whether [`Core::begin`] would open an update.
    pub(super) fn check_begin(&mut self, promise: &Promise) -> Result<(), EngineError> {
        self.check_loaded()?;
        self.check_open(promise)
    }

    /// Whether [`Core::commit`] would publish.
    pub(super) fn check_commit(&self) -> Result<(), EngineError> {
        let id = self.open_id("commit")?;
        let mut machine = self.machine;
        machine.commit(id)?;
        Ok(())
    }

    /// Gives an open transaction up, whatever became of it; whether one was open, or had failed.
    pub(super) fn give_up(&mut self) -> bool {
        match self.machine.state() {
            // Of an engine that is refused an abort nothing more can be asked.
            State::Open { .. } => self.abort().is_ok(),
            State::Failed { .. } => true,
            State::Idle | State::Vacant => false,
        }
    }
}
