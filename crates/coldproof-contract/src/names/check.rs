//! Every name that was promised arrived, was resolved to its slot, and nothing else was; and every
//! parameter has a name that fills it (R34, R35).

use std::collections::{BTreeMap, BTreeSet};

use super::{KeyClass, KeyError, KeyManifest, KeyManifestDraft, KeyPattern};
use crate::evidence::{
    ArmView, CheckpointHeader, Difference, LaneName, ManifestFact, PhaseView, Seen, StepOutcome,
    StepView,
};
use crate::routing::SourceRule;
use crate::verdict::{Case, Finding, FindingCode, Room, Site, symptom};
use crate::words::{Rank, SlotKind, StepName};

/// Judges category 6.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let mut spellings = BTreeSet::new();
    for (index, arm) in view.arms.iter().enumerate() {
        for (phase_index, phase) in arm.phases.iter().enumerate() {
            manifests(case, (index, phase_index), arm, phase);
            if arm.header.lane == LaneName::Names {
                count(case, arm, phase);
                spellings.extend(phase.from.and(phase.at).map(|at| at.0.clone()));
            }
        }
    }
    for difference in &case.comparison.differences {
        let arm = view.arm(difference.arm);
        if arm.is_some_and(|arm| arm.header.lane == LaneName::Names) {
            other_spelling(case, difference);
        }
    }
    let covered = view.ran(LaneName::Names);
    let coverage = case.cover(Room::Names);
    coverage.covered = covered;
    if covered && coverage.checks == 0 {
        coverage.undecided.insert("no source was read back under its name".to_owned());
    }
    coverage.proven = format!(
        "{} sources resolved to their slots and back, in {} deliveries",
        coverage.checks,
        spellings.len()
    );
}

/// Promised against delivered against resolved. What no rank took, and what no source fills, is
/// judged in the names lane alone.
fn manifests(case: &mut Case<'_, '_>, site: Site, arm: &ArmView<'_>, phase: &PhaseView<'_>) {
    // The last one: those before it were sealed, and say nothing of what came.
    let Some(seen) = phase.manifests.last() else { return };
    let Some(sealed) = sealed(case, site, phase, seen.fact) else { return };
    let resolves = arm.header.lane == LaneName::Names;
    let refused = if resolves { refused(case, arm, phase) } else { BTreeSet::new() };
    account(case, site, phase, seen, &sealed, &refused);
    if resolves {
        unfilled(case, site, phase, &sealed);
    }
}

/// The promise as a sealed manifest, if it does not contradict itself. One that says nothing of a
/// source of the model promises the rest all the same.
fn sealed(
    case: &mut Case<'_, '_>,
    site: Site,
    phase: &PhaseView<'_>,
    fact: &ManifestFact,
) -> Option<KeyManifest> {
    let draft = KeyManifestDraft {
        required: fact.required.iter().cloned().collect(),
        explicitly_preserved: fact.explicitly_preserved.iter().cloned().collect(),
        allowed_missing: fact.allowed_missing.iter().cloned().map(KeyPattern).collect(),
    };
    let needed = case.view.rules_of(phase).iter().map(|rule| rule.source.as_str());
    let error = match draft.clone().seal(needed) {
        Ok(sealed) => return Some(sealed),
        Err(error) => error,
    };
    let arm = &case.view.arms[site.0].header.arm;
    let text = format!("the manifest of arm `{arm}` in `{}`: {error}", phase.phase);
    case.cover(Room::Names).undecided.insert(text);
    draft.seal([""; 0]).ok()
}

/// Sources that no rank took, by the ranks' own receipts. What the cold load of a model that the
/// catalogue does not know left out as well is no fault of the update, and unseen.
fn refused<'r>(
    case: &mut Case<'_, '_>,
    arm: &ArmView<'_>,
    phase: &PhaseView<'r>,
) -> BTreeSet<&'r str> {
    let ranks: BTreeSet<Rank> = phase.receipts.iter().map(|receipt| receipt.rank).collect();
    let mut refused: BTreeMap<&str, BTreeSet<Rank>> = BTreeMap::new();
    for receipt in &phase.receipts {
        for source in &receipt.fact.unrouted {
            refused.entry(source).or_default().insert(receipt.rank);
        }
    }
    refused.retain(|_, by| *by == ranks);
    let left_out: BTreeSet<&str> = case.view.left_out_by_all(arm);
    refused.retain(|source, _| {
        let fault = !left_out.contains(source);
        if !fault {
            case.unseen.insert(format!("{source} (the cold load leaves it out as well)"));
        }
        fault
    });
    refused.into_keys().collect()
}

