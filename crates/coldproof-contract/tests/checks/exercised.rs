//! What must have been stated, delivered and exercised before anything passes.

use coldproof_contract::evidence::{Fact, PostLoadStage};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status, VerdictKind};
use coldproof_contract::words::{Generation, StepName, StorageId};

use crate::support::model::{self, GATE, GATE_UP, NORM, NORM_F32, ROPE};
use crate::support::{Run, assert_silent, assert_undecided, correct, correct_at, one, room};

#[track_caller]
fn transition_undecided(run: &Run, reason: &str) {
    let verdict = run.judge();
    assert_eq!(verdict.findings, []);
    assert_eq!(verdict.transition.status, Status::Undecided);
    let text = verdict.transition.reason.unwrap_or_default();
    assert!(text.contains(reason), "{text}");
}

#[test]
fn a_difference_on_each_rank_is_one_finding_of_both() {
    let mut run = correct_at(2);
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0, 1])]);
    let mut run = correct_at(2);
    run.phase("warm", "A>B").read(ROPE, |rank, read| {
        if rank.tp == 1 {
            read.content = Some(model::content("garbage"));
        }
    });
    assert_eq!(run.found(), [one(Code::StateLost, ROPE, &[1])]);
}

#[test]
fn a_source_that_was_not_read_back_is_named() {
    let mut run = correct();
    run.phase("warm", "A>B")
        .drop(|_, fact| matches!(fact, Fact::SourceReadBack(read) if read.source == GATE));
    let reason = format!("`{GATE}` of arm `warm` was not held against its file in `A>B`");
    assert_undecided(&run, Room::Lifecycle, &reason);
    let mut run = correct();
    run.phase("names", "A>B")
        .drop(|_, fact| matches!(fact, Fact::SourceReadBack(read) if read.source == GATE));
    assert_undecided(&run, Room::Names, "was not held against its file");
}

#[test]
fn receipts_are_judged() {
    let receipt = |change: fn(&mut coldproof_contract::evidence::ReceiptFact)| {
        let mut run = correct();
        run.phase("warm", "A>B").map(|_, mut fact| {
            if let Fact::Receipt(receipt) = &mut fact {
                change(receipt);
            }
            Some(fact)
        });
        run.found()
    };
    assert_eq!(receipt(|_| ()), []);
    let wanted = [one(Code::MixedGeneration, "transaction 2", &[0])];
    assert_eq!(receipt(|receipt| receipt.committed = false), wanted);
    let wanted = [one(Code::ApplicationMissing, "x", &[0])];
    assert_eq!(receipt(|receipt| receipt.buffered = vec!["x".to_owned()]), wanted);
    let wanted = [one(Code::LabelWithoutEffect, "generation of `A>B`", &[0])];
    assert_eq!(receipt(|receipt| receipt.generation = Generation(99)), wanted);
}

#[test]
fn without_receipts_there_is_no_certificate_and_no_pass() {
    let mut run = correct();
    run.phase("composite", "A>B").drop(|_, fact| matches!(fact, Fact::Receipt(_)));
    let verdict = run.judge();
    assert_eq!((verdict.findings.len(), verdict.verdict), (0, VerdictKind::Undecided));
    assert!(verdict.notes.iter().any(|note| note.text.starts_with("no certificate")));
}

#[test]
fn an_epoch_older_than_an_input_convicts() {
    let mut run = correct();
    run.phase("warm", "A>B").slot(NORM_F32, |_, slot| slot.epoch = Generation(0));
    assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0])]);
}

#[test]
fn a_manifest_of_another_checkpoint_proves_no_names() {
    let mut run = correct();
    run.phase("names", "A>B").map(|_, mut fact| {
        if let Fact::Manifest(manifest) = &mut fact {
            manifest.checkpoint = model::label("A");
        }
        Some(fact)
    });
    assert_undecided(&run, Room::Names, "promises `A`");
}

#[test]
fn each_spelling_must_be_delivered() {
    let run = correct().without_arm("names-1");
    assert_undecided(&run, Room::Names, "the spelling `B-alt` was not delivered");
    let run = correct().without_arm("names");
    assert_undecided(&run, Room::Names, "nothing was delivered under its usual names");
}

#[test]
fn an_update_without_its_steps_proves_nothing() {
    let mut run = correct();
    run.phase("warm", "A>B").drop(|_, fact| match fact {
        Fact::Step(step) => StepName::TRANSITION.contains(&step.name),
        _ => false,
    });
    transition_undecided(&run, "arm `warm` took no step pause, update, finalize");
}

