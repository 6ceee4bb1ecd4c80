//! Steps, outputs and liveness of every arm (R49), and what symptoms join.

use std::collections::BTreeMap;

use super::case::{Case, symptom};
use super::{Finding, FindingCode, Status, StepReport, TransitionReport};
use crate::evidence::{
    ArmView, LaneName, LogitsFact, LogitsRow, Observed, PhaseView, Seen, StepOutcome, StepView,
};
use crate::words::{Address, ByteRange, StepName};

/// Outputs of a phase, by request and mode.
type Outputs<'v, 'r> = BTreeMap<(&'r str, &'r str), &'v Observed<Seen<'r, LogitsFact>>>;

/// What was compared.
#[derive(Clone, Debug, Default)]
pub(super) struct TransitionCoverage {
    /// Rows of logits that were compared with a cold load's.
    pub rows: u64,
    /// Largest difference between repeats of a request, by arm.
    pub noise: BTreeMap<String, f64>,
    /// Reasons not to pass.
    pub undecided: Vec<String>,
}

/// Judges the transition: outputs of all arms, ends of all steps, the order of the eight.
pub(super) fn check(case: &mut Case<'_, '_>) -> TransitionCoverage {
    let view = case.view;
    let mut coverage = TransitionCoverage::default();
    for (index, arm) in view.arms.iter().enumerate() {
        let noise = noise(arm);
        if noise > 0.0 {
            coverage
                .undecided
                .push(format!("outputs of arm `{}` are not repeatable", arm.header.arm));
        }
        coverage.noise.insert(arm.header.arm.clone(), noise);
        for phase_index in 0..arm.phases.len() {
            coverage.rows += outputs(case, index, phase_index, noise);
            let phase = &arm.phases[phase_index];
            if let Some(step) = phase.failed_step() {
                ended(case, (index, phase_index), step);
            }
            order(case, (index, phase_index), phase);
            generations(case, (index, phase_index), phase);
        }
    }
    coverage
}

