//! Buffers, aliases and configuration survive an update or are rebuilt (R28, R29).

use std::collections::BTreeMap;

use crate::derived::read_text;
use crate::evidence::{ArmView, Difference, LaneName, PhaseView};
use crate::verdict::{Case, Finding, FindingCode, Room, symptom};
use crate::words::{Policy, Rank, SlotKind, SlotName};

/// Judges category 4.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let comparison = case.comparison;
    for (index, arm) in view.arms.iter().enumerate() {
        for phase in 1..arm.phases.len() {
            aliases(case, index, arm, phase);
            configuration(case, index, arm, phase);
        }
    }
    for difference in &comparison.differences {
        if matches!(difference.slot.slot_kind, SlotKind::Buffer) {
            buffer(case, difference);
        }
    }
    let equal = comparison.equal_of(&[SlotKind::Buffer, SlotKind::Alias]);
    let covered = view.ran(LaneName::Differential);
    let coverage = case.cover(Room::State);
    coverage.covered = covered;
    coverage.checks += equal;
    if equal == 0 {
        coverage.undecided.insert("no buffer was compared with a cold load's".to_owned());
    }
    coverage.proven = format!("{equal} buffers and aliases equal to a cold load's, bit for bit");
}

fn buffer(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let step = case.view.arms[site.0].step_name(difference.read.step);
    let text = read_text(difference);
    let found = symptom("read-back", step, difference.read.seq, text.clone());
    if case.join(&difference.slot.slot.0, site, found.clone()) {
        return;
    }
    let rank = case.rank_index(site.0, difference.rank);
    let mut finding = Finding::new(FindingCode::StateLost, difference.slot.slot.0.clone(), rank)
        .expected(format!("the bytes of `{}`", difference.against), text)
        .why("the forward reads it, no checkpoint carries it, and the update did not rebuild it");
    finding.events.push(found);
    case.raise(finding, site, &[&difference.slot.slot.0]);
}

/// Names that shared a storage before the update share one after it.
fn aliases(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>, phase: usize) {
    let (before, after) = (&arm.phases[phase - 1], &arm.phases[phase]);
    for ((rank, name), slot) in &before.slots {
        let Some(storage) = slot.fact.fingerprint.as_ref().map(|print| print.storage) else {
            continue;
        };
        for alias in &slot.fact.aliases {
            let shared = storage_of(before, *rank, alias) == Some(storage);
            let now = (storage_of(after, *rank, name), storage_of(after, *rank, alias));
            let (true, (Some(own), Some(other))) = (shared, now) else { continue };
            if own == other {
                continue;
            }
            let finding = Finding::new(
                FindingCode::AliasSplit,
                alias.0.clone(),
                case.rank_index(index, *rank),
            )
            .expected(format!("one storage with `{name}`"), format!("{other}, not {own}"))
            .why("one of the two names is updated and the forward may read the other");
            case.raise(finding, (index, phase), &[&alias.0]);
        }
    }
}

fn storage_of(
    phase: &PhaseView<'_>,
    rank: Rank,
    name: &SlotName,
) -> Option<crate::words::StorageId> {
    let slot = phase.slots.get(&(rank, name))?;
    Some(slot.fact.fingerprint.as_ref()?.storage)
}

/// Preserved configuration is what it was, and what a cold load has.
fn configuration(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>, phase: usize) {
    let after = &arm.phases[phase];
    if after.states.is_empty() {
        return;
    }
    let cold = arm.header.against.as_deref().and_then(|name| case.view.arm(name));
    let cold = cold.filter(|cold| cold.header.topology == arm.header.topology);
    let cold = cold.and_then(|cold| cold.phases.last()).map(|phase| &phase.states);
    let before: BTreeMap<_, _> =
        arm.phases[0].states.iter().map(|(key, state)| (*key, state.fact)).collect();
    for (key, then) in before {
        if then.policy != Policy::Preserve {
            continue;
        }
        let now = after.states.get(&key).map(|now| now.fact.value.as_str());
        let wanted = cold.and_then(|cold| cold.get(&key)).map(|cold| cold.fact.value.as_str());
        let wanted = wanted.unwrap_or(&then.value);
        if now == Some(wanted) {
            continue;
        }
        let object = format!("{}.{}", key.1, key.2);
        let rank = case.rank_index(index, key.0);
        let finding = Finding::new(FindingCode::ConfigDrift, object, rank)
            .expected(wanted, now.unwrap_or("absent"))
            .why("the update rebuilt something under another configuration than a cold load has");
        case.raise(finding, (index, phase), &[]);
    }
}
