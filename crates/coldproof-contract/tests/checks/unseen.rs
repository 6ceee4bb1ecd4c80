//! What no replay showed is listed, and is no reason not to pass.

use coldproof_contract::evidence::{
    CensusFact, ClaimFact, Fact, NodeFact, UncontrolledFact, census_digest,
};
use coldproof_contract::verdict::FindingCode as Code;
use coldproof_contract::words::{Rank, StepName};

use crate::support::model::{EMBED, GATE_UP, HEAD, NORM, content};
use crate::support::{Run, assert_silent, correct, one};

fn claim(run: &mut Run, what: &str, value: &str) {
    let fact = Fact::Claim(ClaimFact { what: what.to_owned(), value: value.to_owned() });
    run.phase("warm", "A>B").add(StepName::ReadBack, Rank::default(), vec![fact]);
}

#[test]
fn what_the_engines_side_could_not_look_at_is_listed() {
    let mut run = correct();
    claim(&mut run, "unseen", "phases (complex64 has no name)");
    assert_silent(&run);
    assert_eq!(run.judge().unseen, ["phases (complex64 has no name)"]);
    let mut run = correct();
    claim(&mut run, "something else", "phases");
    assert_eq!(run.judge().unseen, Vec::<String>::new());
}

/// The file of B has a negative zero; what is read has none.
fn negative_zero() -> Run {
    let mut run = correct();
    let b = run.header.checkpoints.iter_mut().find(|file| file.label.0 == "B").unwrap();
    let source = b.sources.iter_mut().find(|source| source.name == NORM).unwrap();
    source.unsigned = Some(content("without a sign"));
    run.phase("warm", "A>B").map(|_, mut fact| {
        if let Fact::SourceReadBack(read) = &mut fact
            && read.source == NORM
        {
            read.digest = Some(content("without a sign"));
        }
        Some(fact)
    });
    run
}

#[test]
fn what_is_read_without_the_sign_of_zeros_may_lack_it_alone() {
    let mut run = negative_zero();
    claim(&mut run, "zero-sign-unseen", NORM);
    assert_silent(&run);
    assert_eq!(run.judge().unseen, [format!("{NORM} (the sign of its zeros)")]);
    // A slot whose bytes are read has them all.
    let stale = [one(Code::LoaderStale, NORM, &[0])];
    assert_eq!(negative_zero().found(), stale);
    // So it is where another slot is the one without them.
    let mut run = negative_zero();
    claim(&mut run, "zero-sign-unseen", HEAD);
    assert_eq!(run.found(), stale);
    // Any other byte counts.
    let mut run = negative_zero();
    claim(&mut run, "zero-sign-unseen", NORM);
    let b = run.header.checkpoints.iter_mut().find(|file| file.label.0 == "B").unwrap();
    b.sources.iter_mut().for_each(|source| source.unsigned = None);
    assert_eq!(run.found(), stale);
}

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
