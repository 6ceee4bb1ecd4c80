//! Buffers, aliases and configuration survive an update or are rebuilt (R28, R29).

use std::collections::BTreeMap;

use super::{StateError, StateInventory, StateRule, StateSighting, StateSightings};
use super::{experts, launched};
use crate::derived::read_text;
use crate::digest;
use crate::evidence::{Absence, ArmView, Difference, LaneName, PhaseView};
use crate::verdict::{Case, Finding, FindingCode, FindingEvent, Room, Site, symptom};
use crate::words::{Policy, Rank, SlotKind, SlotName, StorageId};

/// Judges category 4.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let comparison = case.comparison;
    for (index, arm) in view.arms.iter().enumerate() {
        for rank in arm.header.topology.ranks() {
            aliases(case, index, arm, rank);
            for phase in 1..arm.phases.len() {
                configuration(case, (index, phase), arm, rank);
            }
        }
        launched::check(case, index, arm);
    }
    experts::check(case);
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
    let partial = view.ran(LaneName::Partial) || view.updated_adapters();
    let kept = preserved(case);
    let coverage = case.cover(Room::State);
    coverage.covered = view.ran(LaneName::Differential) || partial;
    coverage.proven = format!("{equal} buffers and aliases equal to a cold load's, bit for bit");
    if partial {
        coverage.checks += kept;
        coverage.proven += &format!("; {kept} parameters preserved by a partial update");
        if kept == 0 {
            let text = "no parameter was seen to be preserved by a partial update".to_owned();
            coverage.undecided.insert(text);
        }
    }
}

/// Parameters that partial updates promised to preserve, and that are as they were and as the cold
/// load has them.
fn preserved(case: &Case<'_, '_>) -> u64 {
    let scoped = [LaneName::Partial, LaneName::Adapters];
    let arms = case.view.arms.iter().filter(|arm| scoped.contains(&arm.header.lane));
    let arms = arms.filter_map(|arm| Some((arm, case.view.against(arm)?.phases.last()?)));
    let mut kept = 0;
    for (arm, cold) in arms {
        for (index, phase) in arm.phases.iter().enumerate().filter(|(_, p)| p.from.is_some()) {
            let Some(before) = arm.earlier(index, phase.from) else { continue };
            let reads = phase.read_backs.iter();
            for (key, read) in reads.filter(|((_, slot), _)| phase.preserved.contains(slot)) {
                let parameter = phase.slots.get(key);
                let parameter = parameter.is_some_and(|s| s.fact.slot_kind == SlotKind::Parameter);
                let now = read.fact.content.filter(|_| parameter);
                let same = |other: &PhaseView<'_>| {
                    other.read_backs.get(key).is_some_and(|other| other.fact.content == now)
                };
                kept += u64::from(now.is_some() && same(before) && same(cold));
            }
        }
    }
    kept
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
fn aliases(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>, rank: Rank) {
    let Some(first) = arm.phases.iter().position(|phase| !phase.slots.is_empty()) else { return };
    let Ok(inventory) = StateInventory::seal(shared(&arm.phases[first], rank)) else { return };
    for (offset, phase) in arm.phases[first..].iter().enumerate() {
        let storages = storages(phase, rank);
        for error in inventory.splits(&storages) {
            let StateError::AliasSplit { alias, owner } = error else { continue };
            let (Some(own), Some(other)) = (storages.get(&owner), storages.get(&alias)) else {
                continue;
            };
            let rank = case.rank_index(index, rank);
            let finding = Finding::new(FindingCode::AliasSplit, alias.0.clone(), rank)
                .expected(format!("one storage with `{owner}`"), format!("{other}, not {own}"))
                .why("one of the two names is updated and the forward may read the other");
            case.raise(finding, (index, first + offset), &[&alias.0]);
        }
    }
}

