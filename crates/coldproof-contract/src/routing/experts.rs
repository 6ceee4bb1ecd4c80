//! Experts that moved between ranks: the map that the forward reads is the one that was ordered,
//! and the bytes of each expert are where it says (R63).

use std::collections::{BTreeMap, BTreeSet};

use super::SourceRule;
use crate::evidence::{ArmView, LaneName, PhaseView, Seen, SlotKey};
use crate::verdict::{Case, Finding, FindingCode, Room, Site};
use crate::words::{ExpertPlace, ExpertPlacement, Fragment, Hex128, Rank, Topology};

/// What was seen of experts under a placement that was ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenExperts {
    /// Maps that are as ordered.
    pub maps: u64,
    /// Sources of experts that are where the placement says, with the bytes of their files.
    pub sources: u64,
}

/// Judges maps in every arm, and bytes where experts moved.
pub(super) fn check(case: &mut Case<'_, '_>) -> SeenExperts {
    let view = case.view;
    let mut all = SeenExperts::default();
    for (index, arm) in view.arms.iter().enumerate() {
        for (phase_index, phase) in arm.phases.iter().enumerate() {
            let site = (index, phase_index);
            let maps = maps(case, site, arm, phase);
            if arm.header.lane == LaneName::Placement
                && let Some(placed) = phase.experts
            {
                bytes(case, site, arm, phase);
                all.maps += maps;
                all.sources += sources(case, arm, phase);
                unseen(case, arm, phase, placed);
            }
        }
    }
    all
}

/// Each map and each source of experts that a phase under a placement must show.
fn unseen(
    case: &mut Case<'_, '_>,
    arm: &ArmView<'_>,
    phase: &PhaseView<'_>,
    placed: &ExpertPlacement,
) {
    if phase.failed_step().is_some() {
        return;
    }
    let (view, topology) = (case.view, arm.header.topology);
    let spread =
        |rule: &&SourceRule| rule.experts().is_some() && placed.layer(rule.slot.owner()).is_some();
    let rules: Vec<&SourceRule> = view.rules_of(phase).iter().filter(spread).collect();
    let file = view.content(phase.at).and_then(|at| view.checkpoint(at));
    let delivered: BTreeSet<&str> =
        file.into_iter().flat_map(|file| &file.sources).map(|source| &*source.name).collect();
    let read =
        |source: &str| phase.sources.get(source).is_some_and(|read| read.fact.digest.is_some());
    let mut sources = rules.iter().map(|rule| rule.source.as_str());
    let source = sources.find(|source| delivered.contains(source) && !read(source));
    let mut layers = topology.ranks().flat_map(|rank| {
        let here = rules.iter().filter(move |rule| rule.is_on(topology, rank));
        here.map(move |rule| (rank, rule.slot.owner()))
    });
    let map = layers.find(|at| !phase.expert_maps.contains_key(at));
    let missing = [
        rules.is_empty().then(|| "where experts belong is not known".to_owned()),
        source.map(|source| format!("`{source}` was not read back where it was placed")),
        map.map(|(rank, layer)| format!("the map of `{layer}` on rank {rank} was not read")),
    ];
    for what in missing.into_iter().flatten() {
        case.cover(Room::Routing).undecided.insert(format!("in `{}`: {what}", phase.phase));
    }
}

/// Holds every map that was read against what was ordered; how many are right.
fn maps(case: &mut Case<'_, '_>, site: Site, arm: &ArmView<'_>, phase: &PhaseView<'_>) -> u64 {
    let mut right = 0;
    for ((rank, layer), seen) in &phase.expert_maps {
        let read = &seen.fact.places;
        let wanted = ordered(phase.experts, layer, read.len() as u64, arm.header.topology, *rank);
        let mut experts = 0..wanted.len().max(read.len());
        let Some(expert) = experts.find(|&expert| wanted.get(expert) != read.get(expert)) else {
            right += 1;
            continue;
        };
        let (want, found) = (wanted.get(expert), read.get(expert));
        let map = &seen.fact.map.0;
        let finding =
            Finding::new(FindingCode::ShardMisplaced, map.as_str(), case.rank_index(site.0, *rank))
                .expected(place_text(expert, want), place_text(expert, found))
                .why(
                    "the forward looks for experts where the placement in force does not have them",
                )
                .event(
                    "read-back",
                    phase.step_name(seen.step),
                    seen.seq,
                    place_text(expert, found),
                );
        case.raise(finding, site, &[map]);
    }
    right
}