/// Raises what an account of one manifest leaves open.
fn account(
    case: &mut Case<'_, '_>,
    site: Site,
    phase: &PhaseView<'_>,
    seen: &Seen<'_, ManifestFact>,
    sealed: &KeyManifest,
    refused: &BTreeSet<&str>,
) {
    let mut account = sealed.open();
    let mut errors = Vec::new();
    for source in &seen.fact.delivered {
        match account.delivered(source) {
            Err(error @ KeyError::Unexpected { .. }) => errors.push(error),
            // Chunks and repeats are judged by what they were applied to, and what is preserved
            // by the bytes that are there.
            Err(_) => {}
            Ok(()) if refused.contains(source.as_str()) => {}
            Ok(()) => errors.extend(account.consumed(source).err()),
        }
    }
    // Of a delivery that broke off, only what came is judged.
    if whole(phase) {
        errors.extend(account.finish());
    }
    let step = phase.step_name(seen.step);
    let scope = format!("scope from {}", seen.fact.origin);
    for error in errors {
        let finding = match &error {
            KeyError::Missing { source_name } => {
                Finding::new(FindingCode::SourceMissing, source_name.as_str(), 0)
                    .expected("delivered", "never delivered")
                    .why("the sealed manifest requires it")
            }
            KeyError::Unexpected { source_name } => {
                Finding::new(FindingCode::SourceUnexpected, source_name.as_str(), 0)
                    .expected("nothing of this name", "delivered")
                    .why("the sealed manifest neither requires nor allows it")
            }
            KeyError::NotConsumed { source_name }
                if sealed.class(source_name) == KeyClass::Required =>
            {
                unrouted(case, site, phase, source_name);
                continue;
            }
            _ => continue,
        };
        case.raise(finding.event("sealed", step, seen.seq, scope.as_str()), site, &[]);
    }
}

/// Whether the engine took the whole delivery.
fn whole(phase: &PhaseView<'_>) -> bool {
    let took = |step: &StepView| {
        step.name == StepName::Update && step.outcome.as_ref() == Some(&StepOutcome::Ok)
    };
    phase.steps.iter().any(took)
}

fn unrouted(case: &mut Case<'_, '_>, site: Site, phase: &PhaseView<'_>, source: &str) {
    let ranks: BTreeSet<Rank> = phase.receipts.iter().map(|receipt| receipt.rank).collect();
    let ranks: Vec<u32> = ranks.into_iter().map(|rank| case.rank_index(site.0, rank)).collect();
    let first = ranks.first().copied().unwrap_or(0);
    let view = case.view;
    let arm = &view.arms[site.0];
    let mut finding = Finding::new(FindingCode::SourceUnrouted, source, first)
        .expected("resolved to its slot", "resolved to no slot on any rank")
        .why(format!(
            "the engine took the delivery of arm `{}` and says itself that no slot took this",
            arm.header.arm
        ));
    finding.ranks = ranks;
    let slots = view.slots_of(arm, &arm.phases[site.1], source);
    let slots: Vec<&str> = slots.iter().map(|slot| slot.0.as_str()).collect();
    case.raise(finding, site, &slots);
}

