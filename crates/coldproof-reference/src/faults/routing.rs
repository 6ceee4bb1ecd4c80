//! Room 5: a replicated parameter is cut as if it were sharded.

use coldproof_contract::words::{Fragment, Span};

use super::{FaultId, Variant};
use crate::loader::{Move, Shard, Source};
use crate::ranks::Worker;

/// F5.01: the pieces of its replicated source, or nothing for any other source.
pub(crate) fn replicated_pieces(worker: &Worker, source: &Source) -> Option<Vec<Move>> {
    let slot = &worker.slots[source.slot].spec.name.0;
    let shard = match worker.fault_on(FaultId::F5_01, slot)? {
        Variant::Faulty => worker.shard,
        Variant::Twin => source.shard,
    };
    Some(vec![rows_of(source, shard)])
}

/// A shard's rows, written at the front of the slot.
fn rows_of(source: &Source, shard: Shard) -> Move {
    let whole = Fragment::whole(&source.shape);
    let rows = shard.part(source.shape.first().copied().unwrap_or(1));
    Move { source: whole.clone().with(0, rows), slot: whole.with(0, Span::new(0, rows.len())) }
}
