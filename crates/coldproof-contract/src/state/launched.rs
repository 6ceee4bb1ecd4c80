//! Configuration as the launch trace shows it: a request runs on the same kernels, and replays
//! graphs, after an update as before (R28, R29).

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{ArmView, PhaseView, RequestStage};
use crate::verdict::{Case, Finding, FindingCode, Site, symptom};
use crate::words::Rank;

/// Every graph that was replayed before the update.
const ALL: &str = "captured graphs";

/// Kernels that were launched eagerly and graphs that were replayed for one request.
#[derive(Debug, Default)]
struct Ran<'r> {
    kernels: BTreeSet<&'r str>,
    graphs: BTreeSet<&'r str>,
    /// Rows over all launches.
    rows: u64,
    seq: u64,
    /// Where its answer stands.
    rank: Rank,
}

/// Requests of a phase by (name, mode, batch), stage by stage: one that a cache spares launches
/// nothing.
type Requests<'r> = BTreeMap<(&'r str, &'r str, Option<u32>, Option<RequestStage>), Ran<'r>>;

fn requests<'r>(phase: &PhaseView<'r>) -> Requests<'r> {
    let alone = phase.logits.iter().filter(|((_, _, repeat), _)| *repeat == 0);
    let alone = alone.map(|((request, mode, _), seen)| ((*request, *mode, None), seen));
    let batched = phase.batched.iter();
    let batched = batched.map(|((request, mode, of), seen)| ((*request, *mode, Some(*of)), seen));
    let mut requests = Requests::new();
    for (key, seen) in alone.chain(batched) {
        let (request, mode, batch) = key;
        let own = phase.launches.iter().filter(|launch| launch.step == seen.step);
        for launch in own {
            let ran = requests.entry((request, mode, batch, launch.fact.stage)).or_default();
            (ran.seq, ran.rank) = (seen.seq, seen.rank);
            ran.rows += launch.fact.rows;
            match &launch.fact.graph {
                Some(graph) => ran.graphs.insert(graph),
                None => ran.kernels.insert(&launch.fact.kernel),
            };
        }
    }
    requests
}

/// Judges the updates of one arm against what the arm launched before any.
pub(super) fn check(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>) {
    let Some((first, others)) = arm.phases.split_first() else { return };
    let before = requests(first);
    for (phase_index, phase) in (1..).zip(others) {
        if phase.from.is_some() && !phase.refused {
            update(case, (index, phase_index), &before, phase);
        }
    }
}

fn update(case: &mut Case<'_, '_>, site: Site, before: &Requests<'_>, after: &PhaseView<'_>) {
    let now = requests(after);
    // Of a request without a launch nothing was recorded.
    let recorded = |ran: &&Ran<'_>| !ran.kernels.is_empty() || !ran.graphs.is_empty();
    let pairs: Vec<(&Ran<'_>, &Ran<'_>)> = before
        .iter()
        .filter_map(|(key, before)| Some((before, now.get(key).filter(recorded)?)))
        .collect();
    let replays = pairs.iter().any(|(_, now)| !now.graphs.is_empty());
    let mut graphs: BTreeMap<&str, (u64, Rank)> = BTreeMap::new();
    let mut kernels: BTreeMap<&str, (u64, Rank)> = BTreeMap::new();
    for (before, now) in pairs {
        // A graph under another name may be a new capture, which is a matter of its own.
        if now.graphs.is_empty() {
            graphs.extend(before.graphs.iter().map(|graph| (*graph, (now.seq, now.rank))));
        }
        // A request that replays no more launches all that the graph held, and one of which a cache
        // served other rows launches what they need.
        if before.graphs.is_empty() == now.graphs.is_empty() && before.rows == now.rows {
            let gone = before.kernels.difference(&now.kernels);
            kernels.extend(gone.map(|kernel| (*kernel, (now.seq, now.rank))));
        }
    }
    if let (false, Some((_, seen))) = (replays, graphs.last_key_value()) {
        drift(case, site, ALL, after, *seen);
    } else {
        for (graph, seen) in graphs {
            drift(case, site, &format!("graph {graph}"), after, seen);
        }
    }
    for (kernel, seen) in kernels {
        drift(case, site, &format!("kernel {kernel}"), after, seen);
    }
}

/// Raises a drift, unless the engine itself states one of this update: then it shows that.
fn drift(
    case: &mut Case<'_, '_>,
    site: Site,
    object: &str,
    phase: &PhaseView<'_>,
    (seq, rank): (u64, Rank),
) {
    let text = format!("{object}: not launched after `{}`", phase.phase);
    let found = symptom("launched", "serve", seq, text);
    let stated = |finding: &Finding| finding.code == FindingCode::ConfigDrift;
    if case.join_site(site, &found, stated) {
        return;
    }
    let rank = case.rank_index(site.0, rank);
    let mut finding = Finding::new(FindingCode::ConfigDrift, object, rank)
        .expected("launched, as before the update", "not launched")
        .why("the same request runs another way than before the update: something chose anew");
    finding.events.push(found);
    case.raise(finding, site, &[]);
}
