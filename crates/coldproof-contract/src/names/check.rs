//! Every name that was promised arrived, was resolved to its slot, and nothing else was (R34, R35).

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{ArmView, Difference, LaneName, PhaseView, StepOutcome, StepView};
use crate::verdict::{Case, Finding, FindingCode, Room, symptom};
use crate::words::{Rank, SlotKind, StepName};

/// Judges category 6.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let mut spellings = BTreeSet::new();
    for (index, arm) in view.arms.iter().enumerate() {
        for (phase_index, phase) in arm.phases.iter().enumerate() {
            manifest(case, (index, phase_index), phase);
            if arm.header.lane == LaneName::Names {
                unrouted(case, (index, phase_index), arm, phase);
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

/// Promised against delivered. Of a delivery that broke off, only what came is judged: what did not
/// come is no fault of the names.
fn manifest(case: &mut Case<'_, '_>, site: (usize, usize), phase: &PhaseView<'_>) {
    let took = |step: &StepView| {
        step.name == StepName::Update && step.outcome.as_ref() == Some(&StepOutcome::Ok)
    };
    let whole = phase.steps.iter().any(took);
    // The last one: those before it were sealed, and say nothing of what came.
    if let Some(seen) = phase.manifests.last() {
        let fact = seen.fact;
        let required: BTreeSet<&str> = fact.required.iter().map(String::as_str).collect();
        let known: BTreeSet<&str> = (fact.required.iter())
            .chain(&fact.allowed_missing)
            .chain(&fact.explicitly_preserved)
            .map(String::as_str)
            .collect();
        let delivered: BTreeSet<&str> = fact.delivered.iter().map(String::as_str).collect();
        let step = phase.step_name(seen.step);
        for source in required.difference(&delivered).filter(|_| whole) {
            let finding = Finding::new(FindingCode::SourceMissing, *source, 0)
                .expected("delivered", "never delivered")
                .why("the sealed manifest requires it")
                .event("sealed", step, seen.seq, format!("scope from {}", fact.origin));
            case.raise(finding, site, &[]);
        }
        for source in delivered.difference(&known) {
            let finding = Finding::new(FindingCode::SourceUnexpected, *source, 0)
                .expected("nothing of this name", "delivered")
                .why("the sealed manifest neither requires nor allows it")
                .event("sealed", step, seen.seq, format!("scope from {}", fact.origin));
            case.raise(finding, site, &[]);
        }
    }
}

/// Required sources that no rank took, by the ranks' own receipts.
fn unrouted(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    arm: &ArmView<'_>,
    phase: &PhaseView<'_>,
) {
    let Some(manifest) = phase.manifests.last() else { return };
    let ranks: BTreeSet<Rank> = phase.receipts.iter().map(|receipt| receipt.rank).collect();
    let mut refused: BTreeMap<&str, BTreeSet<Rank>> = BTreeMap::new();
    for receipt in &phase.receipts {
        for source in &receipt.fact.unrouted {
            refused.entry(source).or_default().insert(receipt.rank);
        }
    }
    for (source, by) in refused {
        if by != ranks || !manifest.fact.required.iter().any(|required| required == source) {
            continue;
        }
        let by: Vec<u32> = by.into_iter().map(|rank| case.rank_index(site.0, rank)).collect();
        let first = by.first().copied().unwrap_or(0);
        let mut finding = Finding::new(FindingCode::SourceUnrouted, source, first)
            .expected("resolved to its slot", "resolved to no slot on any rank")
            .why(format!(
                "the engine took the delivery of arm `{}` and says itself that no slot took this",
                arm.header.arm
            ));
        finding.ranks = by;
        let slots = slots_of(case, phase, source);
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        case.raise(finding, site, &slots);
    }
}

fn slots_of(case: &Case<'_, '_>, phase: &PhaseView<'_>, source: &str) -> Vec<String> {
    let checkpoint = phase.at.and_then(|at| case.view.checkpoint(at));
    let own = checkpoint.into_iter().flat_map(|checkpoint| &checkpoint.rules);
    let rules = own.chain(&case.view.header.rules);
    rules.filter(|rule| rule.source == source).map(|rule| rule.slot.0.clone()).take(1).collect()
}

/// Sources of this phase that are in their slots under the name they were sent by.
fn count(case: &mut Case<'_, '_>, arm: &ArmView<'_>, phase: &PhaseView<'_>) {
    let content = case.view.content(phase.at);
    let Some(file) = content.and_then(|at| case.view.checkpoint(at)) else { return };
    let wanted: BTreeMap<&str, _> =
        file.sources.iter().map(|source| (source.name.as_str(), source.digest)).collect();
    let right = phase.sources.iter().filter(|(name, read)| {
        read.fact.digest.is_some() && read.fact.digest.as_ref() == wanted.get(**name)
    });
    let right = right.count() as u64;
    let coverage = case.cover(Room::Names);
    coverage.checks += right;
    if phase.from.is_some() && right == 0 {
        let text = format!("arm `{}` put no source of `{}` in place", arm.header.arm, phase.phase);
        coverage.undecided.insert(text);
    }
}

/// The same content under other names left a slot as it was: the names were not resolved.
fn other_spelling(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let view = case.view;
    if difference.slot.slot_kind != SlotKind::Parameter {
        return;
    }
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let phase = &view.arms[site.0].phases[site.1];
    let checkpoint = phase.at.and_then(|at| view.checkpoint(at));
    let Some(checkpoint) = checkpoint.filter(|checkpoint| !checkpoint.rules.is_empty()) else {
        return;
    };
    let slot = &difference.slot.slot;
    let elsewhere = case.comparison.differences.iter().any(|other| {
        other.slot.slot == *slot
            && view.arm(other.arm).is_some_and(|arm| arm.header.lane != LaneName::Names)
    });
    let rank = case.rank_index(site.0, difference.rank);
    if elsewhere || case.blamed_finding(&slot.0, site.0, rank).is_some() {
        return;
    }
    let usual: BTreeSet<&str> = view.header.rules.iter().map(|rule| rule.source.as_str()).collect();
    let renamed = checkpoint
        .rules
        .iter()
        .filter(|rule| rule.slot == *slot && !usual.contains(rule.source.as_str()));
    for rule in renamed {
        let step = view.arms[site.0].step_name(difference.read.step);
        let mut finding = Finding::new(FindingCode::SourceUnrouted, rule.source.clone(), rank)
            .expected(format!("resolved to `{slot}`"), format!("`{slot}` was not written"))
            .why("the same content under its usual names reaches the slot");
        let text = crate::derived::read_text(difference);
        finding.events.push(symptom("read-back", step, difference.read.seq, text));
        case.raise(finding, site, &[&slot.0]);
    }
}
