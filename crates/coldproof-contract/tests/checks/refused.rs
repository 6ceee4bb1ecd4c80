//! After an update that the engine refused: what it serves then.

use coldproof_contract::evidence::{Event, Fact, LogitsFact, PhaseFact, StepFact, StepOutcome};
use coldproof_contract::verdict::FindingCode as Code;
use coldproof_contract::words::{Rank, StepName};

use crate::support::{Run, correct, model, moved, one};

/// The main request's outputs of one arm's load.
fn main_of(run: &Run, arm: &str) -> LogitsFact {
    let of = |event: &&Event| event.arm == arm;
    let facts = run.events.iter().filter(of).find_map(|event| match &event.fact {
        Fact::Logits(logits) if logits.request == "main" => Some(logits.clone()),
        _ => None,
    });
    facts.expect("the main request is served after every load")
}

/// The warm engine refuses its first update; then these steps, the last of which served `outputs`.
fn then(steps: &[(StepName, StepOutcome)], outputs: Option<LogitsFact>) -> Run {
    let mut run = correct();
    let refused = StepOutcome::Error { text: "norm.weight is missing".to_owned() };
    run.phase("warm", "A>B").ends(StepName::Finalize, refused);
    let last = run.events.iter().rev().find(|event| event.arm == "warm").cloned();
    let mut event = last.expect("an arm of the run");
    let mut add = |step: u32, fact: Fact| {
        (event.step, event.rank, event.fact) = (event.step + step, Rank::default(), fact);
        run.events.push(event.clone());
    };
    let (phase, at) = ("A again".to_owned(), model::label("A"));
    add(1, Fact::Phase(PhaseFact { phase, at, from: None, refused: true }));
    for (name, outcome) in steps {
        add(1, Fact::Step(StepFact { name: *name, outcome: None }));
        if let (StepName::Serve, StepOutcome::Ok, Some(outputs)) = (name, outcome, &outputs) {
            add(0, Fact::Logits(outputs.clone()));
        }
        add(0, Fact::Step(StepFact { name: *name, outcome: Some(outcome.clone()) }));
    }
    run
}

fn served(outputs: LogitsFact) -> Run {
    then(&[(StepName::Resume, StepOutcome::Ok), (StepName::Serve, StepOutcome::Ok)], Some(outputs))
}

#[test]
fn an_engine_that_goes_on_with_the_old_generation_is_right() {
    let run = served(main_of(&correct(), "warm"));
    assert_eq!(run.found(), [one(Code::StepRefused, "finalize", &[0])]);
}

#[test]
fn an_engine_that_serves_no_more_is_right() {
    let no = || StepOutcome::Error { text: "an update has failed".to_owned() };
    for steps in [
        vec![(StepName::Resume, no())],
        vec![(StepName::Resume, StepOutcome::Ok), (StepName::Serve, no())],
    ] {
        let run = then(&steps, None);
        assert_eq!(run.found(), [one(Code::StepRefused, "finalize", &[0])]);
    }
}

#[test]
fn an_engine_that_serves_what_it_refused_is_found() {
    let run = served(main_of(&correct(), "cold-b"));
    let wanted = [
        one(Code::StepRefused, "finalize", &[0]),
        one(Code::MixedGeneration, "transition `A again`", &[0]),
    ];
    assert_eq!(run.found(), wanted);
    let actual = &run.judge().findings[1].actual;
    assert!(actual.ends_with("has the logits of the new one"), "{actual}");
}

#[test]
fn an_engine_that_serves_neither_is_found() {
    let mut outputs = main_of(&correct(), "warm");
    moved(&mut outputs.rows[1], 0.25);
    let run = served(outputs);
    assert_eq!(run.found()[1], one(Code::MixedGeneration, "transition `A again`", &[0]));
    let actual = &run.judge().findings[1].actual;
    assert!(actual.ends_with("largest difference from before 2.5e-1"), "{actual}");
}

#[test]
fn an_engine_that_the_next_request_kills_is_found() {
    let died = StepOutcome::Died {
        text: "cannot copy out of meta tensor".to_owned(),
        kernel: None,
        address: None,
    };
    let run = then(&[(StepName::Resume, StepOutcome::Ok), (StepName::Serve, died)], None);
    let wanted = [one(Code::StepRefused, "finalize", &[0]), one(Code::EngineDied, "serve", &[0])];
    assert_eq!(run.found(), wanted);
}
