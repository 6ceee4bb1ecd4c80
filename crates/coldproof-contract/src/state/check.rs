//! Buffers, aliases and configuration survive an update or are rebuilt (R28, R29).

use std::collections::BTreeMap;

use crate::derived::read_text;
use crate::evidence::{Absence, ArmView, Difference, LaneName, PhaseView};
use crate::verdict::{Case, Finding, FindingCode, FindingEvent, Room, Site, symptom};
use crate::words::{Policy, Rank, SlotKind, SlotName};

/// Judges category 4.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let comparison = case.comparison;
    for (index, arm) in view.arms.iter().enumerate() {
        aliases(case, index, arm);
        for phase in 1..arm.phases.len() {
            configuration(case, index, arm, phase);
        }
    }
    for absence in &comparison.absences {
        absent(case, absence);
    }
    for difference in &comparison.differences {
        match difference.slot.slot_kind {
            SlotKind::Buffer => lost(case, difference),
            SlotKind::Alias => alias_bytes(case, difference),
            _ => {}
        }
    }
    let kinds = [SlotKind::Buffer, SlotKind::Alias];
    let equal = case.cover_content(Room::State, &kinds, "buffer");
    let covered = view.ran(LaneName::Differential);
    let coverage = case.cover(Room::State);
    coverage.covered = covered;
    coverage.proven = format!("{equal} buffers and aliases equal to a cold load's, bit for bit");
}

/// A slot that a cold load has and the live engine does not.
fn absent(case: &mut Case<'_, '_>, absence: &Absence<'_>) {
    let site = (absence.arm, absence.phase_index);
    let arm = &case.view.arms[site.0];
    let phase = &arm.phases[site.1];
    let (name, text) =
        (&absence.slot.slot.0, if absence.registered { "no storage" } else { "gone" });
    let step = phase.steps.last().map_or("", |step| step.name.name());
    let found =
        symptom("registered", step, 0, format!("`{name}` is {text} after `{}`", phase.phase));
    let rank = case.rank_index(site.0, absence.rank);
    if case.explain(Room::State, name, rank, site, found.clone()) {
        return;
    }
    let mut finding = Finding::new(FindingCode::StateLost, name, rank)
        .expected("registered with a storage, as by a cold load", text)
        .why("a cold load's forward reads it, and the live engine no longer has it");
    finding.events.push(found);
    case.raise(finding, site, &[name]);
}

/// A slot whose bytes neither survived the update nor were rebuilt.
pub(crate) fn lost(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let (site, found) = read_back(case, difference);
    let slot = &difference.slot.slot.0;
    let rank = case.rank_index(site.0, difference.rank);
    if case.explain(Room::State, slot, rank, site, found.clone()) {
        return;
    }
    let mut finding = Finding::new(FindingCode::StateLost, slot, rank)
        .expected(format!("the bytes of `{}`", difference.against), read_text(difference))
        .why("the forward reads it, no checkpoint carries it, and the update did not rebuild it");
    finding.events.push(found);
    case.raise(finding, site, &[slot]);
}

/// An alias whose bytes differ: downstream of its owner, or no longer of its storage.
fn alias_bytes(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let (site, found) = read_back(case, difference);
    let alias = &difference.slot.slot;
    let rank = case.rank_index(site.0, difference.rank);
    if case.explain(Room::State, &alias.0, rank, site, found.clone()) {
        return;
    }
    let phases = &case.view.arms[site.0].phases[..=site.1];
    let mut slots = phases.iter().rev().flat_map(|phase| &phase.slots);
    let owner = slots
        .find(|((rank, _), slot)| *rank == difference.rank && slot.fact.aliases.contains(alias));
    let owner = owner.map(|((_, name), _)| *name);
    if owner.is_some_and(|owner| case.comparison.beside(difference, owner).is_some()) {
        let text = format!("`{alias}` differs, and so does the slot that owns its storage");
        case.cover(Room::State).undecided.insert(text);
        return;
    }
    let owner = owner.map_or("its owner", |owner| &owner.0);
    let mut finding = Finding::new(FindingCode::AliasSplit, &alias.0, rank)
        .expected(format!("the bytes of `{owner}`"), read_text(difference))
        .why("one of the two names is updated and the forward may read the other");
    finding.events.push(found);
    case.raise(finding, site, &[&alias.0]);
}

fn read_back(case: &Case<'_, '_>, difference: &Difference<'_>) -> (Site, FindingEvent) {
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let step = case.view.arms[site.0].step_name(difference.read.step);
    (site, symptom("read-back", step, difference.read.seq, read_text(difference)))
}

/// Names that shared a storage when the slots were first registered share one after each update.
fn aliases(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>) {
    let Some(first) = arm.phases.iter().position(|phase| !phase.slots.is_empty()) else { return };
    for ((rank, name), slot) in &arm.phases[first].slots {
        let Some(storage) = slot.fact.fingerprint.as_ref().map(|print| print.storage) else {
            continue;
        };
        // Two names of one storage are one pair, whichever of them lists the other.
        let shared = |alias: &&SlotName| {
            let other = arm.phases[first].slots.get(&(*rank, *alias));
            let second = other.is_some_and(|other| other.fact.slot_kind == SlotKind::Alias);
            slot.fact.slot_kind != SlotKind::Alias
                && (second || *name < *alias)
                && storage_of(&arm.phases[first], *rank, alias) == Some(storage)
        };
        for alias in slot.fact.aliases.iter().filter(shared) {
            for (offset, after) in arm.phases[first..].iter().enumerate() {
                let now = (storage_of(after, *rank, name), storage_of(after, *rank, alias));
                let (Some(own), Some(other)) = now else { continue };
                if own == other {
                    continue;
                }
                let rank = case.rank_index(index, *rank);
                let finding = Finding::new(FindingCode::AliasSplit, alias.0.clone(), rank)
                    .expected(format!("one storage with `{name}`"), format!("{other}, not {own}"))
                    .why("one of the two names is updated and the forward may read the other");
                case.raise(finding, (index, first + offset), &[&alias.0]);
            }
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
    let cold = case.view.against(arm).filter(|cold| cold.header.topology == arm.header.topology);
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
