//! The engine that could not be started: it refuses everything, so that its arm ends at once.

use std::time::Duration;

use coldproof_checkpoint::TensorRef;
use coldproof_contract::evidence::{Fact, LaunchFact, NodeFact};
use coldproof_contract::words::{Address, ByteRange, Rank, TransactionId};

use crate::engine::{
    Capabilities, Engine, EngineError, GenerateRequest, Output, Probe, Reply, WakeTag,
};

/// No engine.
#[derive(Clone, Copy, Debug)]
pub struct Absent;

fn absent<T>() -> Reply<T> {
    Err(EngineError::Refused { text: "the engine was not started".to_owned() })
}

impl Engine for Absent {
    fn capabilities(&mut self) -> Reply<Capabilities> {
        absent()
    }

    /// Setting the deadline succeeds, so that the step reports why there is no engine.
    fn set_deadline(&mut self, _deadline: Duration) -> Reply<()> {
        Ok(())
    }

    fn load(&mut self, _tensors: &[TensorRef]) -> Reply<()> {
        absent()
    }

    fn capture(&mut self) -> Reply<()> {
        absent()
    }

    fn generate(&mut self, _request: &GenerateRequest) -> Reply<Output> {
        absent()
    }

    fn generate_batch(&mut self, _requests: &[GenerateRequest]) -> Reply<Vec<Output>> {
        absent()
    }

    fn pause(&mut self) -> Reply<()> {
        absent()
    }

    fn sleep(&mut self, _level: u8) -> Reply<()> {
        absent()
    }

    fn wake(&mut self, _tag: WakeTag) -> Reply<()> {
        absent()
    }

    fn begin(&mut self, _required: &[String]) -> Reply<TransactionId> {
        absent()
    }

    fn apply(&mut self, _bucket: &[TensorRef]) -> Reply<()> {
        absent()
    }

    fn finish(&mut self) -> Reply<()> {
        absent()
    }

    fn commit(&mut self) -> Reply<()> {
        absent()
    }

    fn abort(&mut self) -> Reply<()> {
        absent()
    }

    fn invalidate(&mut self) -> Reply<()> {
        absent()
    }

    fn resume(&mut self) -> Reply<()> {
        absent()
    }

    fn claims(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        absent()
    }

    fn drain_claims(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        Ok(Vec::new())
    }

    fn shutdown(&mut self) {}
}

impl Probe for Absent {
    fn allocator_log(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        Ok(Vec::new())
    }

    fn graph_nodes(&mut self) -> Reply<Vec<(Rank, NodeFact)>> {
        absent()
    }

    fn launches(&mut self) -> Reply<Vec<(Rank, LaunchFact)>> {
        Ok(Vec::new())
    }

    fn read(&mut self, _rank: Rank, _range: ByteRange) -> Reply<Vec<u8>> {
        absent()
    }

    fn write(&mut self, _rank: Rank, _address: Address, _bytes: &[u8]) -> Reply<()> {
        absent()
    }

    fn pressure(&mut self) -> Reply<()> {
        absent()
    }

    fn release_pressure(&mut self) -> Reply<()> {
        absent()
    }
}
