//! Values computed from weights are refreshed from the new ones (R15, R17).

use std::collections::{BTreeMap, BTreeSet};

use super::DerivedGraph;
use crate::evidence::{Comparison, Difference, Holds, SlotFact};
use crate::verdict::{Case, Finding, FindingCode, Room, symptom};
use crate::words::{SlotKind, SlotName};

/// Judges category 2.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let comparison = case.comparison;
    let derived = comparison.differences.iter().filter(|d| d.slot.slot_kind == SlotKind::Derived);
    for difference in derived {
        one(case, difference);
    }
    for index in 0..case.view.arms.len() {
        epochs(case, index);
    }
    let equal = case.cover_content(Room::Derived, &[SlotKind::Derived], "derived value");
    let covered = case.view.covers_content();
    let coverage = case.cover(Room::Derived);
    coverage.covered = covered;
    coverage.proven = format!("{equal} derived values equal to a cold load's, bit for bit");
}

fn one(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let step = case.view.arms[site.0].step_name(difference.read.step);
    let text = read_text(difference);
    let rank = case.rank_index(site.0, difference.rank);
    let found = symptom("read-back", step, difference.read.seq, text.clone());
    if case.explain(Room::Derived, &difference.slot.slot.0, rank, site, found.clone()) {
        return;
    }
    if let Some(root) = root(case.comparison, difference) {
        // Downstream of a slot that differs itself; that slot's finding explains it.
        let text = format!("`{}` differs, and so does its input `{root}`", difference.slot.slot);
        case.cover(Room::Derived).undecided.insert(text);
        return;
    }
    let inputs: Vec<String> = difference.slot.inputs.iter().map(|i| format!("`{i}`")).collect();
    let mut finding = Finding::new(FindingCode::DerivedStale, difference.slot.slot.0.clone(), rank)
        .expected(format!("the value of `{}`", difference.against), text)
        .why(match inputs.as_slice() {
            [] => "what it was made of holds the new weights and it does not follow".to_owned(),
            inputs => format!(
                "its inputs ({}) hold the new weights and it does not follow them",
                inputs.join(", ")
            ),
        });
    finding.events.push(found);
    case.raise(finding, site, &[&difference.slot.slot.0]);
}

/// What the engine itself says of its derived slots: a value of an older generation than one of its
/// inputs is stale. A claim can only convict; equal bytes acquit.
fn epochs(case: &mut Case<'_, '_>, index: usize) {
    let arm = &case.view.arms[index];
    for (phase_index, phase) in arm.updated() {
        for rank in arm.header.topology.ranks() {
            let own = phase.slots.iter().filter(|((r, _), _)| *r == rank);
            let own: Vec<_> = own.map(|(_, slot)| slot.fact).collect();
            // A slot that names itself, or nothing, declares nothing; its bytes decide alone.
            let needs = |slot: &SlotFact| -> BTreeSet<SlotName> {
                let derived = slot.slot_kind == SlotKind::Derived;
                let inputs = slot.inputs.iter().filter(|input| derived && **input != slot.slot);
                inputs.cloned().collect()
            };
            let (mut inputs, mut others) = (BTreeMap::new(), BTreeSet::new());
            for slot in &own {
                let needs = needs(slot);
                if needs.is_empty() {
                    others.insert(slot.slot.clone());
                } else {
                    inputs.insert(slot.slot.clone(), needs);
                }
            }
            let graph = match DerivedGraph::new(inputs, &others) {
                Ok(graph) => graph,
                Err(error) => {
                    let text = format!("arm `{}`: {error}", arm.header.arm);
                    case.cover(Room::Derived).undecided.insert(text);
                    continue;
                }
            };
            let epochs = own.iter().map(|slot| (slot.slot.clone(), slot.epoch)).collect();
            for stale in graph.stale(&epochs) {
                let rank = case.rank_index(index, rank);
                if case.blamed_finding(&stale.slot.0, index, rank).is_some() {
                    continue;
                }
                let epoch = stale.epoch.unwrap_or_default().0;
                let path: Vec<&str> = stale.path.iter().map(|slot| slot.0.as_str()).collect();
                let finding = Finding::new(FindingCode::DerivedStale, &stale.slot.0, rank)
                    .expected(
                        format!("computed from generation {}", stale.needed.0),
                        format!("by its own epoch computed from generation {epoch}"),
                    )
                    .why(format!("the engine says that it is older than {}", path.join(", ")));
                case.raise(finding, (index, phase_index), &[]);
            }
        }
    }
}

/// The differing slot that a difference comes from, by declared inputs. Slots that name each other
/// as inputs have none: their declarations explain nothing.
fn root<'c>(comparison: &'c Comparison<'_>, from: &Difference<'_>) -> Option<&'c SlotName> {
    let mut seen = BTreeSet::from([&from.slot.slot]);
    let mut open: Vec<&SlotName> = from.slot.inputs.iter().collect();
    while let Some(input) = open.pop() {
        let Some(beside) = comparison.beside(from, input) else { continue };
        if !seen.insert(&beside.slot.slot) {
            continue;
        }
        let inputs = beside.slot.inputs.iter().filter(|input| **input != beside.slot.slot);
        let derived = beside.slot.slot_kind == SlotKind::Derived;
        if !derived || inputs.clone().all(|input| comparison.beside(from, input).is_none()) {
            return Some(&beside.slot.slot);
        }
        open.extend(inputs);
    }
    None
}

/// What a differing slot holds, in words.
#[must_use]
pub(crate) fn read_text(difference: &Difference<'_>) -> String {
    match difference.holds {
        Holds::Old => format!(
            "after `{}` it still holds the bytes of the generation before",
            difference.phase
        ),
        Holds::Neither => {
            format!("after `{}` it holds neither the old nor the new bytes", difference.phase)
        }
        Holds::Unreadable => {
            format!("after `{}` its memory cannot be read", difference.phase)
        }
    }
}
