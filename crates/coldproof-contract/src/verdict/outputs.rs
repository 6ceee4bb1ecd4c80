//! Outputs after an update against those of a cold load, row by row (R18, R49).

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, symptom};
use super::{Category, Finding, FindingCode, FindingEvent, Room, Site};
use crate::evidence::{ArmView, LaneName, LogitsFact, LogitsRow, Observed, PhaseView, Seen};

/// What a comparison of one phase came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Compared {
    /// Rows that are equal, repeats left out.
    pub rows: u64,
    /// Requests that differ.
    pub differ: u64,
    /// Rows that hold no finite number on one side: equal or not, they show nothing.
    pub void: u64,
    /// Outputs that one side has and the other lacks: they were not compared.
    pub gaps: BTreeSet<String>,
}

/// The largest difference between repeats of one request within one of these phases.
pub(crate) fn noise<'v, 'r: 'v>(phases: impl Iterator<Item = &'v PhaseView<'r>>) -> f64 {
    let mut noise: f64 = 0.0;
    for answers in phases.flat_map(|phase| [&phase.logits, &phase.drafts]) {
        for ((request, mode, _), seen) in answers {
            let Some(first) = answers.get(&(*request, *mode, 0)) else { continue };
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
pub(crate) fn distance(wanted: &[LogitsRow], found: &[LogitsRow]) -> (u64, f64) {
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
///
/// Requests that were decoded together must equal the same batch and, where it served each of them
/// alone, also that: a row has the same bits in every batch (within what the cold load itself
/// shows between the two).
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
    let tolerance = tolerance(arm, cold);
    for (found, wanted) in [(&phase.logits, &reference.logits), (&phase.drafts, &reference.drafts)]
    {
        for ((request, mode, _), seen) in found {
            match wanted.get(&(*request, *mode, 0)) {
                Some(wanted) => {
                    let rows = pair(case, site, (wanted, seen), tolerance, &mut compared);
                    compared.rows += rows;
                }
                None => drop(compared.gaps.insert(unmatched(case, site, seen.fact))),
            }
        }
    }
    let spread = tolerance.max(spread(reference));
    for (key, seen) in &phase.batched {
        let together = reference.batched.get(key);
        let alone = reference.logits.get(&(key.0, key.1, 0));
        if together.or(alone).is_none() {
            compared.gaps.insert(unmatched(case, site, seen.fact));
        }
        let limits = [(together, tolerance), (alone, spread)];
        let rows = limits.map(|(wanted, limit)| {
            wanted.map_or(0, |wanted| pair(case, site, (wanted, seen), limit, &mut compared))
        });
        // A row that was compared twice is one row.
        compared.rows += rows[0].max(rows[1]);
    }
    if is_cached(arm) {
        case.cover(Room::Caches).undecided.extend(compared.gaps.iter().cloned());
    }
    compared
}

/// Whether the arm's requests may be served from a cache.
fn is_cached(arm: &ArmView<'_>) -> bool {
    matches!(arm.header.lane, LaneName::Caches | LaneName::Adapters | LaneName::Tiers)
}

/// The largest difference between repeats of a request after a cold load of either.
pub(super) fn tolerance(arm: &ArmView<'_>, cold: Option<&ArmView<'_>>) -> f64 {
    let loads = |arm: &ArmView<'_>| noise(arm.phases.iter().filter(|phase| phase.from.is_none()));
    cold.map_or(0.0, loads).max(loads(arm))
}

/// The largest difference between a request that was decoded with others and the same alone.
fn spread(phase: &PhaseView<'_>) -> f64 {
    let pairs = phase.batched.iter().filter_map(|((request, mode, _), together)| {
        Some((phase.logits.get(&(*request, *mode, 0))?, together))
    });
    pairs.fold(0.0, |spread, (alone, together)| {
        f64::max(spread, common(&alone.fact.rows, &together.fact.rows).1)
    })
}

/// Compares the outputs of one request; the number of equal rows, repeats left out.
fn pair(
    case: &mut Case<'_, '_>,
    site: Site,
    (wanted, seen): (&Seen<'_, LogitsFact>, &Seen<'_, LogitsFact>),
    tolerance: f64,
    compared: &mut Compared,
) -> u64 {
    let (rows, largest) = distance(&wanted.fact.rows, &seen.fact.rows);
    // The last token that is chosen has no row after it. Where rows differ a little, so may tokens.
    let chosen = (&wanted.fact.tokens, &seen.fact.tokens);
    if largest > tolerance || (tolerance <= 0.0 && chosen.0 != chosen.1) {
        compared.differ += 1;
        let how = match largest > tolerance {
            true => format!("largest difference from a cold load {largest:e}"),
            false => format!("it chose the tokens {:?}, a cold load {:?}", chosen.1, chosen.0),
        };
        differs(case, site, seen, &how);
        return 0;
    }
    let counts = seen.fact.repeat == 0;
    if counts {
        compared.void += seen.fact.rows.iter().filter(|row| !is_finite(row)).count() as u64;
    }
    let arm = &case.view.arms[site.0];
    let hit = is_cached(arm) && seen.fact.repeat > 0;
    let missing = missing(&wanted.fact.rows, &seen.fact.rows, hit);
    if missing > 0 {
        compared.gaps.insert(format!(
            "request {} of arm `{}` and what it must equal differ in {missing} positions after \
             `{}`",
            name(seen.fact),
            arm.header.arm,
            arm.phases[site.1].phase
        ));
    }
    if counts { rows } else { 0 }
}

/// Positions that one side has and the other lacks. A cache that may be hit may leave out the first
/// rows of the prompt.
fn missing(wanted: &[LogitsRow], found: &[LogitsRow], hit: bool) -> usize {
    let positions =
        |rows: &[LogitsRow]| rows.iter().map(|row| row.position).collect::<BTreeSet<u32>>();
    let (wanted, found) = (positions(wanted), positions(found));
    let first = found.first().copied().filter(|_| hit);
    let counts = |position: &&u32| first.is_none_or(|first| **position > first);
    wanted.symmetric_difference(&found).filter(counts).count()
}

fn unmatched(case: &Case<'_, '_>, site: Site, fact: &LogitsFact) -> String {
    let arm = &case.view.arms[site.0];
    let (by, label, name) = (&arm.header.arm, arm.phases[site.1].phase, name(fact));
    format!("no load of the same checkpoint answers request {name}, as arm `{by}` after `{label}`")
}

/// A request as reasons and findings name it.
pub(super) fn name(fact: &LogitsFact) -> String {
    let LogitsFact { request, mode, .. } = fact;
    match fact.batch {
        1 if fact.stage.is_some() => format!("`{request}` ({mode}, drafted)"),
        1 => format!("`{request}` ({mode})"),
        batch => format!("`{request}` ({mode}, {batch} together)"),
    }
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
    // Which positions were answered is a matter of the comparison.
    let rows = |seen: Option<&Observed<Seen<'_, LogitsFact>>>| {
        seen.is_some_and(|seen| !seen.fact.rows.is_empty())
    };
    let answers = [
        (&before.logits, &cold.logits, &phase.logits),
        (&before.drafts, &cold.drafts, &phase.drafts),
    ];
    let alone = answers.into_iter().flat_map(|(before, cold, now)| {
        let lost = |key| rows(cold.get(key)) && !rows(now.get(key));
        before.iter().filter(move |(key, _)| key.2 == 0 && lost(*key))
    });
    let together = before
        .batched
        .iter()
        .filter(|(key, _)| rows(cold.batched.get(key)) && !rows(phase.batched.get(key)));
    alone.chain(together).map(|(_, seen)| name(seen.fact)).collect()
}

/// Replicas beside the first that answered no request of a phase, or of which no rank was seen to
/// run where one was said to answer.
pub(super) fn idle_replicas(arm: &ArmView<'_>, phase: &PhaseView<'_>) -> Vec<u32> {
    let serves = |replica: &u32| {
        let mut own = phase.logits.values().filter(|seen| seen.rank.dp == *replica);
        own.any(|seen| {
            let mut here = phase.launches.iter().filter(|launch| launch.step == seen.step);
            here.any(|launch| launch.rank.dp == *replica) || phase.launches.is_empty()
        })
    };
    (1..arm.header.topology.dp).filter(|replica| !serves(replica)).collect()
}

/// Joins outputs without a finite number to what is wrong with an earlier phase of the arm that had
/// such too. A NaN in a block of a cache outlives its generation and every reset: attention
/// multiplies what lies behind a sequence's end by zero, which is a NaN again.
fn outlives(
    case: &mut Case<'_, '_>,
    site: Site,
    seen: &Seen<'_, LogitsFact>,
    found: &FindingEvent,
) -> bool {
    let void = |fact: &LogitsFact| fact.rows.iter().any(|row| !is_finite(row));
    let phases = &case.view.arms[site.0].phases[..site.1];
    let served = |phase: &PhaseView<'_>| phase.logits.values().any(|seen| void(seen.fact));
    let earlier = phases.iter().rposition(served).filter(|_| void(seen.fact));
    earlier.is_some_and(|phase| case.join_site((site.0, phase), found, |_| true))
}

fn differs(case: &mut Case<'_, '_>, site: Site, seen: &Seen<'_, LogitsFact>, how: &str) {
    let phase = &case.view.arms[site.0].phases[site.1];
    let text = format!("request {} after `{}`: {how}", name(seen.fact), phase.phase);
    let found = symptom("logits", phase.step_name(seen.step), seen.seq, text.clone());
    if case.join_site(site, &found, |_| true) || outlives(case, site, seen, &found) {
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
    let rank = case.rank_index(site.0, seen.rank);
    let mut finding = Finding::new(FindingCode::OutputUnexplained, &*seen.fact.request, rank)
        .expected("the logits of a cold load", text)
        .why(why);
    finding.events.push(found);
    case.raise(finding, site, &[]);
}
