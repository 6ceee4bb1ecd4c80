//! Whether the graphs that are replayed after an update are those captured before it (R62).
//!
//! A graph that was captured again or edited is another graph: its replay shows nothing of what the
//! old one retains. An engine that says so leaves the category UNDECIDED; one that does not has
//! changed what is served behind the update.

use std::collections::BTreeMap;

use crate::evidence::{ArmView, CensusFact, NodeFact, Observed, PhaseView, Seen, census_digest};
use crate::verdict::{Case, Finding, FindingCode, Room};
use crate::words::{Hex128, Rank};

/// What an engine calls a graph that it captured again: the claim's value is the graph's name.
const RECAPTURED: &str = "recaptured";

/// The first phase in which each changed graph was another one.
pub(super) type Changed<'r> = BTreeMap<&'r str, usize>;

/// Judges the graphs of one rank, phase by phase.
pub(super) fn check<'r>(
    case: &mut Case<'_, '_>,
    (index, arm): (usize, &ArmView<'r>),
    captured_in: usize,
    rank: Rank,
) -> Changed<'r> {
    let mut changed = Changed::new();
    let mut last = captured(&arm.phases[captured_in], rank);
    for phase_index in captured_in + 1..arm.phases.len() {
        let phase = &arm.phases[phase_index];
        for (graph, before) in &mut last {
            let Some(census) = census(phase, rank, graph) else {
                uncounted(case, arm, phase);
                continue;
            };
            let now = (census.fact.nodes, census.fact.digest);
            if now == *before {
                continue;
            }
            *before = now;
            changed.entry(*graph).or_insert(phase_index);
            if declared(phase, rank, graph) {
                let (name, label) = (&arm.header.arm, phase.phase);
                let text = format!(
                    "graph `{graph}` of arm `{name}` was captured again in `{label}`: its replay \
                     shows nothing of what the old one retains"
                );
                case.cover(Room::Storage).undecided.insert(text);
                continue;
            }
            let rank_index = case.rank_index(index, rank);
            let first = &arm.phases[captured_in];
            let finding = finding((arm, first, phase), rank, rank_index, census);
            case.raise(finding, (index, phase_index), &[]);
        }
    }
    changed
}

/// How many nodes each graph of a rank was captured with, and their digest.
fn captured<'r>(phase: &PhaseView<'r>, rank: Rank) -> BTreeMap<&'r str, (u64, Hex128)> {
    let mut graphs: BTreeMap<&str, Vec<&NodeFact>> = BTreeMap::new();
    for node in phase.nodes.iter().filter(|node| node.rank == rank) {
        graphs.entry(&node.fact.graph).or_default().push(node.fact);
    }
    let count = |nodes: Vec<&NodeFact>| (nodes.len() as u64, census_digest(nodes));
    graphs.into_iter().map(|(graph, nodes)| (graph, count(nodes))).collect()
}

fn census<'r>(
    phase: &PhaseView<'r>,
    rank: Rank,
    graph: &str,
) -> Option<Observed<Seen<'r, CensusFact>>> {
    let mut own = phase.censuses.iter().rev().filter(|census| census.rank == rank);
    own.find(|census| census.fact.graph == graph).copied()
}

/// Where an update was looked at, its graphs must have been counted.
fn uncounted(case: &mut Case<'_, '_>, arm: &ArmView<'_>, phase: &PhaseView<'_>) {
    if phase.read_backs.is_empty() || phase.failed_step().is_some() {
        return;
    }
    let (name, label) = (&arm.header.arm, phase.phase);
    let text = format!("the graphs of arm `{name}` were not counted again in `{label}`");
    case.cover(Room::Storage).undecided.insert(text);
}

fn declared(phase: &PhaseView<'_>, rank: Rank, graph: &str) -> bool {
    let mut own = phase.claims.iter().filter(|claim| claim.rank == rank);
    own.any(|claim| claim.fact.what == RECAPTURED && claim.fact.value == graph)
}

fn finding(
    (arm, first, phase): (&ArmView<'_>, &PhaseView<'_>, &PhaseView<'_>),
    rank: Rank,
    rank_index: u32,
    census: Observed<Seen<'_, CensusFact>>,
) -> Finding {
    let graph = census.fact.graph.as_str();
    let own = |phase: &PhaseView<'_>| -> Vec<String> {
        let nodes = phase.nodes.iter();
        let nodes = nodes.filter(|node| node.rank == rank && node.fact.graph == graph);
        nodes.map(|node| text(node.fact)).collect()
    };
    let (then, now) = (own(first), own(phase));
    let differs = (0..then.len().max(now.len())).find(|&node| then.get(node) != now.get(node));
    let of = |nodes: &[String]| {
        let node = differs.and_then(|node| nodes.get(node)).cloned();
        node.unwrap_or_else(|| "no such node".to_owned())
    };
    let count = format!("{} nodes, digest {}", census.fact.nodes, census.fact.digest);
    let captured = first.nodes.iter().find(|node| node.rank == rank && node.fact.graph == graph);
    let finding = Finding::new(FindingCode::GraphChanged, graph, rank_index)
        .expected(of(&then), of(&now))
        .why(format!(
            "the graph is not the one that was captured before `{}`, and the engine did not say \
             that it captured again: a replay shows nothing of what the old graph retains",
            phase.phase
        ));
    let finding = captured.map_or(finding.clone(), |node| {
        let text = format!("graph `{graph}`, {} nodes", then.len());
        finding.event("captured", arm.step_name(node.step), node.seq, text)
    });
    finding.event("counted", arm.step_name(census.step), census.seq, count)
}

fn text(node: &NodeFact) -> String {
    let args: Vec<String> = node.args.iter().map(|arg| arg.address.to_string()).collect();
    format!("node {}, kernel `{}` on {}", node.node, node.kernel, args.join(", "))
}
