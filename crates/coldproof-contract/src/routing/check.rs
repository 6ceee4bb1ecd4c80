//! Sentinels on every rank: each element is where its source, rank and shard say (R32).

use std::collections::{BTreeMap, BTreeSet};

use super::experts::SeenExperts;
use super::facts::{Mismatch, decoded, expected};
use super::{Placement, SourceRule, exchanged, experts, passed_over};
use crate::evidence::{ArmView, LaneName, PhaseView};
use crate::verdict::{Case, Finding, FindingCode, Room, symptom};
use crate::words::{Rank, SlotName};

/// Judges category 5, and names what sentinels show of category 3.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    for (index, arm) in view.arms.iter().enumerate() {
        let sentinels = arm.phases.iter().any(|phase| !phase.origins.is_empty());
        if sentinels {
            arm_check(case, index, arm);
        }
    }
    exchanged::check(case);
    padding(case);
    let seen = experts::check(case);
    cover(case);
    cover_experts(case, seen);
}

/// What the routing lane showed.
fn cover(case: &mut Case<'_, '_>) {
    let view = case.view;
    // The lane may load B cold at its own topology as well; that arm decodes nothing.
    let mut lanes = view.arms.iter().filter(|arm| arm.header.lane == LaneName::Routing);
    let lane = lanes.find(|arm| arm.phases.iter().any(|phase| phase.from.is_some()));
    let mut lanes = view.arms.iter().filter(|arm| arm.header.lane == LaneName::Routing);
    let lane = lane.or_else(|| lanes.next());
    let run = view.header.engine.topology;
    let coverage = case.cover(Room::Routing);
    let Some(lane) = lane else { return };
    coverage.covered = true;
    coverage.topology = (lane.header.topology != run).then_some(lane.header.topology);
    if coverage.checks == 0 {
        coverage.undecided.insert("no sentinel was decoded".to_owned());
    }
    if lane.phases.last().is_none_or(|phase| phase.read_backs.is_empty()) {
        coverage.undecided.insert("no padding was read back".to_owned());
    }
    coverage.proven = format!(
        "origin of every element decoded on {} ranks, {} elements",
        lane.header.topology.size(),
        coverage.checks
    );
}

/// What the placement lane showed beside it, or alone.
fn cover_experts(case: &mut Case<'_, '_>, seen: SeenExperts) {
    let view = case.view;
    if !view.ran(LaneName::Placement) {
        return;
    }
    let mut lane = view.arms.iter().filter(|arm| arm.header.lane == LaneName::Placement);
    let moved = lane.any(|arm| arm.updated().any(|(_, phase)| phase.experts.is_some()));
    let coverage = case.cover(Room::Routing);
    coverage.covered = true;
    if !moved {
        coverage.undecided.insert("no update was taken after experts moved".to_owned());
    }
    coverage.checks += seen.maps + seen.sources;
    let SeenExperts { maps, sources } = seen;
    let text = format!("{maps} maps of experts as ordered, {sources} of their sources in place");
    coverage.also_proven(&text);
}

fn arm_check(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>) {
    let rules: &[SourceRule] = &case.view.header.rules;
    let shapes: BTreeMap<&str, &[u64]> =
        rules.iter().map(|rule| (rule.source.as_str(), rule.shape.as_slice())).collect();
    let placement = match Placement::of(rules, arm.header.topology) {
        Ok(placement) => placement,
        Err(error) => {
            let text = format!("the catalogue cannot be placed on this topology: {error}");
            case.cover(Room::Routing).undecided.insert(text);
            return;
        }
    };
    for (phase_index, phase) in arm.phases.iter().enumerate() {
        if phase.origins.is_empty() {
            continue;
        }
        let mut found: BTreeMap<&SlotName, Vec<(Rank, Mismatch)>> = BTreeMap::new();
        for rank in arm.header.topology.ranks() {
            for (name, slot) in placement.slots(rank) {
                let Some(((_, name), seen)) = phase.origins.get_key_value(&(rank, name)) else {
                    let text = format!("no origins were decoded for `{name}` on rank {rank}");
                    case.cover(Room::Routing).undecided.insert(text);
                    continue;
                };
                let elements =
                    slot.shape.iter().try_fold(1_u64, |n, &extent| n.checked_mul(extent));
                let runs = elements.and_then(|elements| decoded(seen.fact, elements));
                let Some(runs) = runs else {
                    let text = format!("the origins of `{name}` on rank {rank} are malformed");
                    case.cover(Room::Routing).undecided.insert(text);
                    continue;
                };
                let Some(expected) = expected(slot, &shapes) else {
                    let text =
                        format!("`{name}` on rank {rank} has too many rows to be held apart");
                    case.cover(Room::Routing).undecided.insert(text);
                    continue;
                };
                let mismatch = Mismatch::of(&expected, &runs);
                case.cover(Room::Routing).checks += mismatch.right;
                found.entry(name).or_default().push((rank, mismatch));
            }
        }
        let site = (index, phase_index);
        passed_over::check(case, site, arm, &found);
        for (slot, mut ranks) in found {
            ranks.retain(|(_, mismatch)| !mismatch.is_clean());
            if !ranks.is_empty() {
                slot_finding(case, site, arm, slot, &ranks);
            }
        }
    }
}

