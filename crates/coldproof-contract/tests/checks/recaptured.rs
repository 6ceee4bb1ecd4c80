//! Graphs that are counted again after an update.

use coldproof_contract::evidence::{CensusFact, ClaimFact, Fact, NodeFact, census_digest};
use coldproof_contract::verdict::{FindingCode as Code, Room};
use coldproof_contract::words::{Address, Rank, StepName, Topology};

use crate::support::engine::Engine;
use crate::support::model::GATE_UP;
use crate::support::{Run, assert_silent, assert_undecided, correct, correct_at, one, room};

/// The graph of a rank with this address in the place of its first.
fn edited(tp: u32, rank: Rank, address: u64) -> NodeFact {
    let mut node = Engine::graph(Topology::tensor(tp), rank);
    node.args[0].address = Address(address);
    node
}

/// The graph of these ranks is this one from a phase of `warm` on.
fn edit(run: &mut Run, phase: &str, tp: u32, on: impl Fn(Rank) -> bool, address: u64) {
    let mut nodes = Vec::new();
    run.since("warm", phase).map(|rank, mut fact| {
        if let Fact::Census(census) = &mut fact
            && on(rank)
        {
            let node = edited(tp, rank, address);
            census.digest = census_digest([&node]);
            nodes.push((rank, node));
        }
        Some(fact)
    });
    // What a graph has become is recorded once.
    for (rank, node) in nodes.into_iter().take(1) {
        run.phase("warm", phase).add(StepName::ReadBack, rank, vec![Fact::Node(node)]);
    }
}

fn claim(run: &mut Run, phase: &str, rank: Rank, graph: &str) {
    let (what, value) = ("recaptured".to_owned(), graph.to_owned());
    let fact = Fact::Claim(ClaimFact { what, value });
    run.phase("warm", phase).add(StepName::Resume, rank, vec![fact]);
}

#[test]
fn a_graph_that_was_edited_in_silence_is_a_finding() {
    let mut run = correct();
    edit(&mut run, "B>A", 1, |_| true, 0x77);
    assert_eq!(run.found(), [one(Code::GraphChanged, "decode-1", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.expected.starts_with("node 0, kernel `forward` on 0x"), "{finding:?}");
    assert!(finding.actual.starts_with("node 0, kernel `forward` on 0x77,"), "{finding:?}");
    assert!(finding.why.contains("before `B>A`"), "{}", finding.why);
    let what: Vec<&str> = finding.events.iter().map(|event| event.what.as_str()).collect();
    assert_eq!(what, ["captured", "counted"]);
}

#[test]
fn it_names_the_rank_whose_graph_it_is() {
    let mut run = correct_at(2);
    edit(&mut run, "A>B", 2, |rank| rank.tp == 1, 0x77);
    assert_eq!(run.found(), [one(Code::GraphChanged, "decode-1", &[1])]);
}

#[test]
fn a_graph_that_is_gone_is_a_finding() {
    let mut run = correct();
    run.since("warm", "P>B").map(|_, fact| match fact {
        Fact::Census(census) => {
            let digest = census_digest([]);
            Some(Fact::Census(CensusFact { nodes: 0, digest, ..census }))
        }
        other => Some(other),
    });
    assert_eq!(run.found(), [one(Code::GraphChanged, "decode-1", &[0])]);
    assert_eq!(run.judge().findings[0].actual, "no such node");
}

#[test]
fn a_graph_that_was_captured_again_and_said_to_be_proves_nothing() {
    let mut run = correct();
    edit(&mut run, "A>B", 1, |_| true, 0x77);
    claim(&mut run, "A>B", Rank::default(), "decode-1");
    let reason = "graph `decode-1` of arm `warm` was captured again in `A>B`";
    assert_undecided(&run, Room::Storage, reason);
    // Another graph, or another time, is not what was said.
    let mut run = correct();
    edit(&mut run, "A>B", 1, |_| true, 0x77);
    claim(&mut run, "A>B", Rank::default(), "decode-2");
    claim(&mut run, "B>A", Rank::default(), "decode-1");
    assert_eq!(run.found(), [one(Code::GraphChanged, "decode-1", &[0])]);
    // To say it of a graph that is as it was changes nothing.
    let mut run = correct();
    claim(&mut run, "A>B", Rank::default(), "decode-1");
    assert_silent(&run);
}

#[test]
fn what_a_changed_graph_no_longer_retains_may_move() {
    let moves = |run: &mut Run, phase: &str| {
        run.since("warm", phase).slot(GATE_UP, |_, slot| {
            let print = slot.fingerprint.as_mut().unwrap();
            print.address = Address(0x9_0000);
        });
    };
    let mut run = correct();
    edit(&mut run, "B>A", 1, |_| true, 0x77);
    claim(&mut run, "B>A", Rank::default(), "decode-1");
    moves(&mut run, "B>A");
    assert_eq!(run.found(), []);
    // Before it changed, the old graph was the one that served.
    moves(&mut run, "A>B");
    assert_eq!(run.found(), [one(Code::SlotRebound, GATE_UP, &[0])]);
}

#[test]
fn a_layout_that_a_changed_graph_no_longer_reads_may_change() {
    let reshaped = |run: &mut Run, phase: &str| {
        run.since("warm", phase).slot(GATE_UP, |_, slot| {
            slot.fingerprint.as_mut().unwrap().stride = vec![1, 7];
        });
    };
    let mut run = correct();
    edit(&mut run, "B>A", 1, |_| true, 0x77);
    claim(&mut run, "B>A", Rank::default(), "decode-1");
    reshaped(&mut run, "B>A");
    assert_eq!(run.found(), []);
    reshaped(&mut run, "A>B");
    assert_eq!(run.found(), [one(Code::SlotRespecified, GATE_UP, &[0])]);
}

#[test]
fn graphs_that_were_not_counted_again_prove_nothing() {
    let mut run = correct();
    run.phase("warm", "A>P").drop(|_, fact| matches!(fact, Fact::Census(_)));
    let reason = "the graphs of arm `warm` were not counted again in `A>P`";
    assert_undecided(&run, Room::Storage, reason);
    // On each rank.
    let mut run = correct_at(2);
    run.phase("warm", "A>P").drop(|rank, fact| rank.tp == 1 && matches!(fact, Fact::Census(_)));
    assert_undecided(&run, Room::Storage, reason);
    // Where nothing was looked at, that is the reason.
    let mut run = correct();
    run.phase("warm", "A>P")
        .drop(|_, fact| matches!(fact, Fact::Census(_) | Fact::ReadBack(_) | Fact::Slot(_)));
    let (_, why) = room(&run.judge(), Room::Storage);
    assert!(!why.contains("not counted again"), "{why}");
}
