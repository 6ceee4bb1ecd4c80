//! Room 5: a replicated parameter is cut as if it were sharded, ranks take what is for others, and
//! experts are not where the map says.

use coldproof_contract::words::{Fragment, Rank, SlotShard, Span};

use super::{FaultId, Variant};
use crate::kernels::ELSEWHERE;
use crate::loader::{HeldExperts, Move, Shard, Source, Target, layout_of, write_moves};
use crate::ranks::{Failure, Worker};
use crate::slots::SlotId;

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

/// R63 and R63b: writes an expert's source into the place of another. R63 moves the experts of one
/// slot to the next rank, as a placement would that the engine has left, and states what it
/// believes; R63b places them as the engine was started, and states that. The twins ask the map
/// that the forward reads. Says whether it took the source.
pub(crate) fn misplace_expert(
    worker: &mut Worker,
    name: &str,
    bytes: &[u8],
) -> Result<bool, Failure> {
    let Some([written, stated]) = astray(worker, name) else { return Ok(false) };
    if let Some(source) = written {
        let (layout, steps) = (layout_of(&worker.slots, source.slot), worker.pieces(&source));
        let Worker { device, slots, .. } = &mut *worker;
        write_moves(device, slots, source.slot, &layout, &steps, (&source.shape, bytes))?;
    }
    if let Some(source) = stated {
        let steps = worker.pieces(&source);
        worker.record(name, source.slot, &steps)?;
    }
    if let Some(own) = worker.catalogue.source(name).cloned() {
        worker.load_mut()?.fill(&own.parts, name);
    }
    Ok(true)
}

/// Where an expert's source is written on this rank and where it is said to be, each time if at
/// all; nothing for any other source.
fn astray(worker: &Worker, name: &str) -> Option<[Option<Source>; 2]> {
    const EXPERTS: &str = ".experts.";
    let (layer, rest) = name.split_once(EXPERTS)?;
    let (expert, part) = rest.split_once('.')?;
    let slot = format!("{layer}{EXPERTS}w13_weight");
    let faults = [FaultId::R63, FaultId::R63b].into_iter();
    let (id, variant) = faults.filter_map(|id| Some((id, worker.fault_on(id, &slot)?))).next()?;
    let (experts, own) = (worker.dims.experts.as_ref()?.count, worker.place.experts);
    let expert: u64 = expert.parse().ok().filter(|_| own.ranks > 1)?;
    let held = HeldExperts::consecutive(own, experts);
    let of = |expert: u64| worker.catalogue.source(&format!("{layer}{EXPERTS}{expert}.{part}"));
    // The slot is that of a source that this rank has.
    let near = (0..experts).find_map(of)?;
    if worker.slots[near.slot].spec.name.0 != slot {
        return None;
    }
    let at = |place: u64| Source { target: near.target.clone().at(place), ..near.clone() };
    Some(match (id, variant) {
        (FaultId::R63, Variant::Faulty) => {
            let moved = (expert + held.count()) % experts;
            [of(moved).cloned(), of(expert).cloned()]
        }
        (_, Variant::Faulty) => {
            let written = held.place_of(expert).map(at);
            [written.clone(), written]
        }
        // After a sleep that kept nothing the map is not there yet.
        (_, Variant::Twin) if worker.lost => return None,
        (_, Variant::Twin) => {
            let written = Some(at(mapped(worker, layer, expert)?));
            [written.clone(), written]
        }
    })
}

/// R63b where all experts come in one source: the pieces of its slot's source, or nothing for any
/// other.
pub(crate) fn initial_pieces(worker: &Worker, source: &Source) -> Option<Vec<Move>> {
    let experts = *source.shape.first().filter(|_| source.held.is_some())?;
    let slot = &worker.slots[source.slot].spec.name;
    let held = match worker.fault_on(FaultId::R63b, &slot.0)? {
        Variant::Faulty => HeldExperts::consecutive(worker.place.experts, experts),
        Variant::Twin if worker.lost => return None,
        Variant::Twin => HeldExperts::mapped(map(worker, slot.owner())?),
    };
    Some(worker.pieces(&Source { held: Some(held), ..source.clone() }))
}

/// When a stack of experts moves to another placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Before the map is rewritten.
    First,
    /// After it.
    Last,
    /// Not at all.
    Never,
}

/// R63c: its object stays where it is, though the map says otherwise; its twin moves it last.
pub(crate) fn moved(worker: &Worker, id: SlotId) -> Moved {
    match worker.faults.on(FaultId::R63c, &worker.slots[id].spec.name.0) {
        None => Moved::First,
        Some(Variant::Twin) => Moved::Last,
        Some(Variant::Faulty) => Moved::Never,
    }
}

/// R63d: whether the map is rewritten where experts moved. The last rank of ep keeps the old one;
/// its twin clears it before.
pub(crate) fn rewrites_map(worker: &mut Worker, map: SlotId) -> Result<bool, Failure> {
    let spec = &worker.slots[map].spec;
    let variant = worker.faults.on(FaultId::R63d, &spec.name.0);
    let variant = variant.filter(|_| worker.place.experts.is_last());
    if variant == Some(Variant::Twin) {
        let none = vec![ELSEWHERE; spec.elements() as usize];
        worker.device.write(worker.slots.address(map)?, bytemuck::cast_slice(&none))?;
    }
    Ok(variant != Some(Variant::Faulty))
}

/// The place of an expert in this rank's stack, by the map that the forward reads.
fn mapped(worker: &Worker, layer: &str, expert: u64) -> Option<u64> {
    let places = map(worker, &format!("{layer}.experts"))?;
    u64::try_from(*places.get(expert as usize)?).ok()
}

/// The map of a module's experts that the forward reads.
fn map<'w>(worker: &'w Worker, module: &str) -> Option<&'w [i32]> {
    let map = worker.slots.find(&format!("{module}.expert_map").as_str().into())?;
    let count = worker.slots[map].spec.elements() as usize;
    worker.device.view::<i32>(worker.slots.address(map).ok()?, count).ok()
}
