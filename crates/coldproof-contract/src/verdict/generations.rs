//! Which generation ranks say that they serve, and which one their bytes are of (R41, R43, R44).

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, symptom};
use super::{Finding, FindingCode, Site};
use crate::evidence::{ArmView, Holds, PhaseView, Tally, View};
use crate::words::{CheckpointLabel, Rank, SlotKind};

/// With one source alone, the source that went nowhere says it all.
const SOURCES_MIN: usize = 2;

/// Judges what parameters hold after each update as a whole, before any room judges slot by slot: a
/// whole rank, or a whole engine, that holds the old generation is one finding.
pub(super) fn check_bytes(case: &mut Case<'_, '_>) {
    let view = case.view;
    for (index, arm) in view.arms.iter().enumerate() {
        for (phase_index, phase) in arm.phases.iter().enumerate() {
            let site = (index, phase_index);
            if same_bytes(view, arm, phase_index) {
                continue;
            }
            let ranks: BTreeMap<Rank, Tally> = (arm.header.topology.ranks())
                .filter_map(|rank| {
                    Some((rank, *case.comparison.tallies.get(&(index, phase_index, rank))?))
                })
                .collect();
            let stale = |tally: &Tally| tally.old > 0 && tally.renewed == 0 && tally.neither == 0;
            let fresh = |tally: &Tally| tally.renewed > 0 && tally.old == 0 && tally.neither == 0;
            let old: BTreeSet<Rank> =
                ranks.iter().filter(|(_, tally)| stale(tally)).map(|(rank, _)| *rank).collect();
            let rest = ranks.iter().filter(|(rank, _)| !old.contains(rank));
            let rest: Vec<bool> = rest.map(|(_, tally)| fresh(tally)).collect();
            if old.is_empty() || stale_sources(case, site, &old).len() < SOURCES_MIN {
                continue;
            }
            if rest.is_empty() {
                without_effect(case, site, arm, &old);
            } else if rest.iter().all(|fresh| *fresh) {
                mixed_bytes(case, site, phase, &old);
            }
        }
    }
}

/// Whether an update is to a checkpoint of the bytes that were served before it: to hold them is
/// right, and tells nothing.
fn same_bytes(view: &View<'_>, arm: &ArmView<'_>, phase: usize) -> bool {
    let Some(phase) = arm.phases.get(phase) else { return false };
    let sources = |at: Option<&CheckpointLabel>| {
        let file = at.and_then(|at| {
            let header = view.checkpoint(at)?;
            header.content.as_ref().map_or(Some(header), |content| view.checkpoint(content))
        });
        file.map(|file| &file.sources)
    };
    let (from, to) = (sources(phase.from), sources(phase.at));
    from.is_some() && from == to
}

/// Sources, or slots that are no bijection of theirs, that these ranks hold old bytes of.
fn stale_sources<'r>(case: &Case<'_, 'r>, site: Site, ranks: &BTreeSet<Rank>) -> BTreeSet<&'r str> {
    let mut sources = BTreeSet::new();
    for difference in &case.comparison.differences {
        let here = (case.arm_index(difference.arm), difference.phase_index) == site;
        let parameter = difference.slot.slot_kind == SlotKind::Parameter;
        if here && parameter && ranks.contains(&difference.rank) {
            sources.extend(difference.pieces.iter().map(|piece| piece.piece.source.as_str()));
            if difference.pieces.is_empty() {
                sources.insert(&difference.slot.slot.0);
            }
        }
    }
    sources
}

/// Every slot that these ranks hold old bytes in: parameters, and what follows them.
fn stale_slots<'r>(case: &Case<'_, 'r>, site: Site, ranks: &BTreeSet<Rank>) -> Vec<&'r str> {
    let here = case.comparison.differences.iter().filter(|difference| {
        (case.arm_index(difference.arm), difference.phase_index) == site
            && ranks.contains(&difference.rank)
            && difference.holds == Holds::Old
            && difference.slot.slot_kind != SlotKind::Buffer
    });
    here.map(|difference| difference.slot.slot.0.as_str()).collect()
}

fn without_effect(case: &mut Case<'_, '_>, site: Site, arm: &ArmView<'_>, old: &BTreeSet<Rank>) {
    let Some(announced) = announced(arm, site.1) else { return };
    // An engine that never takes an update is one fault, whatever it calls each of them.
    let known = case.findings().iter().find(|f| f.code == FindingCode::LabelWithoutEffect);
    let object = known.map_or_else(|| format!("generation {announced}"), |f| f.object.clone());
    let slots = stale_slots(case, site, old);
    for rank in old {
        let finding = Finding::new(
            FindingCode::LabelWithoutEffect,
            object.as_str(),
            case.rank_index(site.0, *rank),
        )
        .expected(
            format!("the bytes of generation {announced}"),
            format!("every parameter still holds the bytes before `{}`", arm.phases[site.1].phase),
        )
        .why("the engine announces a generation of which not one byte is there");
        case.raise(finding, site, &slots);
    }
}

fn mixed_bytes(case: &mut Case<'_, '_>, site: Site, phase: &PhaseView<'_>, old: &BTreeSet<Rank>) {
    let slots = stale_slots(case, site, old);
    let actual = format!("every parameter of {} ranks still holds the old bytes", old.len());
    passed_over(case, site, phase, old, &actual, &slots);
}

