//! Where every element of a source belongs, on every rank.

use serde::{Deserialize, Serialize};

use crate::words::{Dtype, Fragment, Rank, SlotName, Topology};

/// Which part of a fused qkv projection a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadRole {
    /// Query heads.
    Q,
    /// Key heads.
    K,
    /// Value heads.
    V,
}

/// Which half of a fused gate-and-up projection a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    /// Gate, the first half.
    Gate,
    /// Up, the second half.
    Up,
}

/// How a source is cut over tensor-parallel ranks and fused into its slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Sharding {
    /// All of it on every rank.
    Replicated,
    /// Output rows cut into equal parts (column-parallel layer); slot and source have the same axes.
    Column,
    /// Input columns cut into equal parts (row-parallel layer): the last axis.
    Row,
    /// Rows of the vocabulary, padded to a multiple of `multiple` x tp, cut into equal parts.
    Vocabulary {
        /// Rows are padded to a multiple of this for each rank.
        multiple: u64,
    },
    /// Rows of one part of a fused qkv slot, cut by heads. With fewer kv heads than ranks, a kv
    /// head is replicated on consecutive ranks.
    Heads {
        /// Which part.
        role: HeadRole,
        /// Query heads of the model.
        heads: u64,
        /// Key-value heads of the model.
        kv_heads: u64,
        /// Rows of a head.
        head_dim: u64,
    },
    /// One half of a fused gate-and-up slot, rows cut into equal parts.
    GateUp {
        /// Which half.
        half: Half,
    },
    /// One expert's half of a stacked `[experts, 2 x rows, columns]` slot.
    ExpertGateUp {
        /// Which expert.
        expert: u64,
        /// Experts of the model.
        experts: u64,
        /// Which half.
        half: Half,
    },
    /// One expert of a stacked `[experts, rows, columns]` slot, columns cut into equal parts.
    ExpertRow {
        /// Which expert.
        expert: u64,
        /// Experts of the model.
        experts: u64,
    },
    /// A fused source `[experts, 2 x rows, columns]`: gate rows, then up rows, of every expert.
    FusedExpertsGateUp,
    /// A fused source `[experts, rows, columns]` whose last axis is cut.
    FusedExpertsRow,
}

/// Where the catalogue expects a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRule {
    /// The checkpoint tensor.
    pub source: String,
    /// Element type in the checkpoint.
    pub dtype: Dtype,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// The slot it belongs to.
    pub slot: SlotName,
    /// How it is cut and fused.
    pub sharding: Sharding,
}

/// One piece: these elements of the source are those logical elements of the slot, both row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Elements of the source.
    pub source_fragment: Fragment,
    /// Logical elements of the slot. May have one more axis (the expert) than the source.
    pub slot_fragment: Fragment,
}

/// A source that cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// An axis cannot be cut into equal parts.
    #[error("`{source_name}`: {extent} of axis {axis} cannot be cut into {parts} equal parts")]
    Uneven {
        /// The checkpoint tensor.
        source_name: String,
        /// Which axis.
        axis: usize,
        /// Its extent.
        extent: u64,
        /// Parts.
        parts: u64,
    },
    /// The shape does not fit the rule.
    #[error("`{source_name}` has shape {shape:?}, which does not fit its rule: {reason}")]
    Shape {
        /// The checkpoint tensor.
        source_name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// What does not fit.
        reason: String,
    },
}

impl SourceRule {
    /// The pieces of this source that belong on `rank`, in source order, and the logical shape of
    /// the slot there (padding included).
    ///
    /// # Errors
    /// An axis that cannot be cut, or a shape that does not fit the rule.
    pub fn pieces(
        &self,
        _topology: Topology,
        _rank: Rank,
    ) -> Result<(Vec<Piece>, Vec<u64>), PlacementError> {
        Ok((Vec::new(), Vec::new()))
    }
}
