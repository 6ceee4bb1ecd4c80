//! What no replay showed is listed, and is no reason not to pass.

use coldproof_contract::evidence::{CensusFact, Fact, NodeFact, UncontrolledFact, census_digest};
use coldproof_contract::words::{Rank, StepName};

use crate::support::model::{EMBED, GATE_UP, HEAD};
use crate::support::{Run, assert_silent, correct};

#[test]
fn slots_without_a_control_are_counted_in_one_line() {
    let none = |slot: &str| {
        let reason = "too many".to_owned();
        Fact::Uncontrolled(UncontrolledFact { slot: slot.into(), reason })
    };
    let line = "2 slots without a positive control (too many)".to_owned();
    let mut run = correct();
    // One that was changed after all, in this arm or another, is none.
    let facts = vec![none(EMBED), none(HEAD), none(GATE_UP)];
    run.phase("warm", "A>B").add(StepName::Control, Rank::default(), facts);
    assert_silent(&run);
    assert!(run.judge().unseen.contains(&line), "{:?}", run.judge().unseen);
    assert!(!correct().judge().unseen.contains(&line));
}

#[test]
fn a_graph_that_no_request_replays_is_unseen() {
    let unseen = |run: &Run| {
        let unseen = run.judge().unseen.into_iter();
        unseen.filter(|text| text.starts_with("graph ")).collect::<Vec<_>>()
    };
    let mut run = correct();
    assert!(unseen(&run).is_empty());
    let mut wide = Vec::new();
    run.phase("warm", "before").map(|rank, fact| {
        if let Fact::Node(node) = &fact {
            let node = NodeFact { graph: "decode-2".to_owned(), ..node.clone() };
            wide.push((rank, node));
        }
        Some(fact)
    });
    let (rank, node) = wide.remove(0);
    let digest = census_digest([&node]);
    run.phase("warm", "before").add(StepName::Capture, rank, vec![Fact::Node(node)]);
    for phase in ["A>B", "B>A", "A>P", "P>B"] {
        let census = CensusFact { graph: "decode-2".to_owned(), nodes: 1, digest };
        run.phase("warm", phase).add(StepName::ReadBack, rank, vec![Fact::Census(census)]);
    }
    assert_silent(&run);
    assert_eq!(unseen(&run), ["graph decode-2 (not replayed after an update)"]);
}