#[test]
fn an_arm_against_itself_is_against_nothing() {
    let mut run = correct();
    let warm = run.header.arms.iter_mut().find(|arm| arm.arm == "warm").unwrap();
    warm.against = Some("warm".to_owned());
    assert_eq!(run.judge().verdict, VerdictKind::Undecided);
}

#[test]
fn another_storage_at_the_same_address_is_another_binding() {
    let mut run = correct();
    run.since("warm", "A>B").slot(NORM, |_, slot| {
        slot.fingerprint.as_mut().unwrap().storage = StorageId(77);
    });
    assert_eq!(run.found(), [one(Code::SlotRebound, NORM, &[0])]);
}

#[test]
fn sleep_is_seen_in_the_memory_that_is_given_back() {
    let mut run = correct();
    run.phase("composite", "A>B").drop(|_, fact| matches!(fact, Fact::Region(_)));
    transition_undecided(&run, "rank tp0 of arm `composite` was not seen to sleep in `A>B`");
}

#[test]
fn rows_without_a_finite_number_do_not_count() {
    let mut run = correct();
    for arm in ["cold-b", "composite"] {
        run.since(arm, "before").map(|_, mut fact| {
            if let Fact::Logits(logits) = &mut fact {
                for row in &mut logits.rows {
                    row.bits = Some("7fc000007fc00000".to_owned());
                }
            }
            Some(fact)
        });
    }
    transition_undecided(&run, "no finite logits of arm `composite` after `A>B`");
}

#[test]
fn every_rank_that_was_changed_shows_a_change() {
    let mut run = correct_at(2);
    let mut other = None;
    run.phase("warm", "A>B").map(|_, fact| {
        if let Fact::Control(control) = &fact {
            let mut control = control.clone();
            control.after = control.before;
            other = Some(Fact::Control(control));
        }
        Some(fact)
    });
    assert_silent(&run);
    let rank = coldproof_contract::words::Rank::tensor(1);
    run.phase("warm", "A>B").add(StepName::Control, rank, other.into_iter().collect());
    assert_undecided(&run, Room::Storage, "no live change on rank tp1 was seen by the replay");
}

#[test]
fn requests_in_graph_mode_replay_a_graph() {
    let mut run = correct();
    run.phase("warm", "P>B").map(|_, mut fact| {
        if let Fact::Launch(launch) = &mut fact {
            launch.graph = None;
        }
        Some(fact)
    });
    let reason = "request `main` of arm `warm` replayed no graph after `P>B`";
    let verdict = run.judge();
    let (status, why) = room(&verdict, Room::Storage);
    assert_eq!((status, why.contains(reason)), (Status::Undecided, true), "{why}");
    assert_eq!(run.found(), [one(Code::ConfigDrift, "captured graphs", &[0])]);
}

/// B has the content of A, and every engine holds that.
fn equal_checkpoints() -> Run {
    let mut run = correct();
    run.header.checkpoints[1].sources = run.header.checkpoints[0].sources.clone();
    let arms: Vec<_> = run.header.arms.iter().map(|arm| (arm.arm.clone(), arm.topology)).collect();
    let mut at_b = false;
    for event in &mut run.events {
        let topology = arms.iter().find(|(arm, _)| *arm == event.arm).unwrap().1;
        match &mut event.fact {
            Fact::Phase(phase) => at_b = phase.at.0.starts_with('B'),
            Fact::ReadBack(read) if at_b => {
                let old = model::read_backs(topology, event.rank, "A").into_iter();
                *read = old.clone().find(|old| old.slot == read.slot).unwrap();
            }
            Fact::SourceReadBack(read) if at_b => {
                read.digest = Some(model::content(&format!("A {}", read.source)));
            }
            _ => {}
        }
    }
    run
}

#[test]
fn holding_the_bytes_of_a_checkpoint_that_is_the_same_is_no_fault() {
    assert_silent(&equal_checkpoints());
}

