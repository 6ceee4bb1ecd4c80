//! An adapter is its content: what was computed with one is not served for another of its name
//! (R40).

use super::check::{rows, unasked};
use super::factors;
use crate::evidence::{ArmView, LaneName, LogitsFact, LogitsRow, Observed, PhaseView, Seen};
use crate::verdict::{Case, Finding, FindingCode, Room};
use crate::words::Hex128;

/// One answer with an adapter.
type Answer<'p, 'r> = &'p Observed<Seen<'r, LogitsFact>>;

/// Judges the arms in which one adapter took another's name.
pub(super) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let mut hits = None;
    for (index, arm) in view.arms.iter().enumerate() {
        if arm.header.lane != LaneName::Adapters || arm.header.against.is_none() {
            continue;
        }
        case.cover(Room::Caches).covered = true;
        *hits.get_or_insert(0) += arm_check(case, index, arm);
        bases(case, index, arm);
    }
    let Some(hits) = hits else { return };
    let mut text = format!(
        "{hits} cached rows served with one adapter; with another of its name every row was \
         computed again"
    );
    text.extend(factors::cover(case).map(|factors| format!("; {factors}")));
    case.cover(Room::Caches).also_proven(&text);
}

/// The content that this name last got, up to and with a phase.
fn content(arm: &ArmView<'_>, phase: usize, adapter: &str) -> Option<Hex128> {
    let loaded =
        arm.phases.get(..=phase)?.iter().rev().flat_map(|phase| phase.adapters.iter().rev());
    loaded.into_iter().find(|seen| seen.fact.adapter == adapter).map(|seen| seen.fact.content)
}

fn arm_check(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>) -> u64 {
    if arm.phases.len() < 2 {
        case.leave_undecided(
            Room::Caches,
            format!("arm `{}` ended before its adapter was replaced", arm.header.arm),
        );
        return 0;
    }
    let before = &arm.phases[0];
    let asked = before.logits.values().filter(|seen| seen.fact.repeat == 0);
    let asked: Vec<Answer<'_, '_>> = asked.filter(|seen| seen.fact.adapter.is_some()).collect();
    if asked.is_empty() {
        case.leave_undecided(
            Room::Caches,
            format!("arm `{}` asked for no adapter", arm.header.arm),
        );
    }
    for replica in unasked(arm, |fact| fact.adapter.is_some()) {
        case.leave_undecided(Room::Caches, format!("replica {replica} was asked for no adapter"));
    }
    asked.into_iter().map(|first| request_check(case, index, arm, first)).sum()
}

/// One request in every phase after the first; the rows that the cache saved in the first.
fn request_check(
    case: &mut Case<'_, '_>,
    index: usize,
    arm: &ArmView<'_>,
    first: Answer<'_, '_>,
) -> u64 {
    let before = &arm.phases[0];
    let (request, mode) = (first.fact.request.as_str(), first.fact.mode.as_str());
    let Some(adapter) = first.fact.adapter.as_deref() else { return 0 };
    let cold = case.view.against(arm).and_then(|cold| answer(cold.phases.iter(), request, mode));
    // Where the base model's entries served it, the first answer was computed in part.
    let alone = rows(before, first.step, None);
    let full = alone.max(cold.map_or(0, |(phase, seen)| rows(phase, seen.step, None)));
    let again =
        before.logits.get(&(request, mode, 1)).map_or(0, |seen| rows(before, seen.step, None));
    let hit = if again == 0 { 0 } else { full.saturating_sub(again) };
    if hit == 0 {
        case.leave_undecided(
            Room::Caches,
            format!("request `{request}` hit no cache with the first `{adapter}`"),
        );
    }
    let old = content(arm, 0, adapter);
    if 0 < alone && alone < full {
        let what = "of the base model".to_owned();
        reused(case, (index, 0), (before, first), (adapter, full, alone), &what);
    }
    for (phase_index, phase) in arm.phases.iter().enumerate().skip(1) {
        let (site, new) = ((index, phase_index), content(arm, phase_index, adapter));
        let (Some(old), Some(new)) = (old, new) else {
            case.leave_undecided(Room::Caches, format!("nobody says what content `{adapter}` had"));
            continue;
        };
        let Some(seen) = phase.logits.get(&(request, mode, 0)) else {
            case.leave_undecided(
                Room::Caches,
                format!("request `{request}` was not repeated with the new `{adapter}`"),
            );
            continue;
        };
        if old == new {
            case.leave_undecided(
                Room::Caches,
                format!("`{adapter}` had the same content before and after"),
            );
            continue;
        }
        let now = rows(phase, seen.step, None);
        let told = |wanted: Answer<'_, '_>| same(first, seen) && !same(wanted, seen);
        if 0 < now && now < full {
            let what = format!("computed with content {old}, and the name has {new}");
            reused(case, site, (phase, seen), (adapter, full, now), &what);
        } else if cold.is_some_and(|(_, wanted)| told(wanted)) {
            unchanged(case, site, (phase, seen), (adapter, old, new));
        } else if now == 0 {
            case.leave_undecided(
                Room::Caches,
                format!("no launch of request `{request}` was seen with `{adapter}`"),
            );
        } else if cold.is_none_or(|(_, wanted)| same(first, wanted)) {
            case.leave_undecided(
                Room::Caches,
                format!("request `{request}` does not tell two `{adapter}` apart"),
            );
        } else if hit > 0 {
            case.cover(Room::Caches).checks += 1;
        }
    }
    hit
}

