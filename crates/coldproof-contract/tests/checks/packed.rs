//! Slots that an engine packs in an order of its own: permuted, unfinished, not loaded.

use coldproof_contract::evidence::{
    Fact, OriginRun, OriginsFact, PostLoadFact, PostLoadStage, ReorderedFact,
};
use coldproof_contract::verdict::FindingCode as Code;
use coldproof_contract::words::{Packing, Rank, StepName};

use crate::support::model::{self, GATE_UP, NORM};
use crate::support::{Run, assert_silent, correct, one};

/// Stored elements by their place in the source.
fn order(elements: [u64; 3]) -> Fact {
    let runs = elements.into_iter().enumerate().map(|(slot, element)| OriginRun {
        slot: slot as u64,
        source: Some(0),
        element,
        length: 1,
        count: 1,
        slot_step: 0,
        source_step: 0,
    });
    let sources = vec!["w".to_owned()];
    Fact::Order(OriginsFact { slot: GATE_UP.into(), sources, runs: runs.collect() })
}

/// The cold load stores one order, the live engine another.
fn stored(cold: [u64; 3], warm: [u64; 3]) -> Run {
    let mut run = correct();
    let rank = Rank::default();
    run.phase("cold-b", "before").add(StepName::ReadBack, rank, vec![order(cold)]);
    run.phase("warm", "A>B").add(StepName::ReadBack, rank, vec![order(warm)]);
    run
}

/// What was read is another content.
pub(crate) fn other_bytes(run: &mut Run, slot: &str) {
    run.phase("warm", "A>B").read(slot, |_, read| {
        read.content = Some(model::content("in another order"));
        read.pieces.clear();
    });
}

fn reordered(run: &mut Run, content: &str) {
    let fact = ReorderedFact { slot: GATE_UP.into(), content: model::content(content) };
    let facts = vec![Fact::Reordered(fact)];
    run.phase("warm", "A>B").add(StepName::ReadBack, Rank::default(), facts);
}

fn actual(run: &Run) -> String {
    assert_eq!(run.found(), [one(Code::LoaderStale, GATE_UP, &[0])]);
    run.judge().findings.remove(0).actual
}

#[test]
fn a_permuted_slot_is_told_with_its_permutation_and_the_proof() {
    let mut run = stored([0, 1, 2], [0, 2, 1]);
    other_bytes(&mut run, GATE_UP);
    let text = actual(&run);
    assert!(text.contains("permuted: 2 of 3 elements lie elsewhere"), "{text}");
    assert!(text.ends_with("and it was not put in the cold load's order"), "{text}");
    let mut proven = run.clone();
    // What the cold load holds.
    reordered(&mut proven, &format!("B {GATE_UP} 0"));
    let text = actual(&proven);
    assert!(text.ends_with("its bytes are those of the cold load"), "{text}");
    reordered(&mut run, "something else");
    let text = actual(&run);
    assert!(text.ends_with("its bytes are still not those of the cold load"), "{text}");
}

#[test]
fn the_same_order_explains_nothing_and_another_order_accuses_nobody() {
    let mut run = stored([0, 1, 2], [0, 1, 2]);
    other_bytes(&mut run, GATE_UP);
    assert!(!actual(&run).contains("permuted"));
    assert_silent(&stored([0, 1, 2], [2, 1, 0]));
}

/// A layer that the engine says it never processed.
pub(crate) fn unfinished(run: &mut Run) {
    run.phase("warm", "A>B").drop(|_, fact| match fact {
        Fact::PostLoad(stage) => stage.layer == "norm" && stage.stage != PostLoadStage::Expected,
        _ => false,
    });
}

#[test]
fn what_an_unfinished_layer_holds_is_one_finding_with_it() {
    let mut run = correct();
    unfinished(&mut run);
    assert_eq!(run.found(), [one(Code::FinalisedNever, "norm", &[0])]);
    other_bytes(&mut run, NORM);
    assert_eq!(run.found(), [one(Code::FinalisedNever, "norm", &[0])]);
    // A slot of another layer is not explained by it.
    other_bytes(&mut run, GATE_UP);
    let wanted = [one(Code::FinalisedNever, "norm", &[0]), one(Code::LoaderStale, GATE_UP, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn an_object_inside_a_layer_explains_what_the_layer_packs_alone() {
    let inside = |run: &mut Run| {
        run.phase("warm", "A>B").map(|_, fact| match fact {
            Fact::PostLoad(stage) if stage.layer == "norm" => {
                let layer = "norm/kernel".to_owned();
                Some(Fact::PostLoad(PostLoadFact { layer, ..stage }))
            }
            other => Some(other),
        });
        run.phase("warm", "A>B").drop(|_, fact| match fact {
            Fact::PostLoad(stage) => {
                stage.layer == "norm/kernel" && stage.stage != PostLoadStage::Expected
            }
            _ => false,
        });
    };
    let mut run = correct();
    inside(&mut run);
    other_bytes(&mut run, NORM);
    let never = one(Code::FinalisedNever, "norm/kernel", &[0]);
    assert_eq!(run.found(), [never.clone(), one(Code::LoaderStale, NORM, &[0])]);
    run.phase("warm", "A>B").slot(NORM, |_, slot| slot.packing = Packing::Opaque);
    assert_eq!(run.found(), [never]);
}

#[test]
fn what_is_inside_an_unfinished_layer_is_no_second_finding() {
    let mut run = correct();
    let inside = run.events.iter().find_map(|event| match &event.fact {
        Fact::PostLoad(stage) if event.arm == "warm" && stage.layer == "norm" => {
            Some(stage.clone())
        }
        _ => None,
    });
    let inside = PostLoadFact {
        layer: "norm/kernel".to_owned(),
        stage: PostLoadStage::Expected,
        prerequisites: Vec::new(),
        ..inside.unwrap()
    };
    let facts = vec![Fact::PostLoad(inside)];
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), facts.clone());
    assert_eq!(run.found(), [one(Code::FinalisedNever, "norm/kernel", &[0])]);
    unfinished(&mut run);
    assert_eq!(run.found(), [one(Code::FinalisedNever, "norm", &[0])]);
}
