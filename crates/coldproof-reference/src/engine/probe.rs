//! What is observed of an engine, past all that it says of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use coldproof_contract::evidence::Fact;
use coldproof_contract::words::{Address, Rank};

use super::EngineError;
use super::core::Core;
use crate::arena::Pattern;

/// Ends every wait of an engine from another thread.
#[derive(Clone, Debug)]
pub struct Canceller(pub(super) Arc<AtomicBool>);

impl Canceller {
    /// Ends every wait; the call that waited fails, and the engine ends.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Core {
    pub(super) fn allocator_log(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        if self.is_ended() {
            return Ok(std::mem::take(&mut self.remains.log));
        }
        self.facts(|worker| worker.device.drain_log())
    }

    pub(super) fn graph_nodes(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        if self.is_ended() {
            return Ok(self.remains.nodes.clone());
        }
        self.facts(|worker| worker.census().into_iter().map(Fact::Node).collect())
    }

    pub(super) fn launches(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        if self.is_ended() {
            return Ok(std::mem::take(&mut self.remains.launches));
        }
        let (host, first) = (self.host.drain().into_iter(), Rank::first_of(self.replica));
        let mut facts: Vec<_> = host.map(|fact| (first, Fact::Launch(fact))).collect();
        facts.extend(self.facts(|worker| {
            worker.device.drain_launches().into_iter().map(Fact::Launch).collect()
        })?);
        Ok(facts)
    }

    pub(super) fn read(
        &mut self,
        rank: Rank,
        address: Address,
        bytes: u64,
    ) -> Result<Vec<u8>, EngineError> {
        self.one(rank, move |worker| Ok(worker.device.read(address, bytes)?.to_vec()))
    }

    pub(super) fn write(
        &mut self,
        rank: Rank,
        address: Address,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let bytes = bytes.to_vec();
        self.one(rank, move |worker| Ok(worker.device.write(address, &bytes)?))
    }

    pub(super) fn pressure(&mut self) -> Result<u64, EngineError> {
        Ok(self.each(|worker| Ok(worker.device.pressure()?))?.into_iter().sum())
    }

    pub(super) fn release_pressure(&mut self) -> Result<(), EngineError> {
        self.each(|worker| Ok(worker.device.release_pressure()?))?;
        Ok(())
    }

    pub(super) fn poison_free(&mut self) -> Result<(), EngineError> {
        let pattern = Pattern::Garbage(self.config.seed);
        self.each(move |worker| Ok(worker.device.poison_free(pattern)?))?;
        Ok(())
    }

    pub(super) fn replay(&mut self, graph: &str) -> Result<(), EngineError> {
        let graph = graph.to_owned();
        self.each(move |worker| worker.replay_as_is(&graph))?;
        Ok(())
    }
}
