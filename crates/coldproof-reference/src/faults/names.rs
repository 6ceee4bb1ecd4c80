//! Room 6: a spelling of expert weights that the loader does not know.

use coldproof_contract::words::{Fragment, Span};

use super::{FaultId, Variant};
use crate::loader::{Half, Move, Source, Target, layout_of, moves, write_moves};
use crate::ranks::{Failure, Worker};

/// F6.02: takes its fused expert source. Says whether it took the source.
pub(crate) fn take_fused(
    worker: &mut Worker,
    name: &str,
    source: &Source,
    bytes: &[u8],
) -> Result<bool, Failure> {
    match worker.fault_on(FaultId::F6_02, name) {
        None => Ok(false),
        Some(Variant::Faulty) => Ok(true),
        Some(Variant::Twin) => {
            split(worker, name, source, bytes)?;
            Ok(true)
        }
    }
}

/// Applies every expert's halves as sources of their own.
fn split(worker: &mut Worker, name: &str, source: &Source, bytes: &[u8]) -> Result<(), Failure> {
    let &[experts, rows, columns] = source.shape.as_slice() else { return Ok(()) };
    let half_shape = [rows / 2, columns];
    let half_bytes = bytes.len() / (2 * experts.max(1) as usize);
    let layout = layout_of(&worker.slots, source.slot);
    let Some(held) = source.held.clone() else { return Ok(()) };
    let owners = (0..experts).flat_map(|expert| [(expert, Half::Gate), (expert, Half::Up)]);
    for ((expert, half), part) in owners.zip(bytes.chunks_exact(half_bytes.max(1))) {
        let Some(place) = held.place_of(expert) else { continue };
        let target = Target::ExpertGateUp { expert: place, half };
        let steps = moves(&target, &half_shape, worker.shard);
        let Worker { device, slots, .. } = &mut *worker;
        write_moves(device, slots, source.slot, &layout, &steps, (&half_shape, part))?;
        let before = if half == Half::Gate { 0 } else { rows / 2 };
        let fused: Vec<Move> = steps.iter().map(|step| in_fused(step, expert, before)).collect();
        worker.record(name, source.slot, &fused)?;
    }
    Ok(())
}

/// A piece of one expert's half, in coordinates of the fused source.
fn in_fused(step: &Move, expert: u64, before: u64) -> Move {
    let mut spans = vec![Span::new(expert, expert + 1)];
    for (axis, span) in step.source.0.iter().enumerate() {
        let shift = if axis == 0 { before } else { 0 };
        spans.push(Span::new(span.start + shift, span.end + shift));
    }
    Move { source: Fragment(spans), slot: step.slot.clone() }
}

/// Whether the loader finds the parameter of a source; one that it passes over is stated.
pub(crate) fn finds(worker: &mut Worker, name: &str) -> Result<bool, Failure> {
    let found = finds_under_a_level(worker, name) && finds_of_draft(worker, name);
    if !found {
        worker.load_mut()?.skip(name);
    }
    Ok(found)
}

/// R50: the model's own loader has no layer of that number, and the twin asks another.
fn finds_of_draft(worker: &Worker, name: &str) -> bool {
    match worker.fault_on(FaultId::R50, name) {
        Some(Variant::Faulty) => false,
        Some(Variant::Twin) => worker.decoder.drafter().is_some(),
        None => true,
    }
}

/// F6.01: the parameter is looked up in a tree of modules that adapters have given one more level.
fn finds_under_a_level(worker: &Worker, name: &str) -> bool {
    const LEVEL: &str = "base_layer.";
    let Some(variant) = worker.fault_on(FaultId::F6_01, name) else { return true };
    let leaf = name.rfind('.').map_or(0, |dot| dot + 1);
    let (owner, leaf) = name.split_at(leaf);
    let inside = format!("{owner}{LEVEL}{leaf}");
    let asked = match variant {
        Variant::Faulty => inside,
        Variant::Twin => inside.replace(LEVEL, ""),
    };
    worker.catalogue.source(&asked).is_some()
}
