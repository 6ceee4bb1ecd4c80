//! Tiers below the paged blocks: each is hit before it is judged, and what it holds of other
//! weights is served neither after an update nor by another engine (R38, R39, R41).

use std::collections::{BTreeMap, BTreeSet};

use super::check::{kept, rows, served_from};
use crate::evidence::{
    ArmView, LaneName, LogitsFact, Observed, PhaseView, RequestStage, Seen, StepOutcome, View,
};
use crate::verdict::{Case, Finding, FindingCode, Room, Site, distance, noise};

/// What a tier's rows are launched as, and its name in the inventory of caches.
const TIERS: [(RequestStage, &str); 2] =
    [(RequestStage::HostTier, HOST), (RequestStage::FileTier, FILE)];
/// Blocks in host memory.
const HOST: &str = "host-kv";
/// Blocks in files, or wherever else they outlive the engine.
const FILE: &str = "file-kv";

/// An answer, in its phase.
#[derive(Clone, Copy)]
struct Answer<'p, 'r> {
    site: Site,
    arm: &'p ArmView<'r>,
    phase: &'p PhaseView<'r>,
    seen: &'p Observed<Seen<'r, LogitsFact>>,
    /// What the weights are, whatever they are called.
    weights: &'p str,
}

impl<'p> Answer<'p, '_> {
    fn request(&self) -> &'p str {
        &self.seen.fact.request
    }

    fn label(&self) -> &'p str {
        self.phase.at.map_or("", |at| &at.0)
    }

    /// Rows that a tier gave.
    fn fetched(&self, stage: RequestStage) -> u64 {
        rows(self.phase, self.seen.step, Some(stage))
    }

    fn computed(&self) -> u64 {
        rows(self.phase, self.seen.step, None)
    }
}

/// What was seen so far, answer by answer.
#[derive(Default)]
struct Tiers<'p, 'r> {
    /// Answers by request, the first of each checkpoint.
    served: BTreeMap<&'p str, Vec<Answer<'p, 'r>>>,
    /// Rows that each tier spared: of the host tier any, of the file tier those of an engine that
    /// had not computed them itself.
    spared: [u64; TIERS.len()],
    /// Requests that the host tier served, by arm and phase.
    hosted: BTreeSet<(usize, &'p str)>,
    /// Updates after which such a request was computed again.
    updated: u64,
    /// Engines on other weights than those whose entries were there, that computed every row.
    elsewhere: u64,
}

/// Judges the arms that were started with tiers.
pub(super) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let own =
        |arm: &&ArmView<'_>| arm.header.lane == LaneName::Tiers && arm.header.against.is_some();
    if !view.arms.iter().any(|arm| own(&arm)) {
        return;
    }
    case.cover(Room::Caches).covered = true;
    let mut tiers = Tiers::default();
    for (index, arm) in view.arms.iter().enumerate().filter(|(_, arm)| own(arm)) {
        for (phase_index, phase) in arm.phases.iter().enumerate().filter(|(_, p)| !p.refused) {
            let mut answers: Vec<_> = phase.logits.values().collect();
            answers.sort_by_key(|seen| seen.step);
            for seen in answers {
                let (site, weights) = ((index, phase_index), weights(view, phase));
                answer(case, &mut tiers, Answer { site, arm, phase, seen, weights });
            }
        }
    }
    let arms: Vec<&ArmView<'_>> = view.arms.iter().filter(own).collect();
    let phases = arms.iter().flat_map(|arm| &arm.phases);
    // Where A and B have one content, nobody is ever on other weights.
    let other = phases.map(|phase| weights(view, phase)).collect::<BTreeSet<_>>().len() > 1;
    unproven(case, &tiers, &arms, other);
    let [host, file] = tiers.spared;
    let text = format!(
        "{host} rows served from `{HOST}` on the old generation and {file} from `{FILE}` after a \
         restart; on other weights {}",
        if other { "every row was computed" } else { "nobody was: both have one content" }
    );
    case.cover(Room::Caches).also_proven(&text);
}