/// The last answer to a request that was served alone for the first time in its phase.
fn answer<'p, 'r: 'p>(
    phases: impl DoubleEndedIterator<Item = &'p PhaseView<'r>>,
    request: &'p str,
    mode: &'p str,
) -> Option<(&'p PhaseView<'r>, Answer<'p, 'r>)> {
    phases.rev().find_map(|phase| {
        let own = phase.logits.iter().find(|(key, _)| **key == (request, mode, 0));
        own.map(|(_, seen)| (phase, seen))
    })
}

/// Whether two answers have the same rows, bit for bit.
fn same(one: Answer<'_, '_>, other: Answer<'_, '_>) -> bool {
    let of = |row: &LogitsRow| (row.position, row.digest);
    one.fact.rows.iter().map(of).eq(other.fact.rows.iter().map(of))
}

/// Rows that were not computed with the content that the name has.
fn reused(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    (phase, seen): (&PhaseView<'_>, Answer<'_, '_>),
    (adapter, full, now): (&str, u64, u64),
    what: &str,
) {
    let request = &seen.fact.request;
    let rank = case.rank_index(site.0, seen.rank);
    let finding = Finding::new(FindingCode::AdapterReused, adapter, rank)
        .expected(format!("{full} rows computed"), format!("{now} rows computed"))
        .why(format!("request `{request}` took {} rows from entries {what}", full - now))
        .event(
            "read",
            phase.step_name(seen.step),
            seen.seq,
            format!("{} rows not computed in `{}`", full - now, phase.phase),
        );
    case.raise(finding, site, &[]);
}

/// The outputs are those of the old content.
fn unchanged(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    (phase, seen): (&PhaseView<'_>, Answer<'_, '_>),
    (adapter, old, new): (&str, Hex128, Hex128),
) {
    let request = &seen.fact.request;
    let text = format!("request `{request}` has the logits of content {old}");
    let rank = case.rank_index(site.0, seen.rank);
    let finding = Finding::new(FindingCode::AdapterReused, adapter, rank)
        .expected(format!("the logits of content {new}"), text.clone())
        .why("the name was loaded again, and what it names is still the old content")
        .event("logits", phase.step_name(seen.step), seen.seq, text);
    case.raise(finding, site, &[]);
}

/// No adapter changes what the base model answers: every answer without one equals the first that
/// the cold engine gave before it had any.
fn bases(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>) {
    let view = case.view;
    let Some(cold) = view.against(arm) else { return };
    let Some(first) = cold.phases.first() else { return };
    // Weights that came with the adapter are no base model of the cold engine.
    let base = |phase: &PhaseView<'_>| {
        let header = phase.at.and_then(|at| view.checkpoint(at));
        header.and_then(|header| header.base.as_ref())
    };
    let other = arm.phases.first().and_then(base).is_some_and(|base| Some(base) != first.at);
    let bare = first.logits.values().filter(|seen| seen.fact.adapter.is_none());
    let Some((before, after)) = arm.phases.split_first() else { return };
    for wanted in bare {
        let key = (wanted.fact.request.as_str(), wanted.fact.mode.as_str(), 0);
        // After the first phase outputs are compared as those of every update.
        let differs = |seen: &&Observed<Seen<'_, LogitsFact>>| !other && !same(wanted, seen);
        if let Some(seen) = before.logits.get(&key).filter(differs) {
            let rank = case.rank_index(index, seen.rank);
            let finding = Finding::new(FindingCode::OutputUnexplained, key.0, rank)
                .expected("the logits of the base model without any adapter", "others")
                .why("a request that names no adapter is served by the base model alone")
                .event(
                    "logits",
                    before.step_name(seen.step),
                    seen.seq,
                    format!("request `{}` in `{}`", key.0, before.phase),
                );
            case.raise(finding, (index, 0), &[]);
        }
        if !after.iter().any(|phase| phase.logits.contains_key(&key)) {
            case.leave_undecided(
                Room::Caches,
                format!("request `{}` was not repeated on the base model", key.0),
            );
        }
    }
}
