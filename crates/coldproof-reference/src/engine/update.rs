//! Loads and updates: one transaction each.

use std::collections::BTreeSet;
use std::sync::Arc;

use coldproof_checkpoint::TensorRef;
use coldproof_contract::evidence::{Fact, ReceiptFact};
use coldproof_contract::transaction::{MachineError, Phase, Scope, State};
use coldproof_contract::words::{Generation, TransactionId};

use super::core::Core;
use super::{EngineError, Format, Promise};
use crate::faults;
use crate::loader::Load;
use crate::ranks::{Failure, Worker};

/// Names that a message lists before it only counts.
const LISTED: usize = 5;

impl From<MachineError> for EngineError {
    fn from(error: MachineError) -> Self {
        Self::refused(error.to_string())
    }
}

impl Core {
    /// Empties every cache after a load, for this generation.
    pub(crate) fn empty(&mut self, generation: Generation) -> Result<(), EngineError> {
        self.blocks.forget();
        self.encoder.forget();
        self.forget_host_tier()?;
        self.acknowledge(generation)
    }

    /// Opens an update that keeps its promise, or is refused.
    pub(crate) fn begin(&mut self, promise: &Promise) -> Result<TransactionId, EngineError> {
        self.check_loaded()?;
        self.open(promise)
    }

    /// Whether there is anything that could be updated.
    pub(super) fn check_loaded(&self) -> Result<(), EngineError> {
        if self.machine.generation() > Generation(0) {
            return Ok(());
        }
        Err(EngineError::refused("nothing is loaded that could be updated; call `load`"))
    }

    /// Whether a load or an update that promises this would be opened.
    pub(super) fn check_open(&mut self, promise: &Promise) -> Result<(), EngineError> {
        if self.machine.generation() > Generation(0) && !self.paused {
            return Err(EngineError::refused("the engine is serving; call `pause` before a load"));
        }
        if promise.format == Format::Kernel {
            self.check_kernel_format()?;
        }
        let kept = promise.clone();
        self.each(move |worker| worker.admit_promise(&kept))?;
        let mut machine = self.machine;
        Ok(machine.begin(machine.next_id(), scope(promise))?)
    }

    /// Opens a load or an update.
    pub(super) fn open(&mut self, promise: &Promise) -> Result<TransactionId, EngineError> {
        self.check_open(promise)?;
        let reload = self.machine.generation() > Generation(0);
        let id = self.machine.next_id();
        self.machine.begin(id, scope(promise))?;
        self.promise = promise.clone();
        let partial = scope(promise) == Scope::Partial;
        self.tiers.iter_mut().for_each(|tiers| tiers.identity.begin(partial));
        let generation = Generation(self.machine.generation().0 + 1);
        let format = promise.format;
        self.each(move |worker| worker.begin(Load::new(id, generation, reload), format))?;
        Ok(id)
    }

    /// Writes a bucket of tensors. A tensor that is refused fails the transaction, for good once
    /// anything was written.
    pub(crate) fn apply(&mut self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        let id = self.writable("apply")?;
        if tensors.is_empty() {
            return Ok(());
        }
        let written = self.apply_to(id, tensors);
        written.map_err(|error| self.fail(id, error))
    }

    fn apply_to(&mut self, id: TransactionId, tensors: &[TensorRef]) -> Result<(), EngineError> {
        self.check_promise(tensors)?;
        let (bucket, format) = (tensors.to_vec(), self.promise.format);
        self.each(move |worker| match format {
            Format::Checkpoint => worker.admit(&bucket),
            Format::Kernel => worker.admit_kernel(&bucket),
        })?;
        self.machine.apply(id)?;
        for tensor in tensors {
            let bytes = tensor.read().map_err(|error| EngineError::refused(error.to_string()))?;
            self.tiers.iter_mut().for_each(|tiers| tiers.identity.saw(&tensor.name, &bytes));
            let (name, bytes) = (tensor.name.clone(), Arc::new(bytes));
            self.each(move |worker| match format {
                Format::Checkpoint => worker.apply(&name, &bytes),
                Format::Kernel => worker.apply_kernel(&name, &bytes),
            })?;
        }
        Ok(())
    }

    pub(super) fn check_promise(&self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        if self.promise.delivered.is_empty() {
            return Ok(());
        }
        let promised = &self.promise.delivered;
        let stray = tensors.iter().find(|tensor| !promised.contains(&tensor.name));
        stray.map_or(Ok(()), |tensor| {
            let name = &tensor.name;
            Err(EngineError::refused(format!(
                "`{name}` was not promised when the transaction began; promise it or leave it out"
            )))
        })
    }

    /// Post-load of every layer, once everything arrived.
    pub(crate) fn finish(&mut self) -> Result<(), EngineError> {
        let id = self.writable("finish")?;
        let finished = self.finish_open(id);
        finished.map_err(|error| self.fail(id, error))
    }

    fn finish_open(&mut self, id: TransactionId) -> Result<(), EngineError> {
        let promise = std::mem::take(&mut self.promise);
        let format = promise.format;
        self.each(move |worker| {
            worker.check_complete(&promise)?;
            faults::forget_preserved(worker, &promise.preserved)
        })?;
        self.machine.finalize(id)?;
        match format {
            Format::Checkpoint => self.each(Worker::post_load)?,
            Format::Kernel => self.each(faults::pack_again)?,
        };
        Ok(self.machine.verify(id)?)
    }