/// Elements of other ranks, or a fault that differs from rank to rank, are routing; the right
/// elements in the wrong order, alike on every rank, are a loader that wrote for another layout.
fn slot_finding(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    arm: &ArmView<'_>,
    slot: &SlotName,
    ranks: &[(Rank, Mismatch)],
) {
    let phase = &arm.phases[site.1];
    let text = "sentinels show elements out of place";
    let found = symptom("origins", step(phase), 0, text);
    let packed_by = phase.packed_by(slot);
    let explained = |rank: Rank, case: &mut Case<'_, '_>| {
        let rank = case.rank_index(site.0, rank);
        packed_by.is_some_and(|by| case.explain(Room::Routing, &by.0, rank, site, found.clone()))
            || case.explain(Room::Routing, &slot.0, rank, site, found.clone())
    };
    let open: Vec<bool> = ranks.iter().map(|(rank, _)| !explained(*rank, case)).collect();
    if !open.contains(&true) {
        return;
    }
    let foreign = ranks.iter().any(|(_, m)| m.foreign > 0);
    let misplaced = ranks.iter().any(|(_, m)| m.foreign > 0 || m.reordered > 0);
    let counts = |m: &Mismatch| (m.right, m.reordered, m.unloaded.values().sum::<u64>());
    let alike = ranks.len() as u32 == arm.header.topology.size()
        && ranks.windows(2).all(|pair| counts(&pair[0].1) == counts(&pair[1].1));
    let open = ranks.iter().zip(open).filter(|(_, open)| *open).map(|(rank, _)| rank.clone());
    let ranks: &[(Rank, Mismatch)] = &open.collect::<Vec<_>>();
    unloaded(case, site, phase, slot, ranks);
    if !misplaced {
        return;
    }
    let code =
        if foreign || !alike { FindingCode::ShardMisplaced } else { FindingCode::LoaderStale };
    for (rank, mismatch) in ranks {
        let (at, want, found) = mismatch.first.clone().unwrap_or_default();
        let seq = phase.origins.get(&(*rank, slot)).map_or(0, |seen| seen.seq);
        let finding = Finding::new(code, slot.0.clone(), case.rank_index(site.0, *rank))
            .expected(format!("element {at} is {want}"), format!("element {at} is {found}"))
            .why(why(code, mismatch))
            .event("read-back", step(phase), seq, format!("element {at} decodes to {found}"));
        case.raise(finding, site, &[&slot.0]);
    }
}

fn why(code: FindingCode, mismatch: &Mismatch) -> String {
    let counts = format!(
        "{} elements are right, {} stand elsewhere in the slot, {} belong to another rank or slot, \
         {} came from no source",
        mismatch.right,
        mismatch.reordered,
        mismatch.foreign,
        mismatch.unloaded.values().sum::<u64>()
    );
    match code {
        FindingCode::LoaderStale => {
            format!(
                "on every rank the right elements stand in the order of another layout: {counts}"
            )
        }
        _ => format!("the shard does not follow the rank: {counts}"),
    }
}

/// Sources of which no element is misplaced anywhere, and some are not there at all.
fn unloaded(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    phase: &PhaseView<'_>,
    slot: &SlotName,
    ranks: &[(Rank, Mismatch)],
) {
    let misplaced: BTreeSet<&String> =
        ranks.iter().flat_map(|(_, mismatch)| &mismatch.misplaced).collect();
    for (rank, mismatch) in ranks {
        let gone = mismatch.unloaded.iter().filter(|(source, _)| !misplaced.contains(source));
        for (source, elements) in gone {
            // What the ranks say that they passed over reached no slot at all.
            let (code, why) = if passed_over(phase, source) {
                (FindingCode::SourceUnrouted, "it was delivered, and every rank passed it over")
            } else {
                let why = "it was delivered, and these elements of its slot were not written";
                (FindingCode::ApplicationMissing, why)
            };
            let finding = Finding::new(code, source.clone(), case.rank_index(site.0, *rank))
                .expected(
                    format!("all of `{source}` in `{slot}`"),
                    format!("{elements} elements of `{slot}` hold no sentinel of it"),
                )
                .why(why)
                .event("read-back", step(phase), 0, format!("`{slot}` decodes to no source"));
            case.raise(finding, site, &[&slot.0]);
        }
    }
}

/// Whether every rank's receipt lists the source among those that no slot took.
fn passed_over(phase: &PhaseView<'_>, source: &str) -> bool {
    let lists = |rank: Rank| {
        let mut own = phase.receipts.iter().filter(|receipt| receipt.rank == rank);
        own.any(|receipt| receipt.fact.unrouted.iter().any(|other| other == source))
    };
    let ranks: BTreeSet<Rank> = phase.receipts.iter().map(|receipt| receipt.rank).collect();
    !ranks.is_empty() && ranks.into_iter().all(lists)
}

fn step(phase: &PhaseView<'_>) -> &'static str {
    phase.steps.last().map_or("", |step| step.name.name())
}

/// Padding must hold its declared fill, in every arm.
fn padding(case: &mut Case<'_, '_>) {
    let view = case.view;
    for (index, arm) in view.arms.iter().enumerate() {
        for (phase_index, phase) in arm.phases.iter().enumerate() {
            for ((rank, slot), read) in &phase.read_backs {
                if read.fact.padding_written == 0 {
                    continue;
                }
                let finding = Finding::new(
                    FindingCode::PaddingWritten,
                    slot.0.clone(),
                    case.rank_index(index, *rank),
                )
                .expected("0 in all padding", format!("{} elements", read.fact.padding_written))
                .why("no source fills these elements, so their declared fill must be there")
                .event(
                    "read-back",
                    phase.step_name(read.step),
                    read.seq,
                    "padding is not 0",
                );
                case.raise(finding, (index, phase_index), &[&slot.0]);
            }
        }
    }
}
