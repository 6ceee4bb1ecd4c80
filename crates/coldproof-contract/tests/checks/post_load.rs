//! Category 3: expected = processed = finalised, once each, prerequisites first.

use coldproof_contract::evidence::{Fact, PostLoadFact, PostLoadStage};
use coldproof_contract::verdict::{FindingCode as Code, Room};
use coldproof_contract::words::{Rank, StepName};

use crate::lifecycle::account;
use crate::support::model::GATE;
use crate::support::{Run, assert_undecided, correct, one};

fn post_load(run: &mut Run, change: impl Fn(&PostLoadFact) -> Option<PostLoadFact>) {
    run.phase("warm", "A>B").map(|_, fact| match &fact {
        Fact::PostLoad(stage) => change(stage).map(Fact::PostLoad),
        _ => Some(fact),
    });
}

#[test]
fn a_layer_that_was_finished_too_early_or_twice_or_out_of_turn() {
    let finalised = |stage: &PostLoadFact| stage.stage == PostLoadStage::Finalised;
    // Processed after it was finalised.
    let mut run = correct();
    post_load(&mut run, |stage| match (stage.layer.as_str(), stage.stage) {
        ("mlp", PostLoadStage::Processed) => {
            Some(PostLoadFact { stage: PostLoadStage::Finalised, ..stage.clone() })
        }
        ("mlp", PostLoadStage::Finalised) => {
            Some(PostLoadFact { stage: PostLoadStage::Processed, ..stage.clone() })
        }
        _ => Some(stage.clone()),
    });
    assert_eq!(run.found(), [one(Code::FinalisedEarly, "mlp", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.actual, "`mlp` was finalised before it was processed");
    assert_eq!(finding.events[0].step, "finalize");
    // Twice.
    let mut run = correct();
    post_load(&mut run, |stage| {
        let mut again = stage.clone();
        if stage.layer == "norm" && finalised(stage) {
            again.layer = "mlp".to_owned();
        }
        Some(again)
    });
    let wanted = [one(Code::FinalisedEarly, "mlp", &[0]), one(Code::FinalisedNever, "norm", &[0])];
    assert_eq!(run.found(), wanted);
    // A layer that nobody expected.
    let mut run = correct();
    post_load(&mut run, |stage| {
        let expected = stage.layer == "norm" && stage.stage == PostLoadStage::Expected;
        (!expected).then(|| stage.clone())
    });
    assert_eq!(run.found(), [one(Code::FinalisedEarly, "norm", &[0])]);
}

#[test]
fn a_layer_that_was_never_finished() {
    for (stage, text) in [
        (PostLoadStage::Finalised, "`norm` was never finalised"),
        (PostLoadStage::Processed, "`norm` was finalised before it was processed"),
    ] {
        let mut run = correct();
        post_load(&mut run, |fact| {
            (fact.layer != "norm" || fact.stage != stage).then(|| fact.clone())
        });
        let finding = run.judge().findings.remove(0);
        assert_eq!(finding.actual, text);
        assert_eq!((finding.object.as_str(), finding.ranks), ("norm", vec![0]));
    }
    let mut run = correct();
    post_load(&mut run, |fact| {
        (fact.layer != "norm" || fact.stage == PostLoadStage::Expected).then(|| fact.clone())
    });
    assert_eq!(run.found(), [one(Code::FinalisedNever, "norm", &[0])]);
}

#[test]
fn a_layer_that_was_processed_before_its_elements_had_arrived() {
    let mut run = correct();
    let mlp = |fact: &Fact| match fact {
        Fact::PostLoad(fact) => fact.layer == "mlp" && fact.stage != PostLoadStage::Expected,
        _ => false,
    };
    let mut early = Vec::new();
    run.phase("warm", "A>B").drop(|_, fact| {
        if mlp(fact) {
            early.push(fact.clone());
        }
        mlp(fact)
    });
    let mut gate = Vec::new();
    run.phase("warm", "A>B").drop(|_, fact| {
        let it = matches!(fact, Fact::Application(fact) if fact.source == GATE);
        if it {
            gate.push(fact.clone());
        }
        it
    });
    early.extend(gate);
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), early);
    let found = run.found();
    assert_eq!(found, [one(Code::FinalisedEarly, "mlp", &[0])]);
}

#[test]
fn a_layer_that_was_finished_over_a_gap_is_the_gap() {
    let mut run = correct();
    account(&mut run, GATE, |_| vec![]);
    // `mlp` is processed and finalised while the gate is missing: not a second finding.
    assert_eq!(run.found(), [one(Code::ApplicationMissing, GATE, &[0])]);
}

#[test]
fn an_account_of_layers_that_wait_for_each_other_is_undecided() {
    let mut run = correct();
    post_load(&mut run, |stage| {
        let needs = if stage.layer == "mlp" { "norm" } else { "mlp" };
        Some(PostLoadFact { prerequisites: vec![needs.to_owned()], ..stage.clone() })
    });
    assert_undecided(&run, Room::Lifecycle, "the account of arm `warm` cannot be replayed");
}
