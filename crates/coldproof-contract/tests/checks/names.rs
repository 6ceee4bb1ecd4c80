//! Category 6: names.

use coldproof_contract::evidence::{Fact, ManifestFact, PostLoadStage, ReceiptFact};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::SlotKind;

use crate::support::model::{EMBED, GATE, GATE_UP, HEAD, NORM, UP, content};
use crate::support::{Run, assert_silent, assert_undecided, correct, correct_at, one, room};

fn manifest(run: &mut Run, arm: &str, change: impl Fn(&mut ManifestFact)) {
    run.since(arm, "before").map(|_, mut fact| {
        if let Fact::Manifest(manifest) = &mut fact {
            change(manifest);
        }
        Some(fact)
    });
}

fn receipts(run: &mut Run, arm: &str, change: impl Fn(u32, &mut ReceiptFact)) {
    run.since(arm, "before").map(|rank, mut fact| {
        if let Fact::Receipt(receipt) = &mut fact {
            change(rank.tp, receipt);
        }
        Some(fact)
    });
}

#[test]
fn a_required_source_that_was_never_delivered_is_missing() {
    let mut run = correct();
    manifest(&mut run, "names", |manifest| manifest.delivered.retain(|name| name != NORM));
    assert_eq!(run.found(), [one(Code::SourceMissing, NORM, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.events[0].text, "scope from caller");
}

#[test]
fn what_may_be_absent_or_is_kept_may_be_delivered_or_not() {
    let mut run = correct();
    manifest(&mut run, "names", |manifest| {
        manifest.explicitly_preserved.push("rope.kept".to_owned());
    });
    assert_silent(&run);
    manifest(&mut run, "names", |manifest| {
        manifest.delivered.extend(["rope.kept".to_owned(), "rope.inv_freq".to_owned()]);
    });
    assert_silent(&run);
}

#[test]
fn a_source_that_nothing_expects_is_unexpected() {
    let mut run = correct();
    manifest(&mut run, "names", |manifest| manifest.delivered.push("extra.weight".to_owned()));
    assert_eq!(run.found(), [one(Code::SourceUnexpected, "extra.weight", &[0])]);
}

#[test]
fn one_missing_and_one_unexpected_do_not_cancel_out() {
    let mut run = correct();
    manifest(&mut run, "warm", |manifest| {
        let norm = manifest.delivered.iter_mut().find(|name| *name == NORM).unwrap();
        *norm = "norm.weights".to_owned();
    });
    let wanted =
        [one(Code::SourceMissing, NORM, &[0]), one(Code::SourceUnexpected, "norm.weights", &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_source_that_no_rank_took_is_unrouted() {
    let mut run = correct_at(2);
    receipts(&mut run, "names", |_, receipt| receipt.unrouted.push(UP.to_owned()));
    assert_eq!(run.found(), [one(Code::SourceUnrouted, UP, &[0, 1])]);
    assert!(run.judge().findings[0].why.contains("the delivery of arm `names`"));
}

#[test]
fn a_source_that_some_rank_took_or_that_may_be_left_out_is_routed() {
    let mut run = correct_at(2);
    receipts(&mut run, "names", |rank, receipt| {
        receipt.unrouted.extend((rank == 1).then(|| UP.to_owned()));
        receipt.unrouted.push("rope.inv_freq".to_owned());
    });
    assert_silent(&run);
    manifest(&mut run, "names", |manifest| manifest.delivered.push("rope.inv_freq".to_owned()));
    assert_silent(&run);
}

#[test]
fn a_gap_in_the_account_of_an_unrouted_source_is_no_second_finding() {
    let mut run = correct();
    receipts(&mut run, "names", |_, receipt| receipt.unrouted.push(UP.to_owned()));
    run.phase("names", "A>B")
        .drop(|_, fact| matches!(fact, Fact::Application(fact) if fact.source == UP));
    run.phase("names", "A>B").still_holds(GATE_UP, "A");
    assert_eq!(run.found(), [one(Code::SourceUnrouted, UP, &[0])]);
    let (status, reason) = room(&run.judge(), Room::Lifecycle);
    assert_eq!(status, Status::Undecided);
    assert!(reason.contains("see source-unrouted of `mlp.up.weight`"), "{reason}");
}

/// The other spelling of `sources` is taken in silence and written nowhere.
fn swallowed(run: &mut Run) {
    run.phase("names-1", "A>B-alt").still_holds(GATE_UP, "A");
}

#[test]
fn another_spelling_that_is_swallowed_in_silence_is_unrouted() {
    let mut run = correct();
    swallowed(&mut run);
    let wanted = [
        one(Code::SourceUnrouted, "mlp.w1.weight", &[0]),
        one(Code::SourceUnrouted, "mlp.w3.weight", &[0]),
    ];
    // Both names lead to the one slot, and neither reached it.
    assert_eq!(run.found(), wanted);
    assert!(run.judge().findings[0].why.contains("under its usual names reaches the slot"));
    // The layer that waits for them is not finished: the same finding, and only of that layer.
    let unfinished = |layer: &str| {
        let mut run = run.clone();
        run.phase("names-1", "A>B-alt").map(|_, mut fact| match &mut fact {
            Fact::PostLoad(stage) => {
                stage.prerequisites.clear();
                let waits = stage.layer == layer && stage.stage != PostLoadStage::Expected;
                (!waits).then_some(fact)
            }
            _ => Some(fact),
        });
        run.found()
    };
    assert_eq!(unfinished("mlp"), wanted);
    let norm = one(Code::FinalisedNever, "norm", &[0]);
    assert_eq!(unfinished("norm"), [&[norm], wanted.as_slice()].concat());
}

#[test]
fn a_name_whose_elements_are_there_is_not_accused_with_its_neighbour() {
    for (stale, name) in [(GATE, "mlp.w1.weight"), (UP, "mlp.w3.weight")] {
        let mut run = correct();
        let mut right = Vec::new();
        run.phase("names", "A>B").map(|_, fact| {
            if let Fact::ReadBack(read) = &fact
                && read.slot.0 == GATE_UP
            {
                right.clone_from(&read.pieces);
            }
            Some(fact)
        });
        swallowed(&mut run);
        run.phase("names-1", "A>B-alt").read(GATE_UP, |_, read| {
            for (now, right) in read.pieces.iter_mut().zip(&right) {
                if now.source != stale {
                    *now = right.clone();
                }
            }
        });
        assert_eq!(run.found(), [one(Code::SourceUnrouted, name, &[0])]);
    }
}

#[test]
fn a_slot_that_is_wrong_under_its_usual_names_too_is_not_a_matter_of_names() {
    let mut run = correct();
    swallowed(&mut run);
    let wanted =
        [one(Code::ApplicationMissing, GATE, &[0]), one(Code::ApplicationMissing, UP, &[0])];
    for arm in ["warm", "names"] {
        let mut run = run.clone();
        run.phase(arm, "A>B").still_holds(GATE_UP, "A");
        assert_eq!(run.found(), wanted, "{arm}");
    }
}

#[test]
fn a_difference_under_the_usual_names_is_not_a_matter_of_names() {
    let mut run = correct();
    run.phase("names", "A>B").still_holds(NORM, "A");
    assert_eq!(run.found(), [one(Code::ApplicationMissing, NORM, &[0])]);
    // Nor is one of a source whose name is the usual one in the other spelling as well.
    let mut run = correct();
    run.phase("names-1", "A>B-alt").still_holds(NORM, "A");
    assert_eq!(run.found(), [one(Code::ApplicationMissing, NORM, &[0])]);
    // Nor is a slot that no source fills.
    let mut run = correct();
    run.phase("names-1", "A>B-alt").read(crate::support::model::ROPE, |_, read| {
        read.content = Some(crate::support::model::content("garbage"));
    });
    assert_eq!(run.found(), [one(Code::StateLost, crate::support::model::ROPE, &[0])]);
}

#[test]
fn each_delivery_must_show_its_sources_in_place() {
    for (arm, phase) in [("names", "A>B"), ("names-1", "A>B-alt")] {
        let mut run = correct();
        run.phase(arm, phase).drop(|_, fact| matches!(fact, Fact::SourceReadBack(_)));
        let reason = format!("arm `{arm}` put no source of `{phase}` in place");
        assert_undecided(&run, Room::Names, &reason);
    }
    let mut run = correct();
    for (arm, phase) in [("names", "A>B"), ("names-1", "A>B-alt")] {
        run.phase(arm, "before").drop(|_, fact| matches!(fact, Fact::SourceReadBack(_)));
        run.phase(arm, phase).drop(|_, fact| matches!(fact, Fact::SourceReadBack(_)));
    }
    assert_undecided(&run, Room::Names, "no source was read back under its name");
}

#[test]
fn without_the_lane_names_are_not_covered() {
    let run = correct().without_arm("names").without_arm("names-1");
    assert_eq!(room(&run.judge(), Room::Names).0, Status::NotCovered);
}

#[test]
fn checks_count_sources_in_place() {
    let verdict = correct().judge();
    let (_, proven) = room(&verdict, Room::Names);
    assert_eq!(proven, "16 sources resolved to their slots and back, in 2 deliveries");
    // One that is not there, or is another, is not in place.
    for digest in [None, Some(content("another"))] {
        let mut run = correct();
        run.phase("names", "A>B").map(|_, mut fact| {
            if let Fact::SourceReadBack(read) = &mut fact
                && read.source == NORM
            {
                read.digest = digest;
            }
            Some(fact)
        });
        assert_eq!(run.judge().categories[5].checks, 15);
    }
}

/// The engine registers a slot of this kind that the catalogue does not have.
fn register(run: &mut Run, arm: &str, phase: &str, name: &str, kind: SlotKind) {
    let extra = run.events.iter().find_map(|event| match &event.fact {
        Fact::Slot(slot) if slot.slot.0 == NORM => Some(slot.clone()),
        _ => None,
    });
    let mut extra = extra.unwrap();
    (extra.slot, extra.slot_kind) = (name.into(), kind);
    let tp = run.header.engine.topology.tp;
    for rank in (0..tp).map(coldproof_contract::words::Rank::tensor) {
        let facts = vec![Fact::Slot(extra.clone())];
        run.phase(arm, phase).add(coldproof_contract::words::StepName::Resume, rank, facts);
    }
}

const EXTRA: &str = "mlp.extra.weight";

#[test]
fn a_parameter_that_no_source_fills_has_no_source() {
    for (arm, phase) in [("names", "A>B"), ("names-1", "A>B-alt")] {
        let mut run = correct_at(2);
        register(&mut run, arm, phase, EXTRA, SlotKind::Parameter);
        assert_eq!(run.found(), [one(Code::SourceMissing, EXTRA, &[0, 1])]);
        let finding = run.judge().findings.remove(0);
        assert_eq!(finding.actual, "no source leads to it");
        assert_eq!((finding.events[0].step.as_str(), finding.events.len()), ("resume", 1));
    }
}

#[test]
fn what_is_no_parameter_needs_no_source() {
    for kind in [SlotKind::Buffer, SlotKind::Derived, SlotKind::Scratch, SlotKind::Alias] {
        let mut run = correct();
        register(&mut run, "names", "A>B", EXTRA, kind);
        assert_eq!(run.found(), [], "{kind:?}");
    }
    // The other lanes do not look at names, and the cold load that has none is not asked.
    let mut run = correct();
    register(&mut run, "warm", "A>B", EXTRA, SlotKind::Parameter);
    assert_eq!(run.found(), []);
}

#[test]
fn another_name_of_a_filled_slot_needs_no_source_of_its_own() {
    let mut run = correct();
    for arm in ["cold-b", "names"] {
        run.since(arm, "before").slot(HEAD, |_, slot| slot.slot_kind = SlotKind::Parameter);
    }
    assert_silent(&run);
    // Unless nothing that is filled says so.
    run.since("names", "A>B").slot(EMBED, |_, slot| slot.aliases.clear());
    assert_eq!(run.found(), [one(Code::SourceMissing, HEAD, &[0])]);
}

#[test]
fn a_parameter_that_the_caller_leaves_out_on_purpose_needs_no_source() {
    for preserved in [false, true] {
        let mut run = correct();
        register(&mut run, "names", "A>B", EXTRA, SlotKind::Parameter);
        manifest(&mut run, "names", |manifest| {
            let names = if preserved {
                &mut manifest.explicitly_preserved
            } else {
                &mut manifest.allowed_missing
            };
            names.push(EXTRA.to_owned());
        });
        assert_eq!(run.found(), []);
    }
}

#[test]
fn a_model_of_which_no_rule_is_known_has_no_parameter_without_a_source() {
    let mut run = correct();
    run.header.rules.clear();
    run.header.checkpoints.iter_mut().for_each(|checkpoint| checkpoint.rules.clear());
    assert!(run.found().iter().all(|found| found.1 != Code::SourceMissing), "{:?}", run.found());
}

#[test]
fn a_manifest_that_contradicts_itself_or_forgets_a_source_is_undecided() {
    let mut run = correct();
    manifest(&mut run, "names", |manifest| manifest.explicitly_preserved.push(NORM.to_owned()));
    let reason = "the manifest of arm `names` in `A>B`: `norm.weight` is both required and \
                  preserved";
    assert_undecided(&run, Room::Names, reason);
    let mut run = correct();
    manifest(&mut run, "names", |manifest| {
        manifest.required.retain(|name| name != NORM);
        manifest.delivered.retain(|name| name != NORM && name != GATE);
    });
    // What it does promise is judged.
    assert!(run.found().contains(&one(Code::SourceMissing, GATE, &[0])), "{:?}", run.found());
    let mut run = correct();
    manifest(&mut run, "names", |manifest| {
        manifest.required.retain(|name| name != NORM);
        manifest.delivered.retain(|name| name != NORM);
    });
    run.phase("names", "A>B")
        .drop(|_, fact| matches!(fact, Fact::Application(fact) if fact.source == NORM));
    let verdict = run.judge();
    let (_, reason) = room(&verdict, Room::Names);
    assert!(reason.contains("the model needs `norm.weight`"), "{reason} {:?}", verdict.findings);
}

#[test]
fn repeats_and_patterns_of_a_promise_are_no_fault() {
    let mut run = correct();
    manifest(&mut run, "names", |manifest| {
        manifest.delivered.push(NORM.to_owned());
        manifest.allowed_missing.push("layers.*.scale".to_owned());
        manifest.delivered.push("layers.3.scale".to_owned());
    });
    assert_silent(&run);
    manifest(&mut run, "names", |manifest| manifest.delivered.push("layers.3.x.scale".to_owned()));
    assert_eq!(run.found(), [one(Code::SourceUnexpected, "layers.3.x.scale", &[0])]);
}
