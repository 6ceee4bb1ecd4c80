//! Ranks and topologies.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many ranks a model is cut into, along each kind of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Topology {
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Expert-parallel ranks.
    pub ep: u32,
}

impl Default for Topology {
    fn default() -> Self {
        Self { tp: 1, pp: 1, ep: 1 }
    }
}

/// A topology that a model cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// An axis is zero.
    #[error("{axis} is 0; the smallest is 1")]
    Zero {
        /// `tp`, `pp` or `ep`.
        axis: &'static str,
    },
    /// The heads cannot be divided.
    #[error("tp {tp} does not divide {heads} attention heads; these do: {valid}")]
    Heads {
        /// The asked tp.
        tp: u32,
        /// Attention heads of the model.
        heads: u64,
        /// The degrees that divide, comma separated.
        valid: String,
    },
}

impl Topology {
    /// One rank.
    pub const SINGLE: Self = Self { tp: 1, pp: 1, ep: 1 };

    /// Tensor parallel only.
    #[must_use]
    pub const fn tensor(tp: u32) -> Self {
        Self { tp, pp: 1, ep: 1 }
    }

    /// All ranks, in order of their index.
    pub fn ranks(self) -> impl Iterator<Item = Rank> {
        (0..self.pp).flat_map(move |pp| {
            (0..self.ep).flat_map(move |ep| (0..self.tp).map(move |tp| Rank { pp, ep, tp }))
        })
    }

    /// The number of ranks, at most `u32::MAX`.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.tp.saturating_mul(self.pp).saturating_mul(self.ep)
    }

    /// Whether this is one of its ranks.
    #[must_use]
    pub const fn contains(self, rank: Rank) -> bool {
        rank.pp < self.pp && rank.ep < self.ep && rank.tp < self.tp
    }

    /// The global index of a rank: pp outermost, tp innermost.
    #[must_use]
    pub const fn index(self, rank: Rank) -> u32 {
        let stage = rank.pp.saturating_mul(self.ep).saturating_add(rank.ep);
        stage.saturating_mul(self.tp).saturating_add(rank.tp)
    }
}

/// Coordinates of one rank.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Rank {
    /// Pipeline stage.
    pub pp: u32,
    /// Expert-parallel coordinate.
    pub ep: u32,
    /// Tensor-parallel coordinate.
    pub tp: u32,
}

impl Rank {
    /// The rank of a tensor-parallel-only topology.
    #[must_use]
    pub const fn tensor(tp: u32) -> Self {
        Self { pp: 0, ep: 0, tp }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tp{}", self.tp)?;
        if self.pp > 0 {
            write!(f, ".pp{}", self.pp)?;
        }
        if self.ep > 0 {
            write!(f, ".ep{}", self.ep)?;
        }
        Ok(())
    }
}
