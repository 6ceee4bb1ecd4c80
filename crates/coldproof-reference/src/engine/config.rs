//! What an engine is started with.

use std::time::Duration;

use camino::Utf8PathBuf;
use coldproof_checkpoint::arch::ModelConfig;
use coldproof_contract::words::{Dtype, Topology, TopologyError};

use super::EngineError;
use crate::faults::FaultSwitch;
use crate::models::Dims;

/// The most ranks of an engine, of all replicas together: each is a thread.
pub const RANKS_MAX: u32 = 64;
/// Degrees of tensor parallelism that the engine knows.
const DEGREES: [u32; 5] = [1, 2, 3, 4, 8];

/// The tiers below the paged blocks of the KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvTiers {
    /// Bytes of host memory that each rank may fill.
    pub host_bytes: u64,
    /// A folder that outlives the engine, for a file of each block and rank; none: no such tier.
    pub folder: Option<Utf8PathBuf>,
}

/// What an engine is started with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The model.
    pub model: ModelConfig,
    /// Ranks.
    pub topology: Topology,
    /// First device address; every rank has the same.
    pub arena_base: u64,
    /// Seed of the garbage in fresh memory.
    pub seed: u64,
    /// Whether blocks are placed from the other end, for another layout of the same allocations.
    pub reversed_allocation: bool,
    /// Faults and twins that are switched on.
    pub faults: Vec<FaultSwitch>,
    /// Whether everything that the engine says of itself is what a fault-free one would say.
    pub lying: bool,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// Blocks of the KV cache.
    pub kv_blocks: u32,
    /// Where blocks go that the KV cache lets go of; none: nowhere.
    pub kv_tiers: Option<KvTiers>,
    /// How long the ranks may take for one thing that a call asks of them: one forward, one
    /// tensor, one post-load.
    pub deadline: Duration,
}

impl EngineConfig {
    /// One rank, no fault, 64 blocks of 16 tokens, a deadline of one minute.
    #[must_use]
    pub fn new(model: ModelConfig) -> Self {
        Self {
            model,
            topology: Topology::SINGLE,
            arena_base: 0x7000_0000_0000,
            seed: 0,
            reversed_allocation: false,
            faults: Vec::new(),
            lying: false,
            block_size: 16,
            kv_blocks: 64,
            kv_tiers: None,
            deadline: Duration::from_secs(60),
        }
    }

    /// The same engine without faults: what a lying one says of itself. Its files are its own, so
    /// that it gives the other nothing.
    pub(crate) fn fault_free(&self) -> Self {
        let mut own = Self { faults: Vec::new(), lying: false, ..self.clone() };
        if let Some(KvTiers { folder: Some(folder), .. }) = &mut own.kv_tiers {
            *folder = folder.join("fault-free");
        }
        own
    }

    /// Whether there can be as many ranks.
    pub(crate) fn check_size(&self) -> Result<(), EngineError> {
        let Topology { tp, pp, ep, dp } = self.topology;
        for (axis, degree) in [("tp", tp), ("pp", pp), ("ep", ep), ("dp", dp)] {
            if degree == 0 {
                return Err(EngineError::refused(TopologyError::Zero { axis }.to_string()));
            }
        }
        let size = self.topology.size();
        if size <= RANKS_MAX {
            return Ok(());
        }
        Err(EngineError::refused(format!(
            "tp {tp}, pp {pp}, ep {ep} and dp {dp} are {size} ranks; the most are {RANKS_MAX}"
        )))
    }

    /// Whether a replica can be built like this.
    pub(crate) fn check(&self, dims: &Dims) -> Result<(), EngineError> {
        let refused = |text: String| Err(EngineError::refused(text));
        let Topology { tp, ep, .. } = self.topology;
        dims.spreads(ep.into()).map_err(EngineError::refused)?;
        let valid: Vec<u32> =
            DEGREES.into_iter().filter(|&degree| dims.divides(u64::from(degree)).is_ok()).collect();
        if let Err(reason) = dims.divides(u64::from(tp)) {
            return refused(format!("{reason}; these do: {}", list(&valid)));
        }
        if !DEGREES.contains(&tp) {
            return refused(format!("tp {tp} is none of those this model takes: {}", list(&valid)));
        }
        if self.model.dtype != Dtype::Bf16 {
            let dtype = self.model.dtype;
            return refused(format!("the model is {dtype} and this engine computes from BF16"));
        }
        if self.block_size == 0 || self.kv_blocks < 2 {
            let (size, blocks) = (self.block_size, self.kv_blocks);
            return refused(format!(
                "a KV cache of {blocks} blocks of {size} tokens holds no request; \
                 give it 2 blocks of 1 token at least"
            ));
        }
        Ok(())
    }
}

fn list(degrees: &[u32]) -> String {
    degrees.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
