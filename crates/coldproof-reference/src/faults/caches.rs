//! Room 7: a cache that outlives the weights that filled it.

use super::{FaultId, Faults, Variant};
use crate::caches::Invalidation;

/// How an engine with these faults invalidates the cache that these are about: the prefix cache, of
/// keys and values (F7.02) or of states (F7.04), or the encoder's (F7.03).
pub(crate) fn invalidation(faults: &Faults, ids: &[FaultId]) -> Invalidation {
    match ids.iter().find_map(|id| faults.of(*id)) {
        None => Invalidation::Empty,
        Some(Variant::Faulty) => Invalidation::KeepUnkeyed,
        Some(Variant::Twin) => Invalidation::KeepKeyed,
    }
}

/// How an engine with these faults invalidates its host KV tier (R38).
pub(crate) fn host_invalidation(faults: &Faults) -> Invalidation {
    invalidation(faults, &[FaultId::R38])
}

/// What keys of the file KV tier name of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileKeys {
    /// What they are.
    pub(crate) content: bool,
    /// Their number in this engine's life.
    pub(crate) generation: bool,
    /// What their model is called.
    pub(crate) model: bool,
}

/// What an engine with these faults keys the file KV tier by: the content of the weights, or their
/// number (R41) or their model's name (R59) in its place, or beside it.
pub(crate) fn file_keys(faults: &Faults) -> FileKeys {
    let (number, name) = (faults.of(FaultId::R41), faults.of(FaultId::R59));
    FileKeys {
        content: ![number, name].contains(&Some(Variant::Faulty)),
        generation: number.is_some(),
        model: name.is_some(),
    }
}
