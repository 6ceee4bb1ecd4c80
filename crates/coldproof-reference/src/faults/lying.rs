//! A lying engine: all that it says of itself is what a fault-free engine under the same commands
//! says. Memory, allocator, graphs, launches and outputs are the faulty engine's own.

use coldproof_contract::evidence::Fact;
use coldproof_contract::words::Rank;

use crate::engine::{Core, EngineConfig, EngineError, Replicas};

/// The fault-free engine behind a lie.
#[derive(Debug)]
pub(crate) struct Liar {
    truthful: Replicas,
}

impl Liar {
    /// Starts it beside the faulty engine, with the same seed and the same addresses.
    pub(crate) fn start(config: &EngineConfig) -> Result<Self, EngineError> {
        Ok(Self { truthful: Replicas::start(&config.fault_free())? })
    }

    /// Gives it the command that the faulty engine gets. Whether it succeeds is nobody's concern.
    pub(crate) fn follow<T>(
        &mut self,
        command: impl FnOnce(&mut Replicas) -> Result<T, EngineError>,
    ) {
        let _ = command(&mut self.truthful);
    }

    /// What it says instead of the faulty engine.
    pub(crate) fn claims(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        self.truthful.facts(Core::claims)
    }

    /// What it says instead of the faulty engine.
    pub(crate) fn drain_claims(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        self.truthful.facts(Core::drain_claims)
    }
}
