//! Why sources cannot be placed.

use super::Placement;
use crate::words::{Fragment, Rank, SlotName, Topology};

/// A source that cannot be placed, or a set of sources that do not make up their slots.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The rank is not one of the topology's, or the topology has no ranks.
    #[error("there is no rank {rank} in the topology {topology:?}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// The topology.
        topology: Topology,
    },
    /// More places than are computed.
    #[error(
        "{sources} sources on {ranks} ranks have more than {} places; give fewer ranks",
        Placement::PLACES_MAX
    )]
    TooMany {
        /// Sources that any rank may have.
        sources: usize,
        /// Ranks.
        ranks: u32,
    },
    /// An axis cannot be cut into equal parts.
    #[error("`{source_name}`: {extent} of axis {axis} cannot be cut into {parts} equal parts")]
    Uneven {
        /// The checkpoint tensor.
        source_name: String,
        /// Which axis.
        axis: usize,
        /// Its extent (heads, where the axis is cut by heads).
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
    /// Two sources of one slot imply different shapes of it.
    #[error(
        "`{slot}` on {rank}: shape {first_shape:?} by `{first}`, {second_shape:?} by `{second}`"
    )]
    Layout {
        /// The slot.
        slot: SlotName,
        /// Where.
        rank: Rank,
        /// One source.
        first: String,
        /// Its slot shape.
        first_shape: Box<[u64]>,
        /// The other source.
        second: String,
        /// Its slot shape.
        second_shape: Box<[u64]>,
    },
    /// Two pieces claim the same elements.
    #[error("`{slot}` on {rank}: `{first}` and `{second}` both fill {fragment}")]
    Overlap {
        /// The slot.
        slot: SlotName,
        /// Where.
        rank: Rank,
        /// One source.
        first: String,
        /// The other source.
        second: String,
        /// What both fill.
        fragment: Fragment,
    },
    /// Elements that no source fills and that no rule declares as padding.
    #[error("`{slot}` on {rank}: no source fills {fragment}, and it is no padding")]
    Uncovered {
        /// The slot.
        slot: SlotName,
        /// Where.
        rank: Rank,
        /// What nothing fills: the first such box.
        fragment: Fragment,
    },
}