/// The names that slots list for their storage: the first that is no alias owns it, whichever of
/// them lists the other, and its policy is that of all.
fn shared(phase: &PhaseView<'_>, rank: Rank) -> BTreeMap<SlotName, StateRule> {
    let storages = storages(phase, rank);
    let mut rules: BTreeMap<SlotName, StateRule> = BTreeMap::new();
    for ((_, name), slot) in phase.slots.iter().filter(|((of, _), _)| *of == rank) {
        let storage = storages.get(*name);
        if slot.fact.slot_kind == SlotKind::Alias || storage.is_none() {
            continue;
        }
        let names = || slot.fact.aliases.iter().chain([*name]);
        let names = || names().filter(|other| storages.get(*other) == storage);
        let known = names().find_map(|other| Some((other, rules.get(other)?)));
        let (owner, policy) = known.map_or(((*name).clone(), slot.fact.policy), |(other, rule)| {
            (rule.alias_of.clone().unwrap_or_else(|| other.clone()), rule.policy)
        });
        for name in names() {
            let alias_of = (*name != owner).then(|| owner.clone());
            rules.entry(name.clone()).or_insert(StateRule { policy, alias_of });
        }
    }
    rules
}

fn storages(phase: &PhaseView<'_>, rank: Rank) -> BTreeMap<SlotName, StorageId> {
    let own = phase.slots.iter().filter(|((of, _), _)| *of == rank);
    own.filter_map(|((_, name), slot)| {
        Some(((*name).clone(), slot.fact.fingerprint.as_ref()?.storage))
    })
    .collect()
}

/// Configuration by name: its value, and what an update does to it.
type Stated<'r> = BTreeMap<SlotName, (&'r str, Policy)>;

fn stated<'r>(phase: &PhaseView<'r>, rank: Rank) -> Stated<'r> {
    let own = phase.states.iter().filter(|((of, _, _), _)| *of == rank);
    own.map(|((_, owner, name), state)| {
        let name = SlotName(format!("{owner}.{name}"));
        (name, (state.fact.value.as_str(), state.fact.policy))
    })
    .collect()
}

fn sightings(stated: &Stated<'_>) -> StateSightings {
    let sighting = |value: &str| StateSighting {
        content: digest::content(value.as_bytes()),
        empty: value.is_empty(),
    };
    stated.iter().map(|(name, (value, _))| (name.clone(), sighting(value))).collect()
}

/// Preserved configuration is what a cold load has, else what it was; what is to be emptied is
/// empty. What an update refreshes may be anything: no cold load need state the same.
fn configuration(case: &mut Case<'_, '_>, site: Site, arm: &ArmView<'_>, rank: Rank) {
    let after = &arm.phases[site.1];
    if after.states.is_empty() {
        return;
    }
    let cold = case.view.against(arm).filter(|cold| cold.header.topology == arm.header.topology);
    let cold = cold.and_then(|cold| cold.phases.last());
    let cold = cold.map(|phase| stated(phase, rank)).unwrap_or_default();
    let (before, after) = (stated(&arm.phases[0], rank), stated(after, rank));
    let rule = |policy| StateRule { policy, alias_of: None };
    let rules = before.iter().map(|(name, (_, policy))| (name.clone(), rule(*policy)));
    let Ok(inventory) = StateInventory::seal(rules.collect()) else { return };
    for error in inventory.values(&sightings(&before), &sightings(&after), &sightings(&cold)) {
        let (StateError::Lost { name }
        | StateError::NotPreserved { name }
        | StateError::NotInvalidated { name }) = error
        else {
            continue;
        };
        let wanted = match inventory.policy(&name) {
            Some(Policy::Preserve) => cold.get(&name).or_else(|| before.get(&name)),
            Some(Policy::Invalidate) => Some(&("", Policy::Invalidate)),
            Some(Policy::Refresh) | None => None,
        };
        let Some((wanted, _)) = wanted else { continue };
        let now = after.get(&name).map_or("absent", |(value, _)| value);
        let rank = case.rank_index(site.0, rank);
        let finding = Finding::new(FindingCode::ConfigDrift, name.0, rank)
            .expected(if wanted.is_empty() { "nothing" } else { wanted }, now)
            .why("the update rebuilt something under another configuration than a cold load has");
        case.raise(finding, site, &[]);
    }
}