#[test]
fn a_loader_that_never_writes_does_not_pass_because_both_checkpoints_are_the_same() {
    // Only the checkpoint between them can show it.
    let mut run = equal_checkpoints();
    for (name, of) in [(GATE_UP, "A"), (NORM, "A"), (NORM_F32, "A"), (model::EMBED, "A")] {
        run.phase("warm", "A>P").still_holds(name, of);
    }
    run.phase("warm", "A>P").map(|_, mut fact| {
        if let Fact::SourceReadBack(read) = &mut fact {
            read.digest = Some(model::content(&format!("A {}", read.source)));
        }
        Some(fact)
    });
    assert_eq!(run.judge().verdict, VerdictKind::Fail);
    // Without it nothing was ever seen to change.
    let mut over = false;
    run.events.retain(|event| {
        if event.arm == "warm"
            && let Fact::Phase(phase) = &event.fact
        {
            over |= phase.phase == "A>P";
        }
        event.arm != "warm" || !over
    });
    for of in [Room::Derived, Room::Lifecycle, Room::State] {
        assert_undecided(&run, of, "no update was seen to change a parameter");
    }
}

/// What a vocabulary too large for all bits leaves of a row: its largest logits.
fn keep_top(run: &mut Run, top: [(u32, f32); 2]) {
    for arm in ["cold-b", "warm", "caches", "composite"] {
        run.since(arm, "before").map(|_, mut fact| {
            if let Fact::Logits(logits) = &mut fact {
                for row in &mut logits.rows {
                    row.bits = None;
                    row.top = top.map(|(token, logit)| (token, logit.to_bits())).into();
                }
            }
            Some(fact)
        });
    }
}

#[test]
fn rows_of_a_large_vocabulary_without_a_finite_number_do_not_count() {
    let mut run = correct();
    keep_top(&mut run, [(5, 2.0), (3, f32::NAN)]);
    assert_silent(&run);
    keep_top(&mut run, [(5, f32::NAN), (3, f32::NAN)]);
    transition_undecided(&run, "no finite logits of arm `composite` after `A>B`");
    // A row of NaN where a cold load has numbers differs.
    let mut run = correct();
    keep_top(&mut run, [(5, 2.0), (3, 1.0)]);
    run.phase("composite", "A>B").map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact {
            logits.rows[0].digest = model::content("NaN");
            logits.rows[0].top = vec![(5, f32::NAN.to_bits()), (3, f32::NAN.to_bits())];
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
}

#[test]
fn post_load_that_is_not_stated_or_stops_half_way_is_no_pass() {
    let mut run = correct();
    run.phase("warm", "A>B").drop(|_, fact| matches!(fact, Fact::PostLoad(_)));
    let reason = "arm `warm` stated no post-load stage in `A>B`";
    assert_undecided(&run, Room::Lifecycle, reason);
    let mut run = correct();
    run.phase("warm", "A>B").drop(|_, fact| match fact {
        Fact::PostLoad(stage) => stage.stage != PostLoadStage::Expected,
        _ => false,
    });
    let wanted = [one(Code::FinalisedNever, "mlp", &[0]), one(Code::FinalisedNever, "norm", &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_rank_that_gives_no_account_is_no_pass_though_another_does() {
    for what in ["no application", "no post-load stage"] {
        let is_of_kind = |fact: &Fact| match fact {
            Fact::Application(_) => what == "no application",
            Fact::PostLoad(_) => what == "no post-load stage",
            _ => false,
        };
        let mut run = correct_at(2);
        run.phase("warm", "A>B").drop(|rank, fact| rank.tp == 1 && is_of_kind(fact));
        let reason = format!("of arm `warm` stated {what} in `A>B`");
        assert_undecided(&run, Room::Lifecycle, &reason);
        assert!(room(&run.judge(), Room::Lifecycle).1.contains("rank "), "{what}");
    }
}

#[test]
fn an_engine_without_regions_and_statements_of_its_caches_is_judged_by_the_rest() {
    let silence = |arms: &[&str]| {
        let mut run = correct();
        for arm in arms {
            run.since(arm, "before")
                .drop(|_, fact| matches!(fact, Fact::Region(_) | Fact::Cache(_)));
        }
        run
    };
    let arms = ["cold-b", "warm", "routing", "names", "names-1", "caches"];
    // Blocks, nodes and launches show all that these lanes need.
    assert_silent(&silence(&arms));
    let mut run = silence(&arms);
    run.phase("caches", "A>B").map(|_, mut fact| {
        if let Fact::Launch(launch) = &mut fact {
            launch.rows = launch.rows.min(7);
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[0])]);
    transition_undecided(&silence(&["composite"]), "was not seen to sleep");
}
