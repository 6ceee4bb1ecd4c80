//! A hit on the old generation is proven; then the same request on the new one is equal to a cold
//! cache (R38, R39).

use std::collections::{BTreeMap, BTreeSet};

use super::{CacheChoice, CacheError, CacheInventory, CacheSighting, adapters};
use crate::evidence::{ArmView, CacheFact, LaneName, PhaseView};
use crate::verdict::{Case, Finding, FindingCode, Room};
use crate::words::StepName;

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
        for phase_index in 1..arm.phases.len() {
            acknowledged(case, (index, phase_index), &arm.phases[phase_index]);
        }
    }
    if case.coverage.contains_key(&Room::Caches) {
        let text = "cached rows served on the old generation; after the update every row was \
                    computed again";
        case.cover(Room::Caches).proven = format!("{hits} {text}");
    }
    adapters::check(case);
}

/// Rows that the launch trace computed for the request whose logits stand in this step.
pub(super) fn rows(phase: &PhaseView<'_>, step: u32) -> u64 {
    phase.launches.iter().filter(|launch| launch.step == step).map(|l| l.fact.rows).sum()
}

/// What was not done to the caches in this update.
fn kept(phase: &PhaseView<'_>) -> &'static str {
    let told = phase.steps.iter().any(|step| step.name == StepName::Invalidate);
    if told { "" } else { ", in which the caches were not told to empty" }
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
    if arm.phases.len() < 2 {
        let text = format!("arm `{}` ended before its update", arm.header.arm);
        case.cover(Room::Caches).undecided.insert(text);
    }
    let mut hits = 0;
    for (request, mode, full, again) in repeats(before) {
        // A launch trace without a row was not recorded: even a whole hit computes its last row.
        let hit = again.filter(|again| *again > 0).map_or(0, |again| full.saturating_sub(again));
        if hit == 0 {
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
            if now == 0 {
                let text = format!("no launch of request `{request}` was seen after the update");
                case.cover(Room::Caches).undecided.insert(text);
                continue;
            }
            let finding = Finding::new(FindingCode::CacheStale, PREFIX_KV, 0)
                .expected(format!("{full} rows computed"), format!("{now} rows computed"))
                .why(format!(
                    "request `{request}` took {} rows from entries of the generation before \
                     `{}`{}",
                    full - now,
                    phase.phase,
                    kept(phase)
                ))
                .event(
                    "hit",
                    "serve",
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

/// What the engine says of its caches after an update: each acknowledges the generation that the
/// ranks committed, or is empty. A claim can only convict; rows that were computed acquit.
fn acknowledged(case: &mut Case<'_, '_>, site: (usize, usize), phase: &PhaseView<'_>) {
    let committed = phase.receipts.iter().rev().find(|receipt| receipt.fact.committed);
    let Some(served) = committed.map(|receipt| receipt.fact.generation) else { return };
    for rank in phase.caches.iter().map(|cache| cache.rank).collect::<BTreeSet<_>>() {
        let own = phase.caches.iter().filter(|cache| cache.rank == rank);
        let seen: BTreeMap<String, CacheSighting> = own
            .map(|cache| {
                let CacheFact { cache, generation, entries, .. } = cache.fact;
                (cache.clone(), CacheSighting { generation: *generation, entries: *entries })
            })
            .collect();
        let choices = seen.keys().map(|cache| (cache.clone(), CacheChoice::Acknowledge)).collect();
        for error in CacheInventory::new(choices).check(served, &seen) {
            let CacheError::Unacknowledged { cache, .. } = &error else { continue };
            let finding = Finding::new(
                FindingCode::CacheStale,
                cache.as_str(),
                case.rank_index(site.0, rank),
            )
            .expected("empty, or of the generation that is served", error.to_string())
            .why("the engine itself says that it keeps entries of an older generation");
            case.raise(finding, site, &[]);
        }
    }
}
