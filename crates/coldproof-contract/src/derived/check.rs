//! Values computed from weights are refreshed from the new ones (R15, R17).

use crate::evidence::{Difference, Holds, LaneName};
use crate::verdict::{Case, Finding, FindingCode, Room, symptom};
use crate::words::SlotKind;

/// Judges category 2.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let comparison = case.comparison;
    let derived = comparison.differences.iter().filter(|d| d.slot.slot_kind == SlotKind::Derived);
    for difference in derived {
        one(case, difference);
    }
    let equal = comparison.equal_of(&[SlotKind::Derived]);
    let covered = case.view.ran(LaneName::Differential);
    let coverage = case.cover(Room::Derived);
    coverage.covered = covered;
    coverage.checks += equal;
    if equal == 0 {
        let text = "no derived value was compared with a cold load's".to_owned();
        coverage.undecided.insert(text);
    }
    coverage.proven = format!("{equal} derived values equal to a cold load's, bit for bit");
}

fn one(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let step = case.view.arms[site.0].step_name(difference.read.step);
    let text = read_text(difference);
    let found = symptom("read-back", step, difference.read.seq, text.clone());
    if case.join(&difference.slot.slot.0, site, found.clone()) {
        return;
    }
    let upstream =
        difference.slot.inputs.iter().find(|input| case.comparison.differs(difference, input));
    if upstream.is_some() {
        // Downstream of a slot that differs itself; that slot's finding explains it.
        return;
    }
    let inputs: Vec<String> = difference.slot.inputs.iter().map(|i| format!("`{i}`")).collect();
    let rank = case.rank_index(site.0, difference.rank);
    let finding = Finding::new(FindingCode::DerivedStale, difference.slot.slot.0.clone(), rank)
        .expected(format!("the value of `{}`", difference.against), text)
        .why(format!(
            "its inputs ({}) hold the new weights and it does not follow them",
            inputs.join(", ")
        ));
    let mut finding = finding;
    finding.events.push(found);
    case.raise(finding, site, &[&difference.slot.slot.0]);
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
