//! Steps, outputs and liveness of every arm (R49), and what symptoms join.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, ENDED, symptom};
use super::{
    Category, Finding, FindingCode, Room, Status, StepReport, TransitionReport, generations,
    outputs, refused,
};
use crate::evidence::{Ability, ArmView, Fact, LaneName, PhaseView, StepOutcome, StepView};
use crate::transition::TransitionError;
use crate::words::{Address, ByteRange, Rank, StepName};

/// What was compared.
#[derive(Clone, Debug, Default)]
pub(super) struct TransitionCoverage {
    /// Rows of logits that were compared with a cold load's.
    pub rows: u64,
    /// Largest difference between repeats of a request, by arm.
    pub noise: BTreeMap<String, f64>,
    /// Reasons not to pass.
    pub undecided: BTreeSet<String>,
    /// Outputs that differ: a finding of their own, or one that explains them, says why.
    pub symptoms: BTreeSet<String>,
}

/// Judges the transition: outputs of all arms, ends of all steps, the order of the eight.
pub(super) fn check(case: &mut Case<'_, '_>) -> TransitionCoverage {
    let view = case.view;
    let mut coverage = TransitionCoverage::default();
    for (index, arm) in view.arms.iter().enumerate() {
        let name = &arm.header.arm;
        let noise = outputs::noise(arm.phases.iter());
        if noise > 0.0 {
            coverage.undecided.insert(format!("outputs of arm `{name}` are not repeatable"));
        }
        coverage.noise.insert(name.clone(), noise);
        for (phase_index, phase) in arm.phases.iter().enumerate() {
            let site = (index, phase_index);
            if phase.refused {
                if let Some(step) = phase.failed_step() {
                    ended(case, site, step);
                }
                refused::check(case, site);
                continue;
            }
            let compared = outputs::check(case, site);
            coverage.rows += compared.rows;
            coverage.undecided.extend(compared.gaps);
            let label = phase.phase;
            if compared.differ > 0 {
                let text = format!("outputs of arm `{name}` differ after `{label}`");
                coverage.symptoms.insert(text);
            } else if compared.rows == 0 && compared.void > 0 {
                let text = format!("no finite logits of arm `{name}` after `{label}`");
                coverage.undecided.insert(text);
            } else if compared.rows == 0 && must_serve(arm, phase_index) {
                let text = format!("arm `{name}` served nothing to compare after `{label}`");
                coverage.undecided.insert(text);
            }
            if arm.updates() && !phase.moves_experts() {
                order(case, site, phase);
            }
            if let Some(step) = phase.failed_step() {
                ended(case, site, step);
                if absent(arm, step) {
                    continue;
                }
                let text = format!("step `{}` of arm `{name}` did not end well", step.name);
                coverage.undecided.insert(text);
            }
            coverage.undecided.extend(unexercised(case, site));
            generations::check_claims(case, site, phase);
            generations::check_receipts(case, site, phase);
        }
    }
    coverage
}

/// Whether an engine without adapters said so: no matter of a transition of weights.
fn absent(arm: &ArmView<'_>, step: &StepView) -> bool {
    let unsupported = matches!(step.outcome, Some(StepOutcome::Unsupported { .. }));
    unsupported && !arm.updates()
}

/// What an update must show and does not: its steps, its requests, and where it slept the memory
/// that was given back.
fn unexercised(case: &Case<'_, '_>, site: (usize, usize)) -> Vec<String> {
    let arm = &case.view.arms[site.0];
    let phase = &arm.phases[site.1];
    let name = &arm.header.arm;
    let updated = phase.from.is_some() && arm.updates();
    if !updated || phase.failed_step().is_some() {
        return Vec::new();
    }
    let mut texts = Vec::new();
    let missing = if phase.moves_experts() { Vec::new() } else { missing_steps(phase) };
    if !missing.is_empty() {
        let text = missing.join(", ");
        texts.push(format!("arm `{name}` took no step {text} in `{}`", phase.phase));
    }
    if must_serve(arm, site.1) {
        let unserved = outputs::unserved(case, site);
        if !unserved.is_empty() {
            let text = unserved.join(", ");
            texts.push(format!("arm `{name}` did not serve {text} after `{}`", phase.phase));
        }
        for replica in outputs::idle_replicas(arm, phase) {
            let phase = phase.phase;
            let text = format!("replica {replica} of arm `{name}` served nothing after `{phase}`");
            texts.push(text);
        }
    }
    for rank in arm.header.topology.ranks().filter(|_| slept(phase)) {
        if !gave_back(arm, phase, rank) {
            let phase = phase.phase;
            texts.push(format!("rank {rank} of arm `{name}` was not seen to sleep in `{phase}`"));
        }
    }
    texts
}

