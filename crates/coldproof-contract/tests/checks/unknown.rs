//! Models that the catalogue does not know: the cold load is the baseline.

use coldproof_contract::evidence::{ApplicationFact, Fact};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::{Fragment, Rank, StepName, TransactionId};

use crate::packed::{other_bytes, unfinished};
use crate::support::model::{self, GATE, GATE_UP, NORM, UP};
use crate::support::{Run, correct, one, room};

/// A model that the catalogue does not know.
fn unknown() -> Run {
    let mut run = correct();
    run.header.rules.clear();
    run.header.checkpoints.iter_mut().for_each(|checkpoint| checkpoint.rules.clear());
    run
}

#[test]
fn of_an_unknown_model_a_layer_that_was_not_finished_is_found() {
    assert_eq!(unknown().found(), []);
    let mut run = unknown();
    unfinished(&mut run);
    assert_eq!(run.found(), [one(Code::FinalisedNever, "norm", &[0])]);
}

#[test]
fn of_an_unknown_model_a_slot_that_nothing_reached_is_named_itself() {
    let mut run = unknown();
    run.phase("warm", "A>B").still_holds(GATE_UP, "A");
    run.phase("warm", "A>B").read(GATE_UP, |_, read| read.pieces.clear());
    assert_eq!(run.found(), [one(Code::ApplicationMissing, GATE_UP, &[0])]);
    // Other bytes than the old ones did reach it.
    let mut run = unknown();
    other_bytes(&mut run, GATE_UP);
    assert_eq!(run.found(), [one(Code::LoaderStale, GATE_UP, &[0])]);
}

/// The ranks say that no slot took this source.
fn leaves_out(run: &mut Run, arm: &str, phase: &str, source: &str) {
    run.phase(arm, phase).map(|_, mut fact| {
        if let Fact::Receipt(receipt) = &mut fact {
            receipt.unrouted.push(source.to_owned());
        }
        Some(fact)
    });
}

fn unseen(run: &Run, source: &str) -> bool {
    let line = format!("{source} (the cold load leaves it out as well)");
    run.judge().unseen.contains(&line)
}

#[test]
fn what_the_cold_load_leaves_out_an_update_may_leave_out_too() {
    let mut run = unknown();
    for phase in ["before", "A>B"] {
        leaves_out(&mut run, "names", phase, NORM);
    }
    for phase in ["before", "A>B"] {
        leaves_out(&mut run, "composite", phase, NORM);
    }
    assert_eq!(run.found(), []);
    assert!(unseen(&run, NORM));
    assert!(run.judge().certificate.is_some());
    // The catalogue says of a model that it knows that nothing may be left out.
    let mut known = correct();
    for phase in ["before", "A>B"] {
        leaves_out(&mut known, "names", phase, NORM);
    }
    assert_eq!(known.found(), [one(Code::SourceUnrouted, NORM, &[0])]);
    assert!(!unseen(&known, NORM));
}

#[test]
fn what_the_update_alone_leaves_out_is_found_once() {
    let mut run = unknown();
    leaves_out(&mut run, "names", "A>B", NORM);
    run.phase("names", "A>B").still_holds(NORM, "A");
    assert_eq!(run.found(), [one(Code::SourceUnrouted, NORM, &[0])]);
    assert!(!unseen(&run, NORM));
    let (status, why) = room(&run.judge(), Room::Lifecycle);
    assert_eq!(status, Status::Undecided);
    assert!(why.contains("`norm.weight` differs: see source-unrouted"), "{why}");
    // Another source that the cold load left out does not excuse this one.
    leaves_out(&mut run, "names", "before", UP);
    assert_eq!(run.found(), [one(Code::SourceUnrouted, NORM, &[0])]);
}

/// What was put together of a source is not its file's.
fn differs(run: &mut Run, arm: &str, phase: &str, source: &str) {
    run.phase(arm, phase).map(|_, mut fact| {
        if let Fact::SourceReadBack(read) = &mut fact
            && read.source == source
        {
            read.digest = Some(model::content("other bytes"));
        }
        Some(fact)
    });
}

fn applied(source: &str, from: u64) -> Fact {
    Fact::Application(ApplicationFact {
        transaction: TransactionId(1),
        source: source.to_owned(),
        source_fragment: Fragment::whole(&[2, 4]),
        slot: GATE_UP.into(),
        slot_fragment: Fragment(vec![(from, from + 2).into(), (0, 4).into()]),
    })
}

/// The cold load of B is seen to write these.
fn cold(run: &mut Run, applications: Vec<Fact>) {
    run.phase("cold-b", "before").add(StepName::Load, Rank::default(), applications);
}

#[test]
fn a_cold_load_that_writes_one_source_over_another_is_found() {
    let mut run = unknown();
    cold(&mut run, vec![applied(GATE, 0), applied(UP, 1)]);
    // Equal bytes are no fault: a tied head is written over its embedding.
    assert_eq!(run.found(), []);
    differs(&mut run, "cold-b", "before", GATE);
    assert_eq!(run.found(), [one(Code::ApplicationOverlap, GATE, &[0])]);
    let actual = run.judge().findings.remove(0).actual;
    assert_eq!(actual, format!("`{UP}` was written over it"));
}

#[test]
fn what_a_cold_load_converts_is_judged_by_slots_alone() {
    let line = |run: &Run| run.judge().unseen.iter().any(|line| line.contains("no slot holds"));
    let mut run = unknown();
    cold(&mut run, vec![applied(GATE, 0), applied(UP, 2)]);
    assert!(!line(&run));
    for (arm, phase) in [("cold-b", "before"), ("warm", "before"), ("warm", "A>B")] {
        differs(&mut run, arm, phase, GATE);
    }
    assert_eq!(run.found(), []);
    assert!(line(&run));
    // As at B alone, whose values may be such that they are converted.
    let mut run = unknown();
    for (arm, phase) in [("cold-b", "before"), ("warm", "A>B")] {
        differs(&mut run, arm, phase, GATE);
    }
    run.phase("warm", "P>B").map(|_, mut fact| {
        if let Fact::SourceReadBack(read) = &mut fact
            && read.source == GATE
        {
            read.digest = Some(model::content("other bytes"));
        }
        Some(fact)
    });
    assert_eq!(run.found(), []);
}

#[test]
fn what_a_cold_load_keeps_an_update_must_keep_too() {
    let mut run = unknown();
    differs(&mut run, "warm", "A>B", GATE);
    assert_eq!(run.found(), [one(Code::LoaderStale, GATE, &[0])]);
    // Nor may it go without a word.
    let mut run = unknown();
    run.phase("warm", "A>B").drop(|_, fact| match fact {
        Fact::SourceReadBack(read) => read.source == GATE,
        _ => false,
    });
    let verdict = run.judge();
    let why = verdict.categories[2].reason.clone().unwrap_or_default();
    assert!(why.contains("`mlp.gate.weight` of arm `warm` was not held against its file"), "{why}");
}
