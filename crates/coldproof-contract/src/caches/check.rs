//! A hit on the old generation is proven; then the same request on the new one is equal to a cold
//! cache (R38, R39).

use std::collections::{BTreeMap, BTreeSet};

use super::{CacheChoice, CacheError, CacheInventory, CacheSighting, adapters, tiers};
use crate::evidence::{
    ArmView, CacheFact, LaneName, LogitsFact, Observed, PhaseView, RequestStage, Seen,
};
use crate::verdict::{Case, Finding, FindingCode, Room};
use crate::words::StepName;

/// Blocks of keys and values that are known by the tokens before them.
const PREFIX_KV: &str = "prefix-kv";
/// How names of caches begin that save rows of a prompt whose beginning is known.
const PREFIX: &str = "prefix-";
/// What a request goes through, with the cache that may serve it.
const CACHES: [(Option<RequestStage>, &str); 4] = [
    (None, PREFIX_KV),
    (Some(RequestStage::Encoder), "encoder"),
    (Some(RequestStage::Processor), PROCESSOR),
    (Some(RequestStage::Draft), "draft-kv"),
];
/// The one that reads no weight.
const PROCESSOR: &str = "processor";

/// What an update does to a cache. What weights did not make may be kept.
fn choice(cache: &str) -> CacheChoice {
    if cache == PROCESSOR { CacheChoice::KeepOld } else { CacheChoice::Acknowledge }
}

/// Judges category 7.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let mut hits = [0; CACHES.len()];
    for (index, arm) in view.arms.iter().enumerate() {
        if arm.header.lane != LaneName::Caches || arm.header.against.is_none() {
            continue;
        }
        case.cover(Room::Caches).covered = true;
        if arm.phases.len() < 2 {
            let text = format!("arm `{}` ended before its update", arm.header.arm);
            case.cover(Room::Caches).undecided.insert(text);
        }
        for replica in unasked(arm, |_| true) {
            let text =
                format!("no request was served on replica {replica}, whose caches are its own");
            case.cover(Room::Caches).undecided.insert(text);
        }
        for (total, (stage, cache)) in hits.iter_mut().zip(CACHES) {
            *total += arm_check(case, index, arm, (stage, cache));
        }
        for phase_index in 1..arm.phases.len() {
            acknowledged(case, (index, phase_index), &arm.phases[phase_index]);
            versions(case, (index, phase_index), arm);
        }
    }
    if case.coverage.contains_key(&Room::Caches) {
        case.cover(Room::Caches).proven = proven(hits);
    }
    adapters::check(case);
    tiers::check(case);
}

/// Replicas beside the first that answered no such request before the update.
pub(super) fn unasked(
    arm: &ArmView<'_>,
    such: impl Fn(&LogitsFact) -> bool,
) -> impl Iterator<Item = u32> {
    let logits = arm.phases.first().into_iter().flat_map(|before| before.logits.values());
    let asked: BTreeSet<u32> =
        logits.filter(|seen| such(seen.fact)).map(|seen| seen.rank.dp).collect();
    (1..arm.header.topology.dp).filter(move |replica| !asked.contains(replica))
}

fn proven([model, encoder, processor, draft]: [u64; CACHES.len()]) -> String {
    let mut text = format!(
        "{model} cached rows served on the old generation; after the update every row was \
         computed again"
    );
    if encoder > 0 {
        text += &format!("; so were {encoder} rows that the encoder's cache had served");
    }
    if processor > 0 {
        text += &format!(
            "; {processor} rows were served from the processor's cache, which reads no weight and \
             is kept"
        );
    }
    if draft > 0 {
        text += &format!("; so were {draft} rows that the draft's cache had served");
    }
    text
}

/// Rows that the launch trace computed in one stage for the request whose logits stand in this
/// step.
pub(super) fn rows(phase: &PhaseView<'_>, step: u32, stage: Option<RequestStage>) -> u64 {
    let own = phase.launches.iter().filter(|launch| launch.step == step);
    own.filter(|launch| launch.fact.stage == stage).map(|launch| launch.fact.rows).sum()
}

/// The cache whose entries saved rows, by the engine's own names of its caches; blocks of keys and
/// values where it has them, or names none.
pub(super) fn served_from<'p>(phase: &'p PhaseView<'_>) -> &'p str {
    let named = || phase.caches.iter().map(|cache| cache.fact.cache.as_str());
    let blocks = named().find(|name| *name == PREFIX_KV);
    blocks.or_else(|| named().find(|name| name.starts_with(PREFIX))).unwrap_or(PREFIX_KV)
}