/// Ranks that an update did not reach, where it reached all others. An engine that passes ranks
/// over is one fault, in whichever transactions it does.
pub(crate) fn passed_over(
    case: &mut Case<'_, '_>,
    site: Site,
    phase: &PhaseView<'_>,
    ranks: &BTreeSet<Rank>,
    actual: &str,
    slots: &[&str],
) {
    let known = case.findings().iter().find(|f| f.code == FindingCode::MixedGeneration);
    let object = known.map_or_else(|| object(phase), |finding| finding.object.clone());
    for rank in ranks {
        let rank = case.rank_index(site.0, *rank);
        let finding = Finding::new(FindingCode::MixedGeneration, object.as_str(), rank)
            .expected("one generation on all ranks", actual)
            .why("no rank may publish alone");
        case.raise(finding, site, slots);
    }
}

/// The newest generation that is announced in a phase, if it is newer than any before.
fn announced(arm: &ArmView<'_>, phase: usize) -> Option<u64> {
    let newest = |phase: &PhaseView<'_>| {
        let receipts = phase.receipts.iter().filter(|receipt| receipt.fact.committed);
        let receipts = receipts.map(|receipt| receipt.fact.generation.0);
        let claims = phase.claims.iter().filter(|claim| claim.fact.what == "generation");
        receipts.chain(claims.filter_map(|claim| claim.fact.value.parse().ok())).max()
    };
    let before = arm.phases.get(..phase)?.iter().filter_map(newest).max();
    let now = newest(arm.phases.get(phase)?)?;
    (Some(now) > before).then_some(now)
}

/// The last transaction of a phase, as the object of a finding about all its ranks.
fn object(phase: &PhaseView<'_>) -> String {
    let last = phase.receipts.last().map(|receipt| receipt.fact.transaction.0);
    last.map_or_else(|| format!("update `{}`", phase.phase), |last| format!("transaction {last}"))
}

/// Tensors that a rank says it still holds, and a generation that is served and that no receipt of
/// the rank states.
pub(super) fn check_receipts(case: &mut Case<'_, '_>, site: Site, phase: &PhaseView<'_>) {
    let Some(last) = phase.receipts.last().map(|receipt| receipt.fact.transaction) else { return };
    if phase.failed_step().is_some() {
        return;
    }
    let receipts = phase.receipts.iter().filter(|receipt| receipt.fact.transaction == last);
    let mut stated: BTreeMap<Rank, u64> = BTreeMap::new();
    for receipt in receipts {
        let rank = case.rank_index(site.0, receipt.rank);
        stated.insert(receipt.rank, receipt.fact.generation.0);
        for tensor in &receipt.fact.buffered {
            let finding = Finding::new(FindingCode::ApplicationMissing, tensor, rank)
                .expected("applied before the rank commits", "held and not applied")
                .why("the rank's own receipt says that it keeps this tensor for later")
                .event("receipt", phase.step_name(receipt.step), receipt.seq, "buffered");
            case.raise(finding, site, &[]);
        }
    }
    let claims = phase.claims.iter().filter(|claim| claim.fact.what == "generation");
    let served: BTreeMap<Rank, u64> =
        claims.filter_map(|claim| Some((claim.rank, claim.fact.value.parse().ok()?))).collect();
    let wrong: Vec<(Rank, u64, u64)> = (served.iter())
        .filter_map(|(rank, served)| Some((*rank, *served, *stated.get(rank)?)))
        .filter(|(_, served, stated)| served != stated)
        .collect();
    let code = if wrong.len() == served.len() {
        FindingCode::LabelWithoutEffect
    } else {
        FindingCode::MixedGeneration
    };
    let known = case.findings().iter().find(|f| f.code == code).map(|f| f.object.clone());
    let object = known.unwrap_or_else(|| match code {
        FindingCode::LabelWithoutEffect => format!("generation of `{}`", phase.phase),
        _ => object(phase),
    });
    for (rank, served, stated) in wrong {
        let finding = Finding::new(code, object.as_str(), case.rank_index(site.0, rank))
            .expected(format!("generation {stated}, by its receipt"), format!("{served}"))
            .why("the generation that a rank announces is the one that it committed");
        case.raise(finding, site, &[]);
    }
}

/// All ranks say that they committed, and that they serve one generation.
pub(super) fn check_claims(case: &mut Case<'_, '_>, site: Site, phase: &PhaseView<'_>) {
    let Some(last) = phase.receipts.last().map(|receipt| receipt.fact.transaction) else { return };
    let receipts = phase.receipts.iter().filter(|receipt| receipt.fact.transaction == last);
    let stated: BTreeMap<Rank, (u64, bool)> = receipts
        .map(|receipt| (receipt.rank, (receipt.fact.generation.0, receipt.fact.committed)))
        .collect();
    let mut claimed: BTreeMap<(u64, bool), BTreeSet<u32>> = BTreeMap::new();
    for (rank, stated) in stated {
        claimed.entry(stated).or_default().insert(case.rank_index(site.0, rank));
    }
    let uncommitted = claimed.keys().any(|(_, committed)| !committed);
    if (claimed.len() < 2 && !uncommitted) || phase.failed_step().is_some() {
        return;
    }
    let text: Vec<String> = claimed
        .iter()
        .map(|((generation, committed), ranks)| {
            let word = if *committed { "" } else { " uncommitted" };
            format!("{generation}{word} on ranks {ranks:?}")
        })
        .collect();
    // Where no rank committed, the bytes that are missing say it already.
    let found = symptom("receipt", "finalize", 0, text.join(", "));
    if claimed.len() < 2 && case.join_site(site, &found, |_| true) {
        return;
    }
    let ranks: BTreeSet<u32> = claimed.into_values().flatten().collect();
    let first = ranks.first().copied().unwrap_or(0);
    let mut finding = Finding::new(FindingCode::MixedGeneration, object(phase), first)
        .expected("one generation on all ranks", text.join(", "))
        .why("no rank may publish alone");
    finding.ranks = ranks.into_iter().collect();
    case.raise(finding, site, &[]);
}
