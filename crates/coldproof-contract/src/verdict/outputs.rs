//! Outputs after an update against those of a cold load, row by row (R18, R49).

use std::collections::BTreeMap;

use super::case::{Case, symptom};
use super::{Category, Finding, FindingCode, Room, Site};
use crate::evidence::{ArmView, LogitsFact, LogitsRow, PhaseView, Seen};

/// What a comparison of one phase came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Compared {
    /// Rows that are equal, repeats left out.
    pub rows: u64,
    /// Requests that differ.
    pub differ: u64,
    /// Rows that hold no finite number on one side: equal or not, they show nothing.
    pub void: u64,
}

/// The largest difference between repeats of one request within one of these phases.
pub(super) fn noise<'v, 'r: 'v>(phases: impl Iterator<Item = &'v PhaseView<'r>>) -> f64 {
    let mut noise: f64 = 0.0;
    for phase in phases {
        for ((request, mode, _), seen) in &phase.logits {
            let Some(first) = phase.logits.get(&(*request, *mode, 0)) else { continue };
            // A cache hit may leave out rows of the prompt; rows of one position are one row.
            noise = noise.max(common(&first.fact.rows, &seen.fact.rows).1);
        }
    }
    noise
}

/// Rows of the same position: how many that hold a finite number, and the largest difference
/// between two.
fn common(left: &[LogitsRow], right: &[LogitsRow]) -> (u64, f64) {
    let left: BTreeMap<u32, &LogitsRow> = left.iter().map(|row| (row.position, row)).collect();
    let pairs = right.iter().filter_map(|row| left.get(&row.position).map(|left| (*left, row)));
    pairs.fold((0, 0.0), |(rows, largest), (left, right)| {
        let counts = is_finite(left) && is_finite(right);
        (rows + u64::from(counts), f64::max(largest, row_distance(left, right)))
    })
}

/// Whether a row holds a finite number, among all of its numbers or, where only those were kept,
/// among the largest.
fn is_finite(row: &LogitsRow) -> bool {
    let finite = |bits: u32| f32::from_bits(bits).is_finite();
    match &row.bits {
        Some(bits) => words(bits).into_iter().any(finite),
        None => row.top.iter().any(|(_, bits)| finite(*bits)),
    }
}

fn words(text: &str) -> Vec<u32> {
    let chunks = text.as_bytes().chunks(8).filter_map(|chunk| std::str::from_utf8(chunk).ok());
    chunks.filter_map(|chunk| u32::from_str_radix(chunk, 16).ok()).collect()
}

/// As [`common`]; infinite where one of the two ends before the other.
fn distance(wanted: &[LogitsRow], found: &[LogitsRow]) -> (u64, f64) {
    let end = |rows: &[LogitsRow]| rows.iter().map(|row| row.position).max();
    let (rows, largest) = common(wanted, found);
    if end(wanted) == end(found) { (rows, largest) } else { (rows, f64::INFINITY) }
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

/// Compares the outputs of a phase with those they must equal, if it is one after an update.
pub(super) fn check(case: &mut Case<'_, '_>, site: Site) -> Compared {
    let view = case.view;
    let arm = &view.arms[site.0];
    let phase = &arm.phases[site.1];
    let mut compared = Compared::default();
    if phase.from.is_none() {
        return compared;
    }
    let cold = view.against(arm).filter(|cold| cold.header.topology == arm.header.topology);
    let at = view.content(phase.at);
    let same = cold.and_then(|cold| cold.phases.iter().rev().find(|cold| cold.at == at));
    let Some(reference) = same.or_else(|| arm.earlier(site.1, phase.at)) else { return compared };
    let loads = |arm: &ArmView<'_>| noise(arm.phases.iter().filter(|phase| phase.from.is_none()));
    let tolerance = cold.map_or(0.0, loads).max(loads(arm));
    for ((request, mode, repeat), seen) in &phase.logits {
        let Some(wanted) = reference.logits.get(&(*request, *mode, 0)) else { continue };
        let (rows, largest) = distance(&wanted.fact.rows, &seen.fact.rows);
        if largest <= tolerance {
            if *repeat == 0 {
                compared.rows += rows;
                compared.void += seen.fact.rows.iter().filter(|row| !is_finite(row)).count() as u64;
            }
            continue;
        }
        compared.differ += 1;
        differs(case, site, seen, largest);
    }
    compared
}

/// Requests that the arm served before its update and the reference answers, and that were not
/// served after it.
pub(super) fn unserved(case: &Case<'_, '_>, site: Site) -> Vec<String> {
    let view = case.view;
    let arm = &view.arms[site.0];
    let phase = &arm.phases[site.1];
    let at = view.content(phase.at);
    let cold = view.against(arm).and_then(|cold| cold.phases.iter().rev().find(|c| c.at == at));
    let before = arm.phases.iter().find(|phase| !phase.logits.is_empty());
    let (Some(cold), Some(before)) = (cold, before) else { return Vec::new() };
    // A cache hit may leave out rows of the prompt, so positions may differ.
    let rows = |phase: &PhaseView<'_>, request: &str, mode: &str| {
        phase.logits.get(&(request, mode, 0)).is_some_and(|seen| !seen.fact.rows.is_empty())
    };
    let asked = before.logits.keys().filter(|(_, _, repeat)| *repeat == 0);
    let missing =
        asked.filter(|(request, mode, _)| rows(cold, request, mode) && !rows(phase, request, mode));
    missing.map(|(request, mode, _)| format!("`{request}` ({mode})")).collect()
}

fn differs(case: &mut Case<'_, '_>, site: Site, seen: &Seen<'_, LogitsFact>, largest: f64) {
    let phase = &case.view.arms[site.0].phases[site.1];
    let LogitsFact { request, mode, .. } = seen.fact;
    let text = format!(
        "request `{request}` ({mode}) after `{}`: largest difference from a cold load {largest:e}",
        phase.phase
    );
    let found = symptom("logits", phase.step_name(seen.step), seen.seq, text.clone());
    if case.join_site(site, &found, |_| true) {
        return;
    }
    let rooms = Room::ALL.into_iter();
    let off: Vec<_> = rooms.filter(|room| case.is_off(Category::Room(*room))).collect();
    let why = if off.is_empty() {
        "every slot that was compared is right, so something unobserved is not".to_owned()
    } else {
        let names: Vec<&str> = off.into_iter().map(Room::name).collect();
        format!("no finding explains it; these checkers are switched off: {}", names.join(", "))
    };
    let mut finding = Finding::new(FindingCode::OutputUnexplained, request, 0)
        .expected("the logits of a cold load", text)
        .why(why);
    finding.events.push(found);
    case.raise(finding, site, &[]);
}