    /// Makes what was finished the generation that is served.
    pub(crate) fn commit(&mut self) -> Result<Generation, EngineError> {
        let id = self.open_id("commit")?;
        let generation = self.machine.commit(id)?;
        self.tiers.iter_mut().for_each(|tiers| tiers.identity.commit());
        self.each(|worker| worker.close(true))?;
        if generation > Generation(1) {
            self.graphs.update(&self.faults);
        }
        Ok(generation)
    }

    /// Gives the open transaction up.
    pub(crate) fn abort(&mut self) -> Result<(), EngineError> {
        let id = self.open_id("abort")?;
        self.machine.abort(id)?;
        self.promise = Promise::default();
        self.each(|worker| worker.close(false))?;
        Ok(())
    }

    /// The open transaction, if it still takes writes. A late call changes nothing.
    pub(super) fn writable(&self, event: &'static str) -> Result<TransactionId, EngineError> {
        match self.machine.state() {
            State::Open { id, phase: phase @ (Phase::Finalizing | Phase::Verifying), .. } => {
                Err(MachineError::Order { event, id, phase }.into())
            }
            _ => self.open_id(event),
        }
    }

    pub(super) fn open_id(&self, event: &str) -> Result<TransactionId, EngineError> {
        match self.machine.state() {
            State::Open { id, .. } => Ok(id),
            State::Idle | State::Vacant => Err(EngineError::refused(format!(
                "{event} without a transaction; call `begin` first"
            ))),
            State::Failed { id } => Err(MachineError::Failed { failed: id }.into()),
        }
    }

    /// The transaction is given up because of `error`, which is what the caller hears.
    fn fail(&mut self, id: TransactionId, error: EngineError) -> EngineError {
        // The machine refuses only an abort of what is not open; then there is nothing to do.
        let _ = self.machine.abort(id);
        self.promise = Promise::default();
        if !self.is_ended() {
            let _ = self.each(|worker| worker.close(false));
        }
        error
    }
}

/// What no checkpoint and no slot of an update in kernel format holds is kept.
fn scope(promise: &Promise) -> Scope {
    let whole = promise.preserved.is_empty() && promise.format == Format::Checkpoint;
    if whole { Scope::Full } else { Scope::Partial }
}

impl Worker {
    fn begin(&mut self, load: Load, format: Format) -> Result<(), Failure> {
        self.load = Some(load);
        match format {
            Format::Checkpoint => self.expect_post_load(),
            Format::Kernel => Ok(()),
        }
    }

    /// Whether a bucket may be written: every name, type, shape and length fits, and nothing comes
    /// twice.
    pub(super) fn admit(&mut self, tensors: &[TensorRef]) -> Result<(), Failure> {
        let mut names = BTreeSet::new();
        let mut parts = BTreeSet::new();
        for tensor in tensors {
            self.catalogue.admit(tensor)?;
            let name = tensor.name.as_str();
            let filled = self.catalogue.source(name).map(|source| source.parts.clone());
            let filled = filled.unwrap_or_default();
            let before = self.load()?.filled_by(&filled).map(str::to_owned);
            let within = filled.iter().any(|part| !parts.insert(*part));
            if !names.insert(name) || within || self.load()?.received(name) {
                return Err(twice(name, name));
            }
            if let Some(before) = before {
                return Err(twice(name, &before));
            }
        }
        Ok(())
    }

    /// Whether everything that the model needs, and everything that was promised, arrived.
    fn check_complete(&mut self, promise: &Promise) -> Result<(), Failure> {
        let load = self.load()?;
        let preserved = self.catalogue.parts_of(&promise.preserved);
        let missing = match promise.format {
            Format::Checkpoint => load.missing(self.catalogue.parts(), &preserved),
            Format::Kernel => Vec::new(),
        };
        if !missing.is_empty() {
            let listed = missing.iter().take(LISTED).map(|name| format!("`{name}`"));
            let listed = listed.collect::<Vec<_>>().join(", ");
            let rest = missing.len().saturating_sub(LISTED);
            let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            return Err(Failure::Refused(format!(
                "{} sources are missing: {listed}{more}; load all of them again",
                missing.len()
            )));
        }
        let absent = promise.delivered.iter().find(|name| !load.received(name));
        absent.map_or(Ok(()), |name| {
            Err(Failure::Refused(format!("`{name}` was promised and did not arrive; load again")))
        })
    }

    /// Ends the load and gives this rank's receipt of it.
    fn close(&mut self, committed: bool) -> Result<(), Failure> {
        let Some(load) = self.load.take() else { return Ok(()) };
        if committed {
            self.claim("generation", &load.generation.0.to_string());
        }
        let generation = Generation(load.generation.0 - u64::from(!committed));
        self.claims.push(Fact::Receipt(ReceiptFact {
            transaction: load.transaction,
            generation,
            applications: load.applications,
            buffered: load.buffered(),
            unrouted: load.unrouted,
            committed,
        }));
        Ok(())
    }
}

pub(super) fn twice(name: &str, before: &str) -> Failure {
    Failure::Refused(if name == before {
        format!("`{name}` comes twice in this transaction; send each source once")
    } else {
        format!("`{name}` fills what `{before}` filled already; send one spelling of each source")
    })
}