/// The digest of the checkpoint that a phase is at: two labels may be one content.
fn weights<'p, 'r>(view: &'p View<'r>, phase: &PhaseView<'r>) -> &'p str {
    let Some(label) = view.content(phase.at) else { return "" };
    view.checkpoint(label).map_or(&label.0, |header| &header.digest)
}

fn answer<'p, 'r>(case: &mut Case<'_, '_>, tiers: &mut Tiers<'p, 'r>, now: Answer<'p, 'r>) {
    let request = now.request();
    let earlier = tiers.served.get(request).cloned().unwrap_or_default();
    let same = earlier.iter().filter(|before| before.weights == now.weights);
    let own = same.clone().any(|before| before.site.0 == now.site.0);
    match same.clone().next() {
        None => {
            first(case, tiers, now, &earlier);
            tiers.served.entry(request).or_default().push(now);
        }
        Some(before) => {
            again(case, tiers, (now, own), before);
            if !own {
                tiers.served.entry(request).or_default().push(now);
            }
        }
    }
    for (stage, tier) in TIERS {
        let states = |arm: &ArmView<'_>| {
            arm.phases.iter().flat_map(|phase| &phase.caches).any(|seen| seen.fact.cache == tier)
        };
        if now.fetched(stage) > 0 && !states(now.arm) {
            let what = "the engine does not say that it has a cache";
            case.leave_undecided(Room::Caches, format!("{what} `{tier}`, and it was hit"));
        }
    }
}

/// Rows of a request where no cache holds any of them: those of the cold load.
fn full(case: &Case<'_, '_>, now: Answer<'_, '_>) -> Option<u64> {
    let cold = case.view.against(now.arm)?;
    let key = (now.request(), now.seen.fact.mode.as_str(), 0);
    let (phase, seen) = cold.phases.iter().find_map(|p| Some((p, p.logits.get(&key)?)))?;
    Some(rows(phase, seen.step, None)).filter(|rows| *rows > 0)
}

/// A request that nobody served on these weights: no tier holds a row of it.
fn first(
    case: &mut Case<'_, '_>,
    tiers: &mut Tiers<'_, '_>,
    now: Answer<'_, '_>,
    earlier: &[Answer<'_, '_>],
) {
    let (request, computed) = (now.request(), now.computed());
    let Some(full) = full(case, now) else {
        return case
            .leave_undecided(Room::Caches, format!("no cold load computed request `{request}`"));
    };
    if computed < full {
        let given: Vec<&str> = TIERS
            .into_iter()
            .filter_map(|(stage, tier)| (now.fetched(stage) > 0).then_some(tier))
            .collect();
        if given.is_empty() && computed == 0 {
            return case.leave_undecided(
                Room::Caches,
                format!("no launch of request `{request}` was seen"),
            );
        }
        let paged = [served_from(now.phase)];
        let caches = if given.is_empty() { &paged[..] } else { &given };
        for cache in caches {
            stale(case, now, cache, (full, computed), earlier);
        }
        return;
    }
    let cold = case.view.against(now.arm);
    let wanted = cold.and_then(|cold| cold_answer(case, cold, now));
    // After an update outputs are compared as those of every update.
    if now.phase.from.is_none() && wanted.is_some_and(|wanted| differs(case, now, wanted)) {
        unexplained(case, now);
    }
    let other = |before: &&Answer<'_, '_>| before.weights != now.weights;
    if earlier.iter().any(|before| other(&before) && before.site.0 != now.site.0) {
        case.cover(Room::Caches).checks += 1;
        tiers.elsewhere += u64::from(now.phase.from.is_none());
    }
    if tiers.hosted.contains(&(now.site.0, request)) {
        case.cover(Room::Caches).checks += 1;
        tiers.updated += 1;
    }
}

/// A request that was served on these weights already, by this engine or an earlier one.
fn again<'p, 'r>(
    case: &mut Case<'_, '_>,
    tiers: &mut Tiers<'p, 'r>,
    (now, own): (Answer<'p, 'r>, bool),
    before: &Answer<'p, 'r>,
) {
    let Some(full) = full(case, now) else { return };
    let spared = if now.computed() == 0 { 0 } else { full.saturating_sub(now.computed()) };
    for (index, (stage, tier)) in TIERS.into_iter().enumerate() {
        if now.fetched(stage) == 0 || spared == 0 {
            continue;
        }
        // An entry of a file is proven to outlive its engine by another engine alone.
        if tier == HOST || !own {
            tiers.spared[index] += spared;
        }
        if tier == HOST {
            tiers.hosted.insert((now.site.0, now.request()));
        }
        if now.phase.from.is_none() && differs(case, now, before.seen.fact) {
            torn(case, now, tier);
        }
    }
}

/// The cold load's answer to the same request, where it is of the same weights.
fn cold_answer<'v>(
    case: &Case<'v, '_>,
    cold: &'v ArmView<'_>,
    now: Answer<'_, '_>,
) -> Option<&'v LogitsFact> {
    let key = (now.request(), now.seen.fact.mode.as_str(), 0);
    let phases = cold.phases.iter().filter(|phase| weights(case.view, phase) == now.weights);
    phases.filter_map(|phase| phase.logits.get(&key)).map(|seen| seen.fact).next()
}