/// Steps that every update has and this one lacks.
#[must_use]
pub(super) fn missing_steps(phase: &PhaseView<'_>) -> Vec<&'static str> {
    let always = [
        StepName::Pause,
        StepName::Update,
        StepName::Finalize,
        StepName::Invalidate,
        StepName::Resume,
    ];
    let taken = |name: &StepName| phase.steps.iter().any(|step| step.name == *name);
    always.iter().filter(|name| !taken(name)).map(|name| name.name()).collect()
}

fn slept(phase: &PhaseView<'_>) -> bool {
    phase.steps.iter().any(|step| step.name == StepName::Sleep)
}

/// Whether a region was unmapped on this rank in the sleep, before the first wake, and mapped again
/// afterwards.
fn gave_back(arm: &ArmView<'_>, phase: &PhaseView<'_>, rank: Rank) -> bool {
    let step = |name: StepName| phase.steps.iter().find(|step| step.name == name);
    let Some(sleep) = step(StepName::Sleep).map(|step| step.step) else { return false };
    let wake = step(StepName::WakeWeights).map_or(u32::MAX, |step| step.step);
    let last = phase.steps.last().map_or(sleep, |step| step.step);
    let mut asleep: BTreeSet<&str> = BTreeSet::new();
    let mut woken = false;
    for event in arm.events.iter().filter(|event| event.rank == rank) {
        let Fact::Region(region) = &event.fact else { continue };
        if !region.mapped && (sleep..wake).contains(&event.step) {
            asleep.insert(&region.region);
        } else if region.mapped && (wake..=last).contains(&event.step) {
            woken |= asleep.contains(region.region.as_str());
        }
    }
    woken
}

/// Phases whose outputs the transition is judged by: each update of the composite lane, and the
/// last of the differential lane, which ends with the new generation.
fn must_serve(arm: &ArmView<'_>, phase: usize) -> bool {
    let updated = arm.phases.get(phase).is_some_and(|phase| phase.from.is_some());
    let live = arm.header.against.is_some();
    updated
        && live
        && match arm.header.lane {
            LaneName::Composite => true,
            LaneName::Differential | LaneName::Placement => phase + 1 == arm.phases.len(),
            LaneName::Routing
            | LaneName::Names
            | LaneName::Caches
            | LaneName::Adapters
            | LaneName::Partial
            | LaneName::Kernel
            | LaneName::Tiers => false,
        }
}

/// The transition's part of the verdict.
#[must_use]
pub(super) fn report(case: &Case<'_, '_>, coverage: &TransitionCoverage) -> TransitionReport {
    let lane = case.view.arms.iter().find(|arm| arm.header.lane == LaneName::Composite);
    let updated = lane.and_then(|arm| arm.phases.iter().find(|phase| phase.from.is_some()));
    let steps = updated.map(steps).unwrap_or_default();
    let failed = case.findings().iter().any(|f| f.category == Category::Transition);
    let mut undecided = coverage.undecided.clone();
    if coverage.rows == 0 {
        undecided.insert("no output was compared with a cold load's".to_owned());
    }
    let all = expected_steps(case);
    if steps.len() < all {
        undecided.insert(format!("not all {} steps were taken", in_words(all)));
    }
    let explained = undecided.is_empty() && !coverage.symptoms.is_empty();
    undecided.extend(coverage.symptoms.iter().cloned());
    let unsupported = case.view.unsupported(LaneName::Composite);
    let status = match (failed, lane, undecided.is_empty()) {
        (true, _, _) => Status::Fail,
        _ if unsupported.is_some() => Status::NotCovered,
        (false, None, _) => Status::NotCovered,
        (false, Some(_), false) => Status::Undecided,
        (false, Some(_), true) => Status::Pass,
    };
    let reason = match status {
        Status::NotCovered => {
            Some(unsupported.unwrap_or_else(|| "the composite lane did not run".to_owned()))
        }
        Status::Undecided => Some(undecided.into_iter().collect::<Vec<_>>().join("; ")),
        Status::Pass => Some(format!(
            "{} steps in order, {} rows of logits equal to a cold load's, bit for bit{}",
            in_words(all),
            coverage.rows,
            if all < StepName::TRANSITION.len() { "; no sleep: the engine has none" } else { "" }
        )),
        Status::Fail => None,
    };
    let explained = explained && status == Status::Undecided;
    TransitionReport { status, steps, checks: coverage.rows, reason, explained }
}

/// The two numbers of steps that a whole transition has.
const fn in_words(steps: usize) -> &'static str {
    if steps == StepName::TRANSITION.len() { "eight" } else { "five" }
}

/// Steps of the whole transition: sleep and both wakes are left out together where the engine has
/// no sleep.
fn expected_steps(case: &Case<'_, '_>) -> usize {
    let all = StepName::TRANSITION.len();
    if case.view.header.engine.cannot.contains(&Ability::Sleep) { all - 3 } else { all }
}