/// Parameters that the engine registers and no source of the catalogue fills: no update reaches
/// them. Another name of a slot that is filled is filled, and so is a name that the
/// caller leaves out on purpose.
fn unfilled(case: &mut Case<'_, '_>, site: Site, phase: &PhaseView<'_>, sealed: &KeyManifest) {
    let filled: BTreeSet<_> = case.view.rules_of(phase).iter().map(|rule| &rule.slot).collect();
    if filled.is_empty() {
        return;
    }
    let shared = phase.slots.iter().filter(|((_, name), _)| filled.contains(name));
    let shared: BTreeSet<_> = shared.flat_map(|(_, slot)| &slot.fact.aliases).collect();
    for ((rank, name), slot) in &phase.slots {
        let known = filled.contains(name)
            || shared.contains(name)
            || sealed.class(&name.0) != KeyClass::Unexpected;
        if known || slot.fact.slot_kind != SlotKind::Parameter {
            continue;
        }
        let rank = case.rank_index(site.0, *rank);
        let finding = Finding::new(FindingCode::SourceMissing, &name.0, rank)
            .expected("filled by a source of the catalogue", "no source leads to it")
            .why("the engine registers it as a parameter, which only a source can fill")
            .event("registered", phase.step_name(slot.step), slot.seq, "as a parameter");
        case.raise(finding, site, &[&name.0]);
    }
}

/// Sources of this phase that are in their slots under the name they were sent by.
fn count(case: &mut Case<'_, '_>, arm: &ArmView<'_>, phase: &PhaseView<'_>) {
    let content = case.view.content(phase.at);
    let Some(file) = content.and_then(|at| case.view.checkpoint(at)) else { return };
    let wanted: BTreeMap<&str, _> =
        file.sources.iter().map(|source| (source.name.as_str(), source)).collect();
    let right = phase.sources.iter().filter(|(name, read)| {
        let source = wanted.get(**name);
        source.is_some_and(|source| case.view.is_file(arm, phase, source, read.fact))
    });
    let right = right.count() as u64;
    let coverage = case.cover(Room::Names);
    coverage.checks += right;
    if phase.from.is_some() && right == 0 {
        let text = format!("arm `{}` put no source of `{}` in place", arm.header.arm, phase.phase);
        coverage.undecided.insert(text);
    }
}

/// The checkpoint of other names that was delivered when this difference showed.
fn spelling<'r>(case: &Case<'_, 'r>, difference: &Difference<'_>) -> Option<&'r CheckpointHeader> {
    let arm = case.view.arm(difference.arm)?;
    case.view.spelling(arm.phases.get(difference.phase_index)?)
}

/// Whether the elements of a source are in the slot all the same: of the slot's pieces that differ
/// none is that which the source has under its usual name.
fn is_there(case: &Case<'_, '_>, rule: &SourceRule, difference: &Difference<'_>) -> bool {
    let same = |usual: &&SourceRule| usual.slot == rule.slot && usual.sharding == rule.sharding;
    let usual = case.view.header.rules.iter().find(same);
    let differs = |usual: &SourceRule| {
        difference.pieces.iter().any(|differing| differing.piece.source == usual.source)
    };
    !difference.pieces.is_empty() && usual.is_some_and(|usual| !differs(usual))
}

/// The same content under other names left a slot as it was: the names were not resolved.
fn other_spelling(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let view = case.view;
    if difference.slot.slot_kind != SlotKind::Parameter {
        return;
    }
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let Some(checkpoint) = spelling(case, difference) else { return };
    let slot = &difference.slot.slot;
    // What is wrong under its usual names too is no matter of names.
    let elsewhere = case
        .comparison
        .differences
        .iter()
        .any(|other| other.slot.slot == *slot && spelling(case, other).is_none());
    let rank = case.rank_index(site.0, difference.rank);
    if elsewhere || case.blamed_finding(&slot.0, site.0, rank).is_some() {
        return;
    }
    let usual: BTreeSet<&str> = view.header.rules.iter().map(|rule| rule.source.as_str()).collect();
    let renamed = checkpoint
        .rules
        .iter()
        .filter(|rule| rule.slot == *slot && !usual.contains(rule.source.as_str()));
    for rule in renamed.filter(|rule| !is_there(case, rule, difference)).collect::<Vec<_>>() {
        let step = view.arms[site.0].step_name(difference.read.step);
        let mut finding = Finding::new(FindingCode::SourceUnrouted, rule.source.clone(), rank)
            .expected(format!("resolved to `{slot}`"), format!("`{slot}` was not written"))
            .why("the same content under its usual names reaches the slot");
        let text = crate::derived::read_text(difference);
        finding.events.push(symptom("read-back", step, difference.read.seq, text));
        case.raise(finding, site, &[&slot.0]);
    }
}