/// The transition's part of the verdict.
#[must_use]
pub(super) fn report(case: &Case<'_, '_>, coverage: &TransitionCoverage) -> TransitionReport {
    let lane = case.view.arms.iter().find(|arm| arm.header.lane == LaneName::Composite);
    let updated = lane.and_then(|arm| arm.phases.iter().find(|phase| phase.from.is_some()));
    let steps = updated.map(steps).unwrap_or_default();
    let failed = case.findings().iter().any(|f| f.category == super::Category::Transition);
    let mut undecided = coverage.undecided.clone();
    if lane.is_some() && coverage.rows == 0 {
        undecided.push("no output was compared with a cold load's".to_owned());
    }
    if lane.is_some() && steps.len() < StepName::TRANSITION.len() {
        undecided.push("not all eight steps were taken".to_owned());
    }
    let status = match (failed, lane, undecided.is_empty()) {
        (true, _, _) => Status::Fail,
        (false, None, _) => Status::NotCovered,
        (false, Some(_), false) => Status::Undecided,
        (false, Some(_), true) => Status::Pass,
    };
    let reason = match status {
        Status::NotCovered => Some("the composite lane did not run".to_owned()),
        Status::Undecided => Some(undecided.join("; ")),
        Status::Pass => Some(format!(
            "eight steps in order, {} rows of logits equal to a cold load's, bit for bit",
            coverage.rows
        )),
        Status::Fail => None,
    };
    TransitionReport { status, steps, checks: coverage.rows, reason }
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

/// The largest difference between repeats of one request within one phase.
fn noise(arm: &ArmView<'_>) -> f64 {
    let mut noise: f64 = 0.0;
    for phase in &arm.phases {
        for ((request, mode, repeat), seen) in &phase.logits {
            if *repeat == 0 {
                continue;
            }
            let first = phase.logits.get(&(*request, *mode, 0));
            if let Some(first) = first {
                noise = noise.max(distance(&first.fact.rows, &seen.fact.rows));
            }
        }
    }
    noise
}

/// The largest difference between rows of the same position; infinite where a row is missing.
fn distance(left: &[LogitsRow], right: &[LogitsRow]) -> f64 {
    // A cache hit may leave out rows of the prompt, so positions are matched, not indices.
    let left: BTreeMap<u32, &LogitsRow> = left.iter().map(|row| (row.position, row)).collect();
    let pairs = right.iter().filter_map(|row| left.get(&row.position).map(|left| (*left, row)));
    pairs.map(|(left, right)| row_distance(left, right)).fold(0.0, f64::max)
}

fn row_distance(left: &LogitsRow, right: &LogitsRow) -> f64 {
    if left.digest == right.digest {
        return 0.0;
    }
    let (Some(a), Some(b)) = (&left.bits, &right.bits) else {
        let other: BTreeMap<u32, u32> = right.top.iter().copied().collect();
        let pairs = left.top.iter().filter_map(|(token, bits)| Some((*bits, *other.get(token)?)));
        return pairs.map(|(a, b)| bits_distance(a, b)).fold(f64::MIN_POSITIVE, f64::max);
    };
    let words = |text: &str| -> Vec<u32> {
        let chunks = text.as_bytes().chunks(8).filter_map(|chunk| std::str::from_utf8(chunk).ok());
        chunks.filter_map(|chunk| u32::from_str_radix(chunk, 16).ok()).collect()
    };
    let (a, b) = (words(a), words(b));
    a.iter().zip(&b).map(|(a, b)| bits_distance(*a, *b)).fold(f64::MIN_POSITIVE, f64::max)
}

fn bits_distance(a: u32, b: u32) -> f64 {
    if a == b {
        return 0.0;
    }
    let distance = f64::from(f32::from_bits(a)) - f64::from(f32::from_bits(b));
    if distance.is_nan() { f64::INFINITY } else { distance.abs() }
}

fn first_repeats<'v, 'r>(phase: &'v PhaseView<'r>) -> Outputs<'v, 'r> {
    let first = phase.logits.iter().filter(|((_, _, repeat), _)| *repeat == 0);
    first.map(|((request, mode, _), seen)| ((*request, *mode), seen)).collect()
}

/// Compares the outputs after an update with those they must equal.
fn outputs(case: &mut Case<'_, '_>, index: usize, phase_index: usize, noise: f64) -> u64 {
    let view = case.view;
    let arm = &view.arms[index];
    let phase = &arm.phases[phase_index];
    if phase.from.is_none() {
        return 0;
    }
    let cold = arm.header.against.as_deref().and_then(|name| view.arm(name));
    let at = view.content(phase.at);
    let cold = cold.and_then(|cold| cold.phases.iter().rev().find(|cold| cold.at == at));
    let Some(reference) = cold.or_else(|| arm.earlier(phase_index, phase.at)) else { return 0 };
    let wanted = first_repeats(reference);
    let mut rows = 0;
    for ((request, mode), seen) in first_repeats(phase) {
        let Some(want) = wanted.get(&(request, mode)) else { continue };
        let distance = distance(&want.fact.rows, &seen.fact.rows);
        if distance <= noise {
            rows += seen.fact.rows.len() as u64;
            continue;
        }
        let text = format!(
            "request `{request}` ({mode}) after `{}`: largest difference from a cold load {distance:e}",
            phase.phase
        );
        let found = symptom("logits", phase.step_name(seen.step), seen.seq, text.clone());
        if case.join_site((index, phase_index), &found) {
            continue;
        }
        let mut finding = Finding::new(FindingCode::OutputUnexplained, request, 0)
            .expected("the logits of a cold load", text)
            .why("every slot that was compared is right, so something unobserved is not");
        finding.events.push(found);
        case.raise(finding, (index, phase_index), &[]);
    }
    rows
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
        Some(StepOutcome::Error { text }) => {
            (FindingCode::StepRefused, name.to_owned(), text.clone(), None)
        }
        Some(StepOutcome::Ok) => return,
        None => (FindingCode::EngineDied, name.to_owned(), "the step never ended".to_owned(), None),
    };
    let found = symptom("ended", name, 0, format!("step {object}: {text}"));
    let by_address = address.and_then(|address| owner_at(case, site, address));
    if by_address.is_some_and(|slot| case.join(&slot, site, found.clone())) {
        return;
    }
    if case.join_site(site, &found) {
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

/// Steps of the transition are in their order.
fn order(case: &mut Case<'_, '_>, site: (usize, usize), phase: &PhaseView<'_>) {
    let position = |name| StepName::TRANSITION.iter().position(|step| *step == name);
    let taken = phase.steps.iter().filter(|step| position(step.name).is_some());
    let mut last: Option<&StepView> = None;
    for step in taken {
        if let Some(before) = last.filter(|before| position(before.name) >= position(step.name)) {
            let finding = Finding::new(FindingCode::Order, step.name.name(), 0)
                .expected(
                    format!("`{}` before `{}`", step.name, before.name),
                    format!("`{}` after `{}`", step.name, before.name),
                )
                .why("the transition has one order");
            case.raise(finding, site, &[]);
        }
        last = Some(step);
    }
}

/// All ranks say that they serve one generation.
fn generations(case: &mut Case<'_, '_>, site: (usize, usize), phase: &PhaseView<'_>) {
    let Some(last) = phase.receipts.last().map(|receipt| receipt.fact.transaction) else { return };
    let receipts: Vec<_> =
        phase.receipts.iter().filter(|receipt| receipt.fact.transaction == last).collect();
    let mut claimed: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for receipt in &receipts {
        let rank = case.rank_index(site.0, receipt.rank);
        claimed.entry(receipt.fact.generation.0).or_default().push(rank);
    }
    if claimed.len() < 2 || phase.failed_step().is_some() {
        return;
    }
    let text: Vec<String> = claimed
        .iter()
        .map(|(generation, ranks)| format!("{generation} on ranks {ranks:?}"))
        .collect();
    let finding = Finding::new(FindingCode::MixedGeneration, format!("transaction {}", last.0), 0)
        .expected("one generation on all ranks", text.join(", "))
        .why("no rank may publish alone");
    case.raise(finding, site, &[]);
}
