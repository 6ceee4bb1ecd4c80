//! The vocabulary that every crate shares: a thing has one name everywhere.

mod adapter;
mod dtype;
mod expert;
mod fragment;
mod identity;
mod packing;
mod rank;
mod shard;
mod slot;
mod step;
mod storage;

pub use adapter::{Factor, adapter_source};
pub use dtype::Dtype;
pub use expert::{ExpertPlace, ExpertPlacement};
pub use fragment::{Fragment, FragmentError, Span};
pub use identity::{CheckpointLabel, Generation, Hex128, TransactionId};
pub use packing::Packing;
pub use rank::{Rank, Topology, TopologyError};
pub use shard::{SlotShard, SlotShardError};
pub use slot::{Policy, SlotKind, SlotName};
pub use step::StepName;
pub use storage::{Address, ByteRange, Fingerprint, StorageId};
