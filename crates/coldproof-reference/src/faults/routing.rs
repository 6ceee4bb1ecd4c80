//! Room 5: a replicated parameter is cut as if it were sharded, and ranks take what is for others.

use coldproof_contract::words::{Fragment, Rank, SlotShard, Span};

use super::{FaultId, Variant};
use crate::loader::{Move, Shard, Source, Target, layout_of, write_moves};
use crate::ranks::{Failure, Worker};

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

/// R32: the shard that ranks take a delivered one for. The first two ranks of its object take each
/// other's; those of its twin do so with every slot that each has whole, whose shards are copies.
pub(crate) fn taken_for(worker: &Worker, shard: SlotShard) -> SlotShard {
    let (rank, slot) = (shard.rank(), &shard.slot().0);
    let whole = |source: &Source| source.target == Target::Replicated;
    let exchanged = match worker.faults.of(FaultId::R32) {
        Some(Variant::Faulty) => worker.fault_on(FaultId::R32, slot).is_some(),
        Some(Variant::Twin) => worker.catalogue.source(slot).is_some_and(whole),
        None => false,
    };
    if !exchanged || worker.shard.ranks == 1 || rank.tp > 1 {
        return shard;
    }
    SlotShard::new(Rank { tp: 1 - rank.tp, ..rank }, shard.slot().clone())
}

/// R63: writes an expert's source into the place of another, and states what it believes. It moves
/// the experts of one slot to the next rank, as a placement would that the engine has left; its
/// twin asks the map that the forward reads. Says whether it took the source.
pub(crate) fn misplace_expert(
    worker: &mut Worker,
    name: &str,
    bytes: &[u8],
) -> Result<bool, Failure> {
    let Some(target) = placed_as(worker, name) else { return Ok(false) };
    if let Some(source) = worker.catalogue.source(&target).cloned() {
        let (layout, steps) = (layout_of(&worker.slots, source.slot), worker.pieces(&source));
        let Worker { device, slots, .. } = &mut *worker;
        write_moves(device, slots, source.slot, &layout, &steps, (&source.shape, bytes))?;
    }
    if let Some(own) = worker.catalogue.source(name).cloned() {
        let steps = worker.pieces(&own);
        worker.record(name, own.slot, &steps)?;
        worker.load_mut()?.fill(&own.parts, name);
    }
    Ok(true)
}

/// The source in whose place an expert's source is written; nothing for any other source.
fn placed_as(worker: &Worker, name: &str) -> Option<String> {
    const EXPERTS: &str = ".experts.";
    let (layer, rest) = name.split_once(EXPERTS)?;
    let (expert, part) = rest.split_once('.')?;
    let slot = format!("{layer}{EXPERTS}w13_weight");
    let variant = worker.fault_on(FaultId::R63, &slot)?;
    let (experts, own) = (worker.dims.experts.as_ref()?.count, worker.place.experts);
    let expert: u64 = expert.parse().ok().filter(|_| own.ranks > 1)?;
    let held = own.part(experts);
    let moved = match variant {
        Variant::Faulty => (expert + held.len()) % experts,
        // After a sleep that kept nothing the map is not there yet.
        Variant::Twin if worker.lost => return None,
        Variant::Twin => held.start + mapped(worker, layer, expert)?,
    };
    let place = |expert: u64| format!("{layer}{EXPERTS}{expert}.{part}");
    // The slot is that of a source that this rank has.
    let near = worker.catalogue.source(&place(held.start))?;
    (worker.slots[near.slot].spec.name.0 == slot).then(|| place(moved))
}

/// The place of an expert in this rank's stack, by the map that the forward reads.
fn mapped(worker: &Worker, layer: &str, expert: u64) -> Option<u64> {
    let map = worker.slots.find(&format!("{layer}.experts.expert_map").as_str().into())?;
    let places = worker.slots.address(map).ok()?;
    let count = worker.slots[map].spec.elements() as usize;
    let places = worker.device.view::<i32>(places, count).ok()?;
    u64::try_from(*places.get(expert as usize)?).ok()
}
