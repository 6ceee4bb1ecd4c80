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
    /// Data-parallel replicas: whole models that share nothing.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub dp: u32,
}

impl Default for Topology {
    fn default() -> Self {
        Self::SINGLE
    }
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_one(value: &u32) -> bool {
    *value == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// A topology that a model cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// An axis is zero.
    #[error("{axis} is 0; the smallest is 1")]
    Zero {
        /// `tp`, `pp`, `ep` or `dp`.
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
    pub const SINGLE: Self = Self { tp: 1, pp: 1, ep: 1, dp: 1 };

    /// Tensor parallel only.
    #[must_use]
    pub const fn tensor(tp: u32) -> Self {
        Self { tp, ..Self::SINGLE }
    }

    /// One replica of it.
    #[must_use]
    pub const fn replica(self) -> Self {
        Self { dp: 1, ..self }
    }

    /// All ranks, in order of their index.
    pub fn ranks(self) -> impl Iterator<Item = Rank> {
        (0..self.dp).flat_map(move |dp| self.stages().map(move |rank| Rank { dp, ..rank }))
    }

    /// The ranks of the first replica.
    fn stages(self) -> impl Iterator<Item = Rank> {
        (0..self.pp).flat_map(move |pp| {
            (0..self.ep).flat_map(move |ep| (0..self.tp).map(move |tp| Rank { dp: 0, pp, ep, tp }))
        })
    }

    /// The number of ranks, at most `u32::MAX`.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.tp.saturating_mul(self.pp).saturating_mul(self.ep).saturating_mul(self.dp)
    }

    /// Whether this is one of its ranks.
    #[must_use]
    pub const fn contains(self, rank: Rank) -> bool {
        rank.dp < self.dp && rank.pp < self.pp && rank.ep < self.ep && rank.tp < self.tp
    }

    /// The global index of a rank: dp outermost, then pp, tp innermost.
    #[must_use]
    pub const fn index(self, rank: Rank) -> u32 {
        let replica = rank.dp.saturating_mul(self.pp).saturating_add(rank.pp);
        let stage = replica.saturating_mul(self.ep).saturating_add(rank.ep);
        stage.saturating_mul(self.tp).saturating_add(rank.tp)
    }
}

/// Coordinates of one rank.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Rank {
    /// Data-parallel coordinate: which replica.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dp: u32,
    /// Pipeline stage.
    pub pp: u32,
    /// Expert-parallel coordinate.
    pub ep: u32,
    /// Tensor-parallel coordinate.
    pub tp: u32,
}

impl Rank {
    /// The same rank of the first replica.
    #[must_use]
    pub const fn in_replica(self) -> Self {
        Self { dp: 0, ..self }
    }

    /// The rank of a tensor-parallel-only topology.
    #[must_use]
    pub const fn tensor(tp: u32) -> Self {
        Self { dp: 0, pp: 0, ep: 0, tp }
    }

    /// The first rank of a replica: what is of no one rank of it is recorded there.
    #[must_use]
    pub const fn first_of(dp: u32) -> Self {
        Self { dp, pp: 0, ep: 0, tp: 0 }
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
        if self.dp > 0 {
            write!(f, ".dp{}", self.dp)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_outermost() {
        let topology = Topology { tp: 2, pp: 3, ep: 2, dp: 2 };
        let ranks: Vec<Rank> = topology.ranks().collect();
        assert_eq!((ranks.len(), topology.size()), (24, 24));
        assert!(ranks.is_sorted());
        assert!((0..).zip(&ranks).all(|(index, rank)| topology.index(*rank) == index));
        assert!(ranks.iter().all(|rank| topology.contains(*rank)));
        assert!(ranks[..12].iter().all(|rank| rank.dp == 0));
        assert!(topology.replica().ranks().eq(ranks[..12].iter().copied()));
        assert!(!topology.replica().contains(ranks[12]));
        assert_eq!(ranks[12], Rank::first_of(1));
        assert_eq!(ranks.iter().map(Rank::to_string).collect::<Vec<_>>()[13], "tp1.dp1");
    }

    #[test]
    fn what_has_one_replica_reads_and_is_written_without_the_word() {
        let (rank, topology) = (r#"{"pp":0,"ep":0,"tp":1}"#, r#"{"tp":2,"pp":1,"ep":1}"#);
        assert_eq!(serde_json::from_str::<Rank>(rank).unwrap(), Rank::tensor(1));
        assert_eq!(serde_json::to_string(&Rank::tensor(1)).unwrap(), rank);
        assert_eq!(serde_json::from_str::<Topology>(topology).unwrap(), Topology::tensor(2));
        assert_eq!(serde_json::to_string(&Topology::tensor(2)).unwrap(), topology);
        let two = Topology { dp: 2, ..Topology::SINGLE };
        let written = serde_json::to_string(&(two, Rank::first_of(1))).unwrap();
        assert!(written.contains(r#""ep":1,"dp":2"#) && written.contains(r#"{"dp":1,"pp":0"#));
        assert_eq!(
            serde_json::from_str::<(Topology, Rank)>(&written).unwrap(),
            (two, Rank::first_of(1))
        );
    }
}
