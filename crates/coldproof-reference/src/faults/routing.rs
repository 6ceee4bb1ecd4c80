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

/// R63: the source in whose place an expert's source is written. It moves the experts of one slot
/// to the next rank, as a placement would that the engine has left; its twin asks the map that the
/// forward reads.
pub(crate) fn placed_as(worker: &Worker, name: &str) -> Option<String> {
    const EXPERTS: &str = ".experts.";
    let (layer, rest) = name.split_once(EXPERTS)?;
    let (expert, part) = rest.split_once('.')?;
    let slot = format!("{layer}{EXPERTS}w13_weight");
    let variant = worker.fault_on(FaultId::R63, &slot)?;
    let experts = worker.dims.experts.as_ref()?.count;
    let expert: u64 = expert.parse().ok()?;
    let own = worker.place.experts;
    let moved = match variant {
        Variant::Faulty => (expert + own.part(experts).len()) % experts,
        Variant::Twin => mapped(worker, layer, expert, own.part(experts).start)?,
    };
    let target = format!("{layer}{EXPERTS}{moved}.{part}");
    let into = worker.catalogue.source(&target);
    // Only the slot of the fault is misplaced.
    match into {
        Some(source) if worker.slots[source.slot].spec.name.0 != slot => None,
        _ if own.ranks == 1 || part.starts_with("down") || part.starts_with("w2") => None,
        _ => Some(target),
    }
}

/// The expert in whose place this rank's map has an expert: itself, where the map says so.
fn mapped(worker: &Worker, layer: &str, expert: u64, first: u64) -> Option<u64> {
    let map = worker.slots.find(&format!("{layer}.experts.expert_map").as_str().into())?;
    let places = worker.slots.address(map).ok()?;
    let count = worker.slots[map].spec.elements() as usize;
    let places = worker.device.view::<i32>(places, count).ok()?;
    let place = u64::try_from(*places.get(expert as usize)?).ok()?;
    Some(first + place)
}
