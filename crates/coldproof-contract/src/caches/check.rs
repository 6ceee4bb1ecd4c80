//! A hit on the old generation is proven; then the same request on the new one is equal to a cold
//! cache (R38, R39).

use crate::evidence::{ArmView, LaneName, PhaseView};
use crate::verdict::{Case, Finding, FindingCode, Room};

/// The object of a finding about KV blocks kept by prefix.
const PREFIX_KV: &str = "prefix-kv";

/// Judges category 7.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let mut hits = 0;
    for (index, arm) in view.arms.iter().enumerate() {
        if arm.header.lane != LaneName::Caches || arm.header.against.is_none() {
            continue;
        }
        case.cover(Room::Caches).covered = true;
        hits += arm_check(case, index, arm);
    }
    let coverage = case.cover(Room::Caches);
    coverage.proven = format!(
        "{hits} cached rows served on the old generation; after the update every row was computed \
         again"
    );
}

/// Rows that the launch trace computed for the request whose logits stand in this step.
fn rows(phase: &PhaseView<'_>, step: u32) -> u64 {
    phase.launches.iter().filter(|launch| launch.step == step).map(|l| l.fact.rows).sum()
}

/// Rows computed for each repeat of each request: (request, mode, first, second).
fn repeats<'p>(phase: &'p PhaseView<'_>) -> Vec<(&'p str, &'p str, u64, Option<u64>)> {
    let first = phase.logits.iter().filter(|((_, _, repeat), _)| *repeat == 0);
    first
        .map(|((request, mode, _), seen)| {
            let again = phase.logits.get(&(*request, *mode, 1));
            (*request, *mode, rows(phase, seen.step), again.map(|again| rows(phase, again.step)))
        })
        .collect()
}

fn arm_check(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>) -> u64 {
    let Some(before) = arm.phases.first() else { return 0 };
    let mut hits = 0;
    for (request, mode, full, again) in repeats(before) {
        let hit = again.map_or(0, |again| full.saturating_sub(again));
        if full == 0 || hit == 0 {
            let text = format!("request `{request}` hit no cache on the old generation");
            case.cover(Room::Caches).undecided.insert(text);
            continue;
        }
        hits += hit;
        for (phase_index, phase) in arm.phases.iter().enumerate().skip(1) {
            let Some(seen) = phase.logits.get(&(request, mode, 0)) else {
                let text = format!("request `{request}` was not repeated after the update");
                case.cover(Room::Caches).undecided.insert(text);
                continue;
            };
            let now = rows(phase, seen.step);
            if now >= full {
                case.cover(Room::Caches).checks += 1;
                continue;
            }
            let finding = Finding::new(FindingCode::CacheStale, PREFIX_KV, 0)
                .expected(format!("{full} rows computed"), format!("{now} rows computed"))
                .why(format!(
                    "request `{request}` took {} rows from entries of the generation before `{}`",
                    full - now,
                    phase.phase
                ))
                .event(
                    "hit",
                    before.step_name(before.first_step + 1),
                    0,
                    format!("{hit} rows served from the cache on the old generation"),
                )
                .event(
                    "read",
                    phase.step_name(seen.step),
                    seen.seq,
                    format!("{} rows not computed after the update", full - now),
                );
            case.raise(finding, (index, phase_index), &[]);
        }
    }
    hits
}
