//! Room 7: a prefix cache that outlives the weights that filled it.

use super::{FaultId, Faults, Variant};
use crate::caches::Invalidation;

/// How an engine with these faults invalidates its prefix cache (F7.02).
pub(crate) fn invalidation(faults: &Faults) -> Invalidation {
    match faults.of(FaultId::F7_02) {
        None => Invalidation::Empty,
        Some(Variant::Faulty) => Invalidation::KeepUnkeyed,
        Some(Variant::Twin) => Invalidation::KeepKeyed,
    }
}
