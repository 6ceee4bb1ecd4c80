//! Values computed from weights are refreshed from the new ones (R15, R17).

use std::collections::BTreeSet;

use crate::evidence::{Comparison, Difference, Holds, LaneName};
use crate::verdict::{Case, Finding, FindingCode, Room, symptom};
use crate::words::{SlotKind, SlotName};

/// Judges category 2.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let comparison = case.comparison;
    let derived = comparison.differences.iter().filter(|d| d.slot.slot_kind == SlotKind::Derived);
    for difference in derived {
        one(case, difference);
    }
    let equal = case.cover_content(Room::Derived, &[SlotKind::Derived], "derived value");
    let covered = case.view.ran(LaneName::Differential);
    let coverage = case.cover(Room::Derived);
    coverage.covered = covered;
    coverage.proven = format!("{equal} derived values equal to a cold load's, bit for bit");
}

fn one(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let step = case.view.arms[site.0].step_name(difference.read.step);
    let text = read_text(difference);
    let found = symptom("read-back", step, difference.read.seq, text.clone());
    if case.explain(Room::Derived, &difference.slot.slot.0, site, found.clone()) {
        return;
    }
    if let Some(root) = root(case.comparison, difference) {
        // Downstream of a slot that differs itself; that slot's finding explains it.
        let text = format!("`{}` differs, and so does its input `{root}`", difference.slot.slot);
        case.cover(Room::Derived).undecided.insert(text);
        return;
    }
    let inputs: Vec<String> = difference.slot.inputs.iter().map(|i| format!("`{i}`")).collect();
    let rank = case.rank_index(site.0, difference.rank);
    let mut finding = Finding::new(FindingCode::DerivedStale, difference.slot.slot.0.clone(), rank)
        .expected(format!("the value of `{}`", difference.against), text)
        .why(format!(
            "its inputs ({}) hold the new weights and it does not follow them",
            inputs.join(", ")
        ));
    finding.events.push(found);
    case.raise(finding, site, &[&difference.slot.slot.0]);
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
