//! Nodes of captured graphs: all of them at capture, and again after each update, when a graph may
//! have been captured anew or edited (R62).

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::evidence::{CensusFact, Fact, NodeFact, census_digest};
use coldproof_contract::words::{Hex128, Rank, StepName};

use crate::driver::{ArmResult, Driver};

/// Digests of graphs as they were last counted, by (rank, name).
pub(crate) type Graphs = BTreeMap<(Rank, String), Hex128>;

/// Captures, and records the nodes of all captured graphs.
///
/// # Errors
/// As [`Driver::step`].
pub(crate) fn capture(driver: &mut Driver<'_, '_>) -> ArmResult<()> {
    if !driver.can().graphs {
        return Ok(());
    }
    let nodes = driver.step(StepName::Capture, |engine| {
        engine.capture()?;
        engine.graph_nodes()
    })?;
    driver.graphs = Some(digests(&by_graph(&nodes)));
    for (rank, node) in nodes {
        driver.record(rank, Fact::Node(node));
    }
    Ok(())
}

/// Records a count of every graph of an arm that captured, and all nodes of those that are not what
/// they were: of the others the evidence has them already.
pub(crate) fn again(driver: &mut Driver<'_, '_>, nodes: Vec<(Rank, NodeFact)>) {
    let Some(before) = driver.graphs.take() else { return };
    let graphs = by_graph(&nodes);
    let now = digests(&graphs);
    let names: BTreeSet<&(Rank, String)> = before.keys().chain(now.keys()).collect();
    for key @ (rank, graph) in names {
        let nodes = graphs.get(key).map_or(&[][..], Vec::as_slice);
        let digest = census_digest(nodes.iter().copied());
        let count = nodes.len() as u64;
        let fact = CensusFact { graph: graph.clone(), nodes: count, digest };
        driver.record(*rank, Fact::Census(fact));
        if before.get(key) != Some(&digest) {
            for &node in nodes {
                driver.record(*rank, Fact::Node(node.clone()));
            }
        }
    }
    driver.graphs = Some(now);
}

fn by_graph(nodes: &[(Rank, NodeFact)]) -> BTreeMap<(Rank, String), Vec<&NodeFact>> {
    let mut graphs: BTreeMap<(Rank, String), Vec<&NodeFact>> = BTreeMap::new();
    for (rank, node) in nodes {
        graphs.entry((*rank, node.graph.clone())).or_default().push(node);
    }
    graphs
}

fn digests(graphs: &BTreeMap<(Rank, String), Vec<&NodeFact>>) -> Graphs {
    let digest = |nodes: &Vec<&NodeFact>| census_digest(nodes.iter().copied());
    graphs.iter().map(|(key, nodes)| (key.clone(), digest(nodes))).collect()
}