fn differs(case: &Case<'_, '_>, now: Answer<'_, '_>, wanted: &LogitsFact) -> bool {
    // Repeats on this arm are hits: what they show is no noise.
    let noise = case.view.against(now.arm).map_or(0.0, |cold| noise(cold.phases.iter()));
    distance(&wanted.rows, &now.seen.fact.rows).1 > noise
}

/// Rows of other weights.
fn stale(
    case: &mut Case<'_, '_>,
    now: Answer<'_, '_>,
    cache: &str,
    (full, computed): (u64, u64),
    earlier: &[Answer<'_, '_>],
) {
    let (request, phase) = (now.request(), now.phase);
    let restarted = phase.from.is_none();
    let whose = match earlier.last() {
        Some(before) => format!("of `{}`", before.label()),
        None => "of no request".to_owned(),
    };
    let when = if restarted {
        format!("on an engine that was started with `{}`", now.label())
    } else {
        format!("after `{}`{}", phase.phase, kept(phase))
    };
    let mut finding = Finding::new(FindingCode::CacheStale, cache, 0)
        .expected(format!("{full} rows computed"), format!("{computed} rows computed"))
        .why(format!(
            "request `{request}` took {} rows from entries {whose} {when}",
            full - computed
        ));
    if let Some(before) = earlier.last() {
        let text = format!("request `{request}` served in arm `{}`", before.arm.header.arm);
        let step = before.phase.step_name(before.seen.step);
        finding = finding.event("kept", step, before.seen.seq, text);
    }
    let text = format!("{} rows not computed in arm `{}`", full - computed, now.arm.header.arm);
    let finding = finding.event("read", phase.step_name(now.seen.step), now.seen.seq, text);
    case.raise(finding, now.site, &[]);
}

/// What a tier gave back is not what was kept.
fn torn(case: &mut Case<'_, '_>, now: Answer<'_, '_>, tier: &str) {
    let text = format!("request `{}` has other logits than when it was computed", now.request());
    let finding = Finding::new(FindingCode::CacheStale, tier, 0)
        .expected("the logits of the same request on the same weights", text.clone())
        .why("the weights are the same, so what the tier gave back is not what was kept")
        .event("logits", now.phase.step_name(now.seen.step), now.seen.seq, text);
    case.raise(finding, now.site, &[]);
}

/// Everything was computed and is another thing.
fn unexplained(case: &mut Case<'_, '_>, now: Answer<'_, '_>) {
    let finding = Finding::new(FindingCode::OutputUnexplained, now.request(), 0)
        .expected("the logits of a cold load", "others")
        .why("an engine that was started on these weights computed every row of it")
        .event(
            "logits",
            now.phase.step_name(now.seen.step),
            now.seen.seq,
            format!("request `{}` in arm `{}`", now.request(), now.arm.header.arm),
        );
    case.raise(finding, now.site, &[]);
}

/// What the arms must show and do not.
fn unproven(case: &mut Case<'_, '_>, tiers: &Tiers<'_, '_>, arms: &[&ArmView<'_>], other: bool) {
    let phases = || arms.iter().flat_map(|arm| &arm.phases);
    let declared: BTreeSet<&str> =
        phases().flat_map(|phase| &phase.caches).map(|seen| seen.fact.cache.as_str()).collect();
    let has = |tier: &str| declared.contains(tier);
    if !has(HOST) && !has(FILE) {
        case.leave_undecided(
            Room::Caches,
            "the engine was started with tiers and states none".to_owned(),
        );
    }
    if has(HOST) && tiers.spared[0] == 0 {
        case.leave_undecided(
            Room::Caches,
            format!("no request hit `{HOST}` on the old generation"),
        );
    } else if has(HOST) && other && tiers.updated == 0 {
        case.leave_undecided(
            Room::Caches,
            format!("no request that hit `{HOST}` was computed after an update"),
        );
    }
    if has(FILE) && tiers.spared[1] == 0 {
        case.leave_undecided(Room::Caches, format!("no request hit `{FILE}` after a restart"));
    }
    if has(FILE) && other && tiers.elsewhere == 0 {
        let text = "no engine on other weights computed a request that was in";
        case.leave_undecided(Room::Caches, format!("{text} `{FILE}`"));
    }
    for arm in arms {
        let last = arm.phases.iter().rev().find_map(PhaseView::failed_step);
        if last.is_some_and(|step| !matches!(step.outcome, Some(StepOutcome::Unsupported { .. }))) {
            case.leave_undecided(
                Room::Caches,
                format!("arm `{}` ended before its plan did", arm.header.arm),
            );
        }
    }
}