fn place_text(expert: usize, place: Option<&Option<u64>>) -> String {
    match place {
        Some(Some(place)) => format!("expert {expert} at place {place} of this rank"),
        Some(None) => format!("expert {expert} on another rank"),
        None => format!("no expert {expert}"),
    }
}

/// Where a rank has each expert of a layer: as it was ordered, else consecutive ones.
fn ordered(
    placement: Option<&ExpertPlacement>,
    layer: &str,
    experts: u64,
    topology: Topology,
    rank: Rank,
) -> Vec<Option<u64>> {
    let own = |at: ExpertPlace| (at.ep == rank.ep).then_some(at.place);
    if let Some(placed) = placement.and_then(|placement| placement.layer(layer)) {
        return placed.iter().copied().map(own).collect();
    }
    let each = experts / u64::from(topology.ep.max(1));
    (0..experts).map(|expert| own(ExpertPlace::consecutive(expert, each))).collect()
}

/// A piece of a source.
type Part<'r> = (&'r str, &'r Fragment);

/// Raises slots in which the bytes of one expert stand in the place of another.
fn bytes(case: &mut Case<'_, '_>, site: Site, arm: &ArmView<'_>, phase: &PhaseView<'_>) {
    let known = known(case, site, arm, phase);
    let mut owners: BTreeMap<Hex128, BTreeSet<Part<'_>>> = BTreeMap::new();
    for (part, content) in &known {
        owners.entry(*content).or_default().insert(*part);
    }
    for (key, read) in stacks(phase) {
        let misplaced = read.fact.pieces.iter().find_map(|piece| {
            let part = (piece.source.as_str(), &piece.source_fragment);
            let wanted = known.get(&part)?;
            let found = owners.get(&piece.content)?.first().filter(|_| *wanted != piece.content)?;
            Some((part, *found))
        });
        let Some((wanted, found)) = misplaced else { continue };
        let text = |(source, part): Part<'_>| format!("`{source}` {part}");
        let finding = Finding::new(
            FindingCode::ShardMisplaced,
            key.1.0.as_str(),
            case.rank_index(site.0, key.0),
        )
        .expected(text(wanted), text(found))
        .why("another expert stands where the placement in force has this one")
        .event("read-back", phase.step_name(read.step), read.seq, text(found));
        case.raise(finding, site, &[&key.1.0]);
    }
}

/// Stacks of experts that were placed, as they were read back.
fn stacks<'v, 'r>(
    phase: &'v PhaseView<'r>,
) -> impl Iterator<Item = (SlotKey<'r>, Seen<'r, crate::evidence::ReadBackFact>)> + 'v {
    let placed = |slot: &str| phase.experts.is_some_and(|experts| experts.layer(slot).is_some());
    let own = phase.read_backs.iter().filter(move |((_, slot), _)| placed(slot.owner()));
    own.map(|(key, read)| (*key, **read))
}

/// What the pieces of experts hold wherever they are: in the cold load of what is served, else in
/// earlier phases that served it.
fn known<'r>(
    case: &Case<'_, 'r>,
    site: Site,
    arm: &ArmView<'r>,
    phase: &PhaseView<'r>,
) -> BTreeMap<Part<'r>, Hex128> {
    let at = case.view.content(phase.at);
    let cold = case.view.against(arm).into_iter().flat_map(|cold| &cold.phases);
    let earlier = arm.phases[..site.1].iter();
    let same = cold.chain(earlier).filter(|other| case.view.content(other.at) == at);
    let mut known = BTreeMap::new();
    for read in same.flat_map(|other| other.read_backs.values()) {
        for piece in &read.fact.pieces {
            known.entry((piece.source.as_str(), &piece.source_fragment)).or_insert(piece.content);
        }
    }
    known
}

/// Sources of placed experts that have the bytes of their files.
fn sources(case: &Case<'_, '_>, arm: &ArmView<'_>, phase: &PhaseView<'_>) -> u64 {
    let view = case.view;
    let Some(file) = view.content(phase.at).and_then(|at| view.checkpoint(at)) else { return 0 };
    let names: BTreeSet<&str> = stacks(phase)
        .flat_map(|(_, read)| read.fact.pieces.iter().map(|piece| piece.source.as_str()))
        .collect();
    let own = file.sources.iter().filter(|source| names.contains(source.name.as_str()));
    let right = own.filter(|source| {
        let read = phase.sources.get(source.name.as_str());
        read.is_some_and(|read| view.is_file(arm, phase, source, read.fact))
    });
    right.count() as u64
}