fn steps(phase: &PhaseView<'_>) -> Vec<StepReport> {
    let taken = phase.steps.iter().filter(|step| StepName::TRANSITION.contains(&step.name));
    taken
        .map(|step| {
            let ms = match step.times {
                (Some(began), Some(ended)) => {
                    Some((ended.saturating_sub(began) / 1_000) as f64 / 1_000.0)
                }
                _ => None,
            };
            StepReport { step: step.name.name(), ms }
        })
        .collect()
}

/// A step that did not end well.
fn ended(case: &mut Case<'_, '_>, site: (usize, usize), step: &StepView) {
    let name = step.name.name();
    let place = |kernel: &Option<String>| match kernel {
        Some(kernel) => format!("{name} (kernel `{kernel}`)"),
        None => name.to_owned(),
    };
    let (code, object, text, address) = match &step.outcome {
        Some(StepOutcome::Timeout { deadline_ms, kernel, address }) => (
            FindingCode::Timeout,
            place(kernel),
            format!("no end within {deadline_ms} ms"),
            *address,
        ),
        Some(StepOutcome::Died { text, kernel, address }) => {
            (FindingCode::EngineDied, place(kernel), text.clone(), *address)
        }
        // After a refused update this is the right answer.
        Some(StepOutcome::Error { .. }) if case.view.arms[site.0].phases[site.1].refused => return,
        Some(StepOutcome::Error { text }) => {
            (FindingCode::StepRefused, name.to_owned(), text.clone(), None)
        }
        // What depends on it is not covered: see `PhaseView::unsupported`.
        Some(StepOutcome::Ok | StepOutcome::Unsupported { .. }) => return,
        None => (FindingCode::EngineDied, name.to_owned(), "the step never ended".to_owned(), None),
    };
    let found = symptom(ENDED, name, 0, format!("step {object}: {text}"));
    // A refusal answers whatever is wrong with the update. A hang or a death is the slot's that it
    // waited on or touched; where that is not known, a stale address may have led anywhere.
    let refused = code == FindingCode::StepRefused;
    let joined = match address.and_then(|address| owner_at(case, site, address)) {
        Some(slot) => case.join_slot(&slot, site, found.clone()),
        None => case.join_site(site, &found, |known| {
            refused || known.category == Category::Room(Room::Storage)
        }),
    };
    if joined {
        return;
    }
    let mut finding = Finding::new(code, object, 0)
        .expected(format!("step `{name}` ends"), text)
        .why("an engine that cannot take the step cannot be the engine of a cold load");
    finding.events.push(found);
    case.raise(finding, site, &[]);
}

/// The slot that was registered at this address in any phase of the arm up to this one.
fn owner_at(case: &Case<'_, '_>, site: (usize, usize), address: Address) -> Option<String> {
    let phases = case.view.arms.get(site.0)?.phases.get(..=site.1)?;
    let mut slots = phases.iter().flat_map(|phase| phase.slots.values());
    let owner = slots.find(|slot| {
        slot.fact.fingerprint.as_ref().is_some_and(|print| {
            ByteRange { address: print.address, bytes: print.bytes().max(1) }.contains(address)
        })
    });
    owner.map(|slot| slot.fact.slot.0.clone())
}

/// Steps of the transition are in their order, and none is left out alone.
///
/// Of a transition that was broken off, a step that was refused is judged: whoever refuses what
/// comes too early is right. A step that the caller said it would leave out is missing, and what
/// that did is a matter of the caches.
fn order(case: &mut Case<'_, '_>, site: (usize, usize), phase: &PhaseView<'_>) {
    let failed = phase.failed_step().map(|step| &step.outcome);
    let refused = matches!(failed, Some(Some(StepOutcome::Error { .. })));
    if failed.is_some() && !refused {
        return;
    }
    let steps: Vec<StepName> = phase.steps.iter().map(|step| step.name).collect();
    for error in crate::transition::check(&steps) {
        let left_out = error.left_out();
        let said = left_out.filter(|step| case.view.header.settings.skipped.contains(step));
        let unfinished = matches!(error, TransitionError::Unfinished { .. });
        if refused && unfinished || !refused && (said.is_some() || stale(case, site, left_out)) {
            continue;
        }
        let object = match said {
            Some(step) => format!("step `{step}`"),
            None => format!("transition `{}`", phase.phase),
        };
        let finding = Finding::new(FindingCode::Order, object, 0)
            .expected(
                "pause, sleep, wake, update, finalize, wake, invalidate, resume",
                error.to_string(),
            )
            .why("the transition has one order; sleep and both wakes are left out together or not");
        case.raise(finding, site, &[]);
    }
}

/// Whether the caches were not emptied, and a finding here already says what they served.
fn stale(case: &Case<'_, '_>, site: (usize, usize), left_out: Option<StepName>) -> bool {
    left_out == Some(StepName::Invalidate) && case.has_at(FindingCode::CacheStale, site)
}
