//! Room 3: a loader of another phase, a count that is full though a source is missing, and a layer
//! that post-load does not reach.

use coldproof_contract::words::{Packing, Span};

use super::{FaultId, Variant};
use crate::loader::{HeadPart, Hook, Layout, Move, Source, convert_slot, layout_of, write_moves};
use crate::ranks::{Failure, Worker};

/// The hooks of a load in the order of their post-load: all of them, in model order, unless F3.05
/// says otherwise.
pub(crate) fn dispatched(worker: &Worker) -> Vec<Hook> {
    let (deferred, mut hooks): (Vec<Hook>, Vec<Hook>) = (worker.hooks.iter().cloned())
        .partition(|hook| worker.fault_on(FaultId::F3_05, &hook.layer).is_some());
    let late = |hook: &Hook| worker.fault_on(FaultId::F3_05, &hook.layer) == Some(Variant::Twin);
    hooks.extend(deferred.into_iter().filter(late));
    hooks
}

/// R23: what follows an update in kernel format: nothing, unless the fault packs its object again.
pub(crate) fn pack_again(worker: &mut Worker) -> Result<(), Failure> {
    for id in worker.slots.ids() {
        let spec = &worker.slots[id].spec;
        let Packing::Panels { width } = spec.packing else { continue };
        let from = match worker.fault_on(FaultId::R23, &spec.name.0) {
            Some(Variant::Faulty) => Layout::Plain,
            Some(Variant::Twin) => layout_of(&worker.slots, id),
            None => continue,
        };
        let panels = Layout::Panels(width as usize);
        if from != panels {
            convert_slot(&mut worker.device, &worker.slots, id, &from, &panels)?;
        }
    }
    Ok(())
}

/// F3.06: takes k and v of its layer. Says whether it took the source.
pub(crate) fn apply_head_rows(
    worker: &mut Worker,
    name: &str,
    part: HeadPart,
    source: &Source,
    bytes: &[u8],
) -> Result<bool, Failure> {
    let slot = worker.slots[source.slot].spec.name.0.clone();
    let Some(variant) = worker.fault_on(FaultId::F3_06, &slot) else { return Ok(false) };
    let steps = worker.pieces(source);
    match (variant, part) {
        (Variant::Faulty, HeadPart::Key) => {
            for _ in 0..2 {
                worker.write(name, source, &steps, bytes)?;
            }
        }
        (Variant::Faulty, HeadPart::Value) => {}
        (Variant::Twin, HeadPart::Key) => {
            let halves: Vec<Move> = steps.iter().flat_map(halves).collect();
            worker.write(name, source, &halves, bytes)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The two halves of a move along its rows.
fn halves(step: &Move) -> Vec<Move> {
    let (Some(&from), Some(&to)) = (step.source.0.first(), step.slot.0.first()) else {
        return vec![step.clone()];
    };
    let middle = from.len() / 2;
    let cut = |first: u64, last: u64| Move {
        source: step.source.clone().with(0, Span::new(from.start + first, from.start + last)),
        slot: step.slot.clone().with(0, Span::new(to.start + first, to.start + last)),
    };
    vec![cut(0, middle), cut(middle, from.len())]
}

/// F3.01: takes expert rows of its slot. Says whether it took the source.
pub(crate) fn write_experts(
    worker: &mut Worker,
    name: &str,
    source: &Source,
    bytes: &[u8],
) -> Result<bool, Failure> {
    let slot = worker.slots[source.slot].spec.clone();
    let Some(variant) = worker.fault_on(FaultId::F3_01, &slot.name.0) else { return Ok(false) };
    let Packing::Panels { width } = slot.packing else { return Ok(false) };
    let panels = Layout::Panels(width as usize);
    let steps = worker.pieces(source);
    let packed = worker.slots[source.slot].runtime;
    if packed && variant == Variant::Twin {
        convert_slot(&mut worker.device, &worker.slots, source.slot, &panels, &Layout::Plain)?;
    }
    let from = (source.shape.as_slice(), bytes);
    let Worker { device, slots, .. } = worker;
    write_moves(device, slots, source.slot, &Layout::Plain, &steps, from)?;
    if packed && variant == Variant::Twin {
        convert_slot(&mut worker.device, &worker.slots, source.slot, &Layout::Plain, &panels)?;
    }
    worker.record(name, source.slot, &steps)?;
    Ok(true)
}

/// F3.02: takes D of its mixer. The composed loader of A_log was counted twice, so that the layer
/// counts as full before D comes. Says whether it took the source.
pub(crate) fn drop_after_full(
    worker: &mut Worker,
    name: &str,
    source: &Source,
    bytes: &[u8],
) -> Result<bool, Failure> {
    match worker.fault_on(FaultId::F3_02, name) {
        None => Ok(false),
        Some(Variant::Faulty) => Ok(true),
        // The layer is looked at again, and is not full.
        Some(Variant::Twin) => {
            let steps = worker.pieces(source);
            worker.write(name, source, &steps, bytes)?;
            Ok(true)
        }
    }
}