/// What was not done to the caches in this update.
pub(super) fn kept(phase: &PhaseView<'_>) -> &'static str {
    let told = phase.steps.iter().any(|step| step.name == StepName::Invalidate);
    if told { "" } else { ", in which the caches were not told to empty" }
}

/// The first answer to a request in a phase, and the step of the second.
type Asked<'p, 'r> = (&'p Observed<Seen<'r, LogitsFact>>, Option<u32>);

fn asked<'p, 'r>(phase: &'p PhaseView<'r>) -> Vec<Asked<'p, 'r>> {
    let first = phase.logits.iter().filter(|((_, _, repeat), _)| *repeat == 0);
    first
        .map(|((request, mode, _), seen)| {
            (seen, phase.logits.get(&(*request, *mode, 1)).map(|again| again.step))
        })
        .collect()
}

/// Rows of a stage that the second answer did not compute.
fn saved(phase: &PhaseView<'_>, (first, again): Asked<'_, '_>, stage: Option<RequestStage>) -> u64 {
    let Some(again) = again else { return 0 };
    let model = |step| rows(phase, step, None);
    let recorded = match stage {
        // A launch trace without a row was not recorded: even a whole hit computes its last row.
        None => model(again) > 0,
        // A block of what drafts lies beside one of the model.
        Some(RequestStage::Draft) => model(again) > 0,
        // Where the model computed fewer rows, its own cache may have spared the stage.
        Some(_) => model(again) > 0 && model(again) == model(first.step),
    };
    let full = rows(phase, first.step, stage);
    if recorded { full.saturating_sub(rows(phase, again, stage)) } else { 0 }
}

/// One cache in every phase of an arm; the rows that it served in the first.
fn arm_check(
    case: &mut Case<'_, '_>,
    index: usize,
    arm: &ArmView<'_>,
    (stage, cache): (Option<RequestStage>, &str),
) -> u64 {
    let Some(before) = arm.phases.first() else { return 0 };
    let cache = stage.map_or_else(|| served_from(before), |_| cache);
    let through =
        |(first, _): &Asked<'_, '_>| stage.is_none() || rows(before, first.step, stage) > 0;
    let asked: Vec<Asked<'_, '_>> = asked(before).into_iter().filter(through).collect();
    let (hit, missed): (Vec<_>, Vec<_>) =
        asked.into_iter().partition(|asked| saved(before, *asked, stage) > 0);
    // What drafts may compute everything again: a cache of it is one that the engine names.
    if hit.is_empty() && stage == Some(RequestStage::Draft) && !declares(before, cache) {
        return 0;
    }
    if hit.is_empty() {
        let what = stage.map_or(String::new(), |_| format!(" `{cache}`"));
        case.cover(Room::Caches).undecided.extend(missed.iter().map(|(first, _)| {
            format!("request `{}` hit no cache{what} on the old generation", first.fact.request)
        }));
        return 0;
    }
    if stage.is_some() && !declares(before, cache) {
        let text = format!("the engine does not say that it has a cache `{cache}`, and it was hit");
        case.cover(Room::Caches).undecided.insert(text);
    }
    for asked in &hit {
        for phase in 1..arm.phases.len() {
            if choice(cache) == CacheChoice::Acknowledge {
                after(case, (index, phase), arm, *asked, (stage, cache));
            }
        }
    }
    hit.into_iter().map(|asked| saved(before, asked, stage)).sum()
}

/// Whether the engine says that it has a cache of that name.
fn declares(phase: &PhaseView<'_>, cache: &str) -> bool {
    phase.caches.iter().any(|seen| seen.fact.cache == cache)
}

/// A request that hit a cache on the old generation, after an update.
fn after(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    arm: &ArmView<'_>,
    asked: Asked<'_, '_>,
    (stage, cache): (Option<RequestStage>, &str),
) {
    let (before, phase) = (&arm.phases[0], &arm.phases[site.1]);
    let first = asked.0;
    let (request, mode) = (first.fact.request.as_str(), first.fact.mode.as_str());
    let full = rows(before, first.step, stage);
    let Some(seen) = phase.logits.get(&(request, mode, 0)) else {
        let text = format!("request `{request}` was not repeated after the update");
        case.cover(Room::Caches).undecided.insert(text);
        return;
    };
    let now = rows(phase, seen.step, stage);
    if now >= full {
        case.cover(Room::Caches).checks += 1;
        return;
    }
    if rows(phase, seen.step, None) == 0 {
        let text = format!("no launch of request `{request}` was seen after the update");
        case.cover(Room::Caches).undecided.insert(text);
        return;
    }
    let hit = saved(before, asked, stage);
    let rank = case.rank_index(site.0, seen.rank);
    let finding = Finding::new(FindingCode::CacheStale, cache, rank)
        .expected(format!("{full} rows computed"), format!("{now} rows computed"))
        .why(format!(
            "request `{request}` took {} rows from entries of the generation before `{}`{}",
            full - now,
            phase.phase,
            kept(phase)
        ))
        .event("hit", "serve", 0, format!("{hit} rows served from the cache on the old generation"))
        .event(
            "read",
            phase.step_name(seen.step),
            seen.seq,
            format!("{} rows not computed after the update", full - now),
        );
    case.raise(finding, site, &[]);
}

/// A cache that is kept over an update stands for what it says it depends on, which an update of
/// weights leaves as it is.
fn versions(case: &mut Case<'_, '_>, site: (usize, usize), arm: &ArmView<'_>) {
    let (before, phase) = (&arm.phases[0], &arm.phases[site.1]);
    for seen in phase.caches.iter().filter(|seen| choice(&seen.fact.cache) == CacheChoice::KeepOld)
    {
        let old = before
            .caches
            .iter()
            .find(|old| (old.rank, &old.fact.cache) == (seen.rank, &seen.fact.cache));
        let Some(old) = old.map(|old| old.fact) else { continue };
        if old.version == seen.fact.version || seen.fact.entries == 0 {
            continue;
        }
        let text = |fact: &CacheFact| fact.version.clone().unwrap_or_else(|| "none".to_owned());
        let rank = case.rank_index(site.0, seen.rank);
        let finding = Finding::new(FindingCode::CacheStale, seen.fact.cache.as_str(), rank)
            .expected(format!("version {}", text(old)), format!("version {}", text(seen.fact)))
            .why("the engine itself says that what its entries were made with is another now");
        case.raise(finding, site, &[]);
    }
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
        let choices = seen.keys().map(|cache| (cache.clone(), choice(cache))).collect();
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
