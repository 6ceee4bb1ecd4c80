//! Room 7: a cache that outlives the weights that filled it.

use super::{FaultId, Faults, Variant};
use crate::caches::Invalidation;

/// How an engine with these faults invalidates the cache that `id` is about: the prefix cache
/// (F7.02) or the encoder's (F7.03).
pub(crate) fn invalidation(faults: &Faults, id: FaultId) -> Invalidation {
    match faults.of(id) {
        None => Invalidation::Empty,
        Some(Variant::Faulty) => Invalidation::KeepUnkeyed,
        Some(Variant::Twin) => Invalidation::KeepKeyed,
    }
}
