//! What an adapter's slots hold after another took its name (R47): where the engine registers them
//! they are read back as those of the weights are.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{ArmView, Difference, LaneName, PhaseView};
use crate::verdict::{Case, Finding, FindingCode, Room, Site, symptom};
use crate::words::{Rank, SlotKind, SlotName};

/// Of fewer slots, each says for itself what it holds.
const SLOTS_MIN: usize = 2;

/// Judges, before any room judges slot by slot, what adapters hold as a whole: one of which nothing
/// was written is one finding.
pub(crate) fn check_factors(case: &mut Case<'_, '_>) {
    let view = case.view;
    for (index, arm) in view.arms.iter().enumerate() {
        for phase_index in 0..arm.phases.len() {
            let stale = stale(case, (index, phase_index), arm);
            for ((adapter, rank), slots) in stale {
                raise(case, (index, phase_index), (adapter, rank), &slots);
            }
        }
    }
}

/// Differing slots of adapters by rank, where no slot of the adapter there was renewed.
type Stale<'r> = BTreeMap<(&'r str, Rank), Vec<&'r str>>;

fn stale<'r>(case: &Case<'_, 'r>, site: Site, arm: &ArmView<'r>) -> Stale<'r> {
    let phase = &arm.phases[site.1];
    let mut found = Stale::new();
    let here = |difference: &&Difference<'r>| {
        difference.phase_index == site.1 && difference.arm == arm.header.arm
    };
    for difference in case.comparison.differences.iter().filter(here) {
        let slot: &'r SlotName = &difference.slot.slot;
        let Some(adapter) = slot.adapter() else { continue };
        let rank = case.rank_index(site.0, difference.rank);
        if case.blamed_finding(&slot.0, site.0, rank).is_none() {
            let holds = found.entry((adapter, difference.rank)).or_default();
            holds.push(slot.0.as_str());
        }
    }
    let old = arm.earlier(site.1, phase.from);
    found.retain(|(adapter, rank), slots| {
        slots.len() >= SLOTS_MIN && !old.is_none_or(|old| renewed(phase, old, adapter, *rank))
    });
    found
}

/// Whether any slot of the adapter holds other bytes than before.
fn renewed(phase: &PhaseView<'_>, old: &PhaseView<'_>, adapter: &str, rank: Rank) -> bool {
    let mut own = phase
        .read_backs
        .iter()
        .filter(|((of, slot), _)| *of == rank && slot.adapter() == Some(adapter));
    own.any(|(key, read)| {
        let before = old.read_backs.get(key).and_then(|read| read.fact.content);
        before.is_none() || read.fact.content != before
    })
}

fn raise(case: &mut Case<'_, '_>, site: Site, (adapter, rank): (&str, Rank), slots: &[&str]) {
    let phase = &case.view.arms[site.0].phases[site.1];
    let rank = case.rank_index(site.0, rank);
    let text = format!("every factor still holds the bytes before `{}`", phase.phase);
    let mut finding = Finding::new(FindingCode::AdapterReused, adapter, rank)
        .expected("the factors of its new content", text.clone())
        .why("the name was given other content, and what it names is still the old one");
    let read = phase.read_backs.iter().find(|((_, slot), _)| slot.0 == slots[0]);
    if let Some((_, read)) = read {
        finding.events.push(symptom("read-back", phase.step_name(read.step), read.seq, text));
    }
    case.raise(finding, site, slots);
}

/// Counts the slots of adapters that equal a cold load's after an update or a swap in place, and
/// says so; nothing where the engine registers none.
pub(super) fn cover(case: &mut Case<'_, '_>) -> Option<String> {
    let view = case.view;
    let own = |arm: &&ArmView<'_>| {
        let read = arm.phases.iter().any(|phase| !phase.read_backs.is_empty());
        arm.header.lane == LaneName::Adapters && arm.header.against.is_some() && read
    };
    let (mut equal, mut updates, mut any) = (0, 0, false);
    let mut undecided = BTreeSet::new();
    for arm in view.arms.iter().filter(own) {
        any = true;
        let name = &arm.header.arm;
        for phase in arm.phases.iter().filter(|phase| phase.from.is_some()) {
            let here = equal_slots(case, arm, phase);
            if here == 0 {
                undecided.insert(format!(
                    "no slot of an adapter of arm `{name}` was compared with a cold load's after \
                     `{}`",
                    phase.phase
                ));
            }
            equal += here;
            if phase.manifests.is_empty() {
                continue;
            }
            updates += 1;
            let given: BTreeSet<Rank> = (phase.receipts.iter())
                .filter(|receipt| receipt.fact.committed && receipt.fact.applications > 0)
                .map(|receipt| receipt.rank)
                .collect();
            let lacking = arm.header.topology.ranks().filter(|rank| !given.contains(rank));
            undecided.extend(lacking.map(|rank| {
                format!("rank {rank} of arm `{name}` gave no receipt in `{}`", phase.phase)
            }));
        }
    }
    let coverage = case.cover(Room::Caches);
    coverage.checks += equal;
    coverage.undecided.extend(undecided);
    any.then(|| {
        format!(
            "{equal} slots of adapters equal to a cold load's, bit for bit; {updates} updates of \
             adapters by transaction"
        )
    })
}

/// Slots of adapters that hold what the cold load of the same checkpoint holds.
fn equal_slots(case: &Case<'_, '_>, arm: &ArmView<'_>, phase: &PhaseView<'_>) -> u64 {
    let Some(cold) = case.view.against(arm) else { return 0 };
    let same = cold.phases.iter().rev().find(|cold| cold.at == phase.at);
    let Some(cold) = same else { return 0 };
    let own = phase.read_backs.iter().filter(|(key, _)| {
        let kind = phase.slots.get(*key).map(|slot| slot.fact.slot_kind);
        key.1.adapter().is_some() && kind.is_some_and(|kind| kind != SlotKind::Scratch)
    });
    let equal = own.filter(|(key, read)| {
        let wanted = cold.read_backs.get(*key).and_then(|read| read.fact.content);
        wanted.is_some() && read.fact.content == wanted
    });
    equal.count() as u64
}
