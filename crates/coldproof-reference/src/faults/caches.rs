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
