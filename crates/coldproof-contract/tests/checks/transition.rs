//! The transition: outputs, ends of steps, their order, generations.

use coldproof_contract::evidence::{Fact, LogitsFact, StepFact, StepOutcome};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::{Address, Generation, Hex128, Rank, StepName};

use crate::support::model::{
    self, EMBED, GATE, GATE_UP, HEAD, NORM, NORM_F32, ROPE, UP, WORKSPACE,
};
use crate::support::{Run, Scope, assert_silent, correct, correct_at, moved, one, room};

fn logits(scope: &mut Scope<'_>, change: impl Fn(&mut LogitsFact)) {
    scope.map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact {
            change(logits);
        }
        Some(fact)
    });
}

#[track_caller]
fn assert_open(run: &Run, reason: &str) {
    let report = run.judge().transition;
    assert_eq!(report.status, Status::Undecided, "{:?}", run.found());
    let why = report.reason.unwrap();
    assert!(why.contains(reason), "{why}");
}

fn timeout(address: Option<Address>) -> StepOutcome {
    StepOutcome::Timeout { deadline_ms: 50, kernel: Some("forward".to_owned()), address }
}

fn died(address: Option<Address>) -> StepOutcome {
    StepOutcome::Died { text: "illegal access".to_owned(), kernel: None, address }
}

#[test]
fn outputs_that_no_differing_slot_explains_are_a_finding_of_their_own() {
    let mut run = correct();
    logits(&mut run.phase("composite", "A>B"), |logits| moved(&mut logits.rows[0], 0.5));
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.actual.ends_with("largest difference from a cold load 5e-1"), "{finding:?}");
    assert!(finding.why.starts_with("every slot that was compared is right"));
    assert_eq!(
        (finding.events[0].what.as_str(), finding.events[0].step.as_str()),
        ("logits", "serve")
    );
    assert_eq!(run.judge().transition.status, Status::Fail);
}

#[test]
fn outputs_that_a_differing_slot_explains_join_its_finding() {
    let mut run = correct();
    logits(&mut run.phase("warm", "A>B"), |logits| moved(&mut logits.rows[0], 0.5));
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0])]);
    let events = run.judge().findings.remove(0).events;
    assert_eq!(events.last().unwrap().what, "logits");
    assert_open(&run, "outputs of arm `warm` differ after `A>B`");
}

#[test]
fn a_finding_in_another_phase_explains_nothing_here() {
    let mut run = correct();
    logits(&mut run.phase("warm", "P>B"), |logits| moved(&mut logits.rows[0], 0.5));
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    let wanted =
        [one(Code::DerivedStale, NORM_F32, &[0]), one(Code::OutputUnexplained, "main", &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn outputs_after_going_back_are_held_against_those_before() {
    let mut run = correct();
    logits(&mut run.phase("warm", "B>A"), |logits| moved(&mut logits.rows[1], -1.0));
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
    // What nothing can be compared with is not judged.
    let mut run = correct();
    logits(&mut run.phase("warm", "A>P"), |logits| moved(&mut logits.rows[1], -1.0));
    assert_silent(&run);
}

#[test]
fn one_bit_of_one_row_of_one_repeat_is_enough() {
    let mut run = correct();
    logits(&mut run.phase("warm", "P>B"), |logits| {
        if logits.repeat == 1 && logits.mode == "graph" {
            logits.rows[3].digest = Hex128(1);
        }
    });
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
    // Outputs that cannot be repeated after the update are no noise: before it they could.
    assert!(run.judge().noise["warm"] > 0.0);
}

#[test]
fn a_stream_that_ends_early_differs() {
    let mut run = correct();
    logits(&mut run.phase("composite", "A>B"), |logits| {
        logits.rows.remove(0);
    });
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
}

#[test]
fn a_difference_within_the_noise_of_the_loads_is_undecided() {
    for arm in ["warm", "cold-b"] {
        let mut run = correct();
        logits(&mut run.phase(arm, "before"), |logits| {
            if logits.repeat == 1 {
                moved(&mut logits.rows[0], 0.5);
            }
        });
        logits(&mut run.phase("warm", "A>B"), |logits| moved(&mut logits.rows[0], 0.5));
        assert_eq!(run.found(), []);
        assert_open(&run, &format!("outputs of arm `{arm}` are not repeatable"));
        assert_eq!(run.judge().noise[arm], 0.5);
        logits(&mut run.phase("warm", "A>B"), |logits| moved(&mut logits.rows[0], 0.25));
        assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
    }
}

#[test]
fn large_vocabularies_are_compared_by_their_largest_logits() {
    let top = |run: &mut Run, by: f32| {
        for (arm, phase) in [("cold-b", "before"), ("composite", "A>B")] {
            logits(&mut run.phase(arm, phase), |logits| {
                for row in &mut logits.rows {
                    row.bits = None;
                    let moved = if arm == "composite" { by } else { 0.0 };
                    row.top = vec![(7, (2.0_f32 + moved).to_bits()), (9, 1.0_f32.to_bits())];
                    row.digest = model::content(&format!("{} {moved}", row.position));
                }
            });
        }
    };
    let mut run = correct();
    run = run.without_arm("warm").without_arm("names").without_arm("names-1").without_arm("caches");
    top(&mut run, 0.0);
    assert_eq!(run.found(), []);
    top(&mut run, 0.25);
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
    assert!(run.judge().findings[0].actual.ends_with("2.5e-1"));
    // A digest alone tells that they differ, not by how much.
    logits(&mut run.phase("composite", "A>B"), |logits| {
        logits.rows.iter_mut().for_each(|row| row.top.clear());
    });
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
}

#[test]
fn not_a_number_is_an_infinite_difference() {
    let mut run = correct();
    logits(&mut run.phase("composite", "A>B"), |logits| moved(&mut logits.rows[0], f32::NAN));
    assert!(run.judge().findings[0].actual.ends_with("inf"));
}

#[test]
fn a_topology_without_a_cold_load_is_not_compared_with_another() {
    let mut run = correct();
    run.header.arms[0].topology = coldproof_contract::words::Topology::tensor(2);
    logits(&mut run.phase("composite", "A>B"), |logits| moved(&mut logits.rows[0], 0.5));
    assert_eq!(run.found(), []);
    assert_open(&run, "arm `composite` served nothing to compare after `A>B`");
}

#[test]
fn the_new_generation_must_be_served_to_pass() {
    for (arm, phase) in [("composite", "A>B"), ("warm", "P>B")] {
        let mut run = correct();
        run.phase(arm, phase).drop(|_, fact| matches!(fact, Fact::Logits(_)));
        assert_open(&run, &format!("arm `{arm}` served nothing to compare after `{phase}`"));
    }
    let mut run = correct();
    run.phase("warm", "B>A").drop(|_, fact| matches!(fact, Fact::Logits(_)));
    assert_silent(&run);
    // Rows of other positions are no rows to compare.
    let mut run = correct();
    logits(&mut run.phase("composite", "A>B"), |logits| {
        logits.rows.retain(|row| row.position == 3);
    });
    logits(&mut run.phase("cold-b", "before"), |logits| {
        logits.rows.retain(|row| row.position < 3);
    });
    assert!(run.found().contains(&one(Code::OutputUnexplained, "main", &[0])));
}

#[test]
fn a_hang_joins_the_slot_that_it_waited_on() {
    let mut run = correct();
    run.since("warm", "A>B").slot(WORKSPACE, |_, slot| slot.fingerprint = None);
    let inside = model::address(WORKSPACE).plus(4);
    run.phase("warm", "A>B").ends(StepName::Serve, timeout(Some(inside)));
    assert_eq!(run.found(), [one(Code::SlotExpired, WORKSPACE, &[0])]);
    assert_open(&run, "step `serve` of arm `warm` did not end well");
    // On another slot it is a fault of its own.
    let mut run = correct();
    run.since("warm", "A>B").slot(WORKSPACE, |_, slot| slot.fingerprint = None);
    let other = model::address(ROPE);
    run.phase("warm", "A>B").ends(StepName::Serve, timeout(Some(other)));
    let wanted = [
        one(Code::SlotExpired, WORKSPACE, &[0]),
        one(Code::Timeout, "serve (kernel `forward`)", &[0]),
    ];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_hang_without_an_address_joins_a_stale_address_and_nothing_else() {
    let mut run = correct();
    run.since("warm", "A>B").slot(WORKSPACE, |_, slot| slot.fingerprint = None);
    run.phase("warm", "A>B").ends(StepName::Serve, timeout(None));
    assert_eq!(run.found(), [one(Code::SlotExpired, WORKSPACE, &[0])]);
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    run.phase("warm", "A>B").ends(StepName::Serve, timeout(None));
    let wanted = [
        one(Code::DerivedStale, NORM_F32, &[0]),
        one(Code::Timeout, "serve (kernel `forward`)", &[0]),
    ];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_hang_or_a_death_that_nothing_explains_is_a_finding_in_any_arm() {
    for (arm, phase) in [("warm", "A>B"), ("cold-b", "before"), ("routing", "A>S0")] {
        let step = if arm == "routing" { StepName::Update } else { StepName::Serve };
        let mut run = correct();
        run.phase(arm, phase).ends(step, timeout(None));
        let object = format!("{step} (kernel `forward`)");
        assert_eq!(run.found(), [one(Code::Timeout, &object, &[0])]);
        assert_eq!(run.judge().findings[0].actual, "no end within 50 ms");
        let mut run = correct();
        run.phase(arm, phase).ends(step, died(None));
        assert_eq!(run.found(), [one(Code::EngineDied, step.name(), &[0])]);
        assert_eq!(run.judge().transition.status, Status::Fail);
    }
}

#[test]
fn a_death_joins_the_slot_that_it_touched() {
    let mut run = correct();
    run.since("warm", "A>B").slot(NORM, |_, slot| slot.fingerprint = None);
    run.phase("warm", "A>B").ends(StepName::Serve, died(Some(model::address(NORM))));
    assert_eq!(run.found(), [one(Code::SlotExpired, NORM, &[0])]);
}

#[test]
fn an_engine_that_never_started_is_dead() {
    let mut run = correct();
    run.events.retain(|event| event.arm != "warm" || event.step == 1);
    run.events.retain(|event| {
        let end = matches!(&event.fact, Fact::Step(step) if step.outcome.is_some());
        event.arm != "warm" || !end
    });
    assert_eq!(run.found(), [one(Code::EngineDied, "start", &[0])]);
    assert_eq!(run.judge().findings[0].actual, "the step never ended");
}

#[test]
fn a_refusal_is_a_finding_unless_it_answers_one() {
    let refused = || StepOutcome::Error { text: "norm.weight is missing".to_owned() };
    let mut run = correct();
    run.phase("warm", "A>B").ends(StepName::Finalize, refused());
    assert_eq!(run.found(), [one(Code::StepRefused, "finalize", &[0])]);
    assert_eq!(run.judge().findings[0].actual, "norm.weight is missing");
    run.phase("warm", "A>B").map(|_, mut fact| {
        if let Fact::Manifest(manifest) = &mut fact {
            manifest.delivered.retain(|source| source != NORM);
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::SourceMissing, NORM, &[0])]);
}

fn without_steps(run: &mut Run, steps: &[StepName]) {
    run.phase("composite", "A>B")
        .drop(|_, fact| matches!(fact, Fact::Step(step) if steps.contains(&step.name)));
}

#[test]
fn steps_out_of_order_are_a_finding() {
    let mut run = correct();
    run.phase("composite", "A>B").map(|_, mut fact| {
        if let Fact::Step(step) = &mut fact {
            step.name = match step.name {
                StepName::Update => StepName::Finalize,
                StepName::Finalize => StepName::Update,
                other => other,
            };
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::Order, "transition `A>B`", &[0])]);
    let mut run = correct();
    without_steps(&mut run, &[StepName::WakeKv]);
    assert_eq!(run.found(), [one(Code::Order, "transition `A>B`", &[0])]);
}

#[test]
fn sleep_and_both_wakes_may_be_left_out_and_then_the_eight_are_not_proven() {
    let mut run = correct();
    without_steps(&mut run, &[StepName::Sleep, StepName::WakeWeights, StepName::WakeKv]);
    assert_eq!(run.found(), []);
    assert_open(&run, "not all eight steps were taken");
}

#[test]
fn a_transition_that_was_broken_off_is_not_out_of_order() {
    let mut run = correct();
    let refused = StepOutcome::Error { text: "no".to_owned() };
    run.phase("composite", "A>B").ends(StepName::Update, refused);
    assert_eq!(run.found(), [one(Code::StepRefused, "update", &[0])]);
}

#[test]
fn without_the_composite_lane_the_transition_is_not_covered() {
    let report = correct().without_arm("composite").judge().transition;
    assert_eq!(report.status, Status::NotCovered);
    assert_eq!(report.reason.unwrap(), "the composite lane did not run");
    let report = correct().judge().transition;
    let steps: Vec<&str> = report.steps.iter().map(|step| step.step).collect();
    assert_eq!(steps, StepName::TRANSITION.map(StepName::name));
    assert_eq!(report.steps[0].ms, Some(0.001));
    // Two modes of four rows after three updates in warm and one in composite, and one request of
    // the caches lane.
    assert_eq!(report.checks, 4 * 8 + 4);
}

/// What every rank says that it serves after `A>B`.
fn receipts(run: &mut Run, change: impl Fn(u32) -> (u64, bool)) {
    run.phase("warm", "A>B").map(|rank, mut fact| {
        if let Fact::Receipt(receipt) = &mut fact {
            let (generation, committed) = change(rank.tp);
            (receipt.generation, receipt.committed) = (Generation(generation), committed);
        }
        Some(fact)
    });
}

#[test]
fn ranks_that_say_they_serve_different_generations_are_mixed() {
    let mut run = correct_at(2);
    receipts(&mut run, |rank| (2 + u64::from(rank), true));
    assert_eq!(run.found(), [one(Code::MixedGeneration, "transaction 2", &[0, 1])]);
    assert_eq!(run.judge().findings[0].actual, "2 on ranks {0}, 3 on ranks {1}");
    let mut run = correct_at(2);
    receipts(&mut run, |rank| (2, rank == 0));
    assert_eq!(run.found(), [one(Code::MixedGeneration, "transaction 2", &[0, 1])]);
    assert_eq!(run.judge().findings[0].actual, "2 uncommitted on ranks {1}, 2 on ranks {0}");
}

#[test]
fn the_last_receipt_of_a_rank_counts() {
    let mut run = correct_at(2);
    let mut first = Vec::new();
    run.phase("warm", "A>B").map(|rank, fact| {
        if let Fact::Receipt(receipt) = &fact
            && rank.tp == 0
        {
            let mut receipt = receipt.clone();
            receipt.committed = false;
            first.push(Fact::Receipt(receipt));
        }
        Some(fact)
    });
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), first);
    assert_silent(&run);
}

#[test]
fn an_update_that_failed_says_nothing_of_generations() {
    let mut run = correct_at(2);
    receipts(&mut run, |rank| (2, rank == 0));
    let refused = StepOutcome::Error { text: "no".to_owned() };
    run.phase("warm", "A>B").ends(StepName::Resume, refused);
    assert_eq!(run.found(), [one(Code::StepRefused, "resume", &[0])]);
}

/// Every parameter of these ranks, and what follows them, holds what it held before the update.
fn without_effect(run: &mut Run, arm: &str, phase: &str, at: &str, on: impl Fn(u32) -> bool) {
    let header = run.header.arms.iter().find(|header| header.arm == arm).unwrap();
    let topology = header.topology;
    run.phase(arm, phase).map(|rank, fact| match fact {
        Fact::ReadBack(read) if on(rank.tp) => {
            let old = model::read_backs(topology, rank, at);
            old.into_iter().find(|old| old.slot == read.slot).map(Fact::ReadBack)
        }
        Fact::SourceReadBack(mut source) => {
            source.digest = Some(model::content(&format!("{at} {}", source.source)));
            Some(Fact::SourceReadBack(source))
        }
        fact => Some(fact),
    });
}

#[test]
fn a_generation_of_which_not_one_byte_is_there_is_a_label_without_effect() {
    let mut run = correct();
    without_effect(&mut run, "warm", "A>B", "A", |_| true);
    assert_eq!(run.found(), [one(Code::LabelWithoutEffect, "generation 2", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.expected, "the bytes of generation 2");
    assert_eq!(room(&run.judge(), Room::Lifecycle).0, Status::Undecided);
    // The engine never takes an update, whatever it calls it and whoever drives it.
    without_effect(&mut run, "warm", "P>B", "P", |_| true);
    without_effect(&mut run, "composite", "A>B", "A", |_| true);
    without_effect(&mut run, "names-1", "A>B-alt", "A", |_| true);
    assert_eq!(run.found(), [one(Code::LabelWithoutEffect, "generation 2", &[0])]);
}

#[test]
fn the_claim_of_a_generation_is_an_announcement_too() {
    let mut run = correct();
    without_effect(&mut run, "warm", "A>B", "A", |_| true);
    run.since("warm", "before").drop(|_, fact| matches!(fact, Fact::Receipt(_)));
    assert_eq!(run.found(), [one(Code::LabelWithoutEffect, "generation 2", &[0])]);
}

#[test]
fn old_bytes_that_nobody_announced_are_missing_applications() {
    let sources = || [EMBED, GATE, UP, NORM].map(|name| one(Code::ApplicationMissing, name, &[0]));
    for claim in [None, Some("1")] {
        let mut run = correct();
        without_effect(&mut run, "warm", "A>B", "A", |_| true);
        run.since("warm", "before").map(|_, fact| match fact {
            Fact::Receipt(_) => None,
            Fact::Claim(mut fact) => claim.map(|claim| {
                fact.value = claim.to_owned();
                Fact::Claim(fact)
            }),
            fact => Some(fact),
        });
        assert_eq!(run.found(), sources());
    }
    let mut run = correct();
    without_effect(&mut run, "warm", "A>B", "A", |_| true);
    run.phase("warm", "A>B").drop(|_, fact| matches!(fact, Fact::Claim(_)));
    receipts(&mut run, |_| (2, false));
    assert_eq!(run.found(), sources());
}

#[test]
fn an_update_with_some_effect_is_no_mere_label() {
    // One slot is new.
    let mut run = correct();
    without_effect(&mut run, "warm", "A>B", "A", |_| true);
    run.phase("warm", "A>B").still_holds(EMBED, "B").still_holds(HEAD, "B").map(|_, mut fact| {
        if let Fact::SourceReadBack(read) = &mut fact
            && read.source == EMBED
        {
            read.digest = Some(model::content("B embed.weight"));
        }
        Some(fact)
    });
    let wanted = [GATE, UP, NORM].map(|name| one(Code::ApplicationMissing, name, &[0]));
    assert_eq!(run.found(), wanted);
    // One slot is neither old nor new.
    let mut run = correct();
    without_effect(&mut run, "warm", "A>B", "A", |_| true);
    run.phase("warm", "A>B").read(NORM, |_, read| {
        read.content = Some(model::content("garbage"));
        read.pieces[0].content = model::content("garbage");
    });
    let found = run.found();
    assert!(found.contains(&one(Code::LoaderStale, NORM, &[0])), "{found:?}");
    assert!(found.contains(&one(Code::ApplicationMissing, EMBED, &[0])), "{found:?}");
}

#[test]
fn with_one_source_the_source_says_it_all() {
    let mut run = correct();
    for arm in ["cold-b", "warm"] {
        run.since(arm, "before").map(|_, fact| match fact {
            Fact::ReadBack(mut read) if [EMBED, GATE_UP].contains(&read.slot.0.as_str()) => {
                read.content = Some(model::content("the same"));
                read.pieces.iter_mut().for_each(|piece| piece.content = model::content("same"));
                Some(Fact::ReadBack(read))
            }
            Fact::SourceReadBack(read) => {
                (read.source == NORM).then_some(Fact::SourceReadBack(read))
            }
            fact => Some(fact),
        });
    }
    run.phase("warm", "A>B").still_holds(NORM, "A").still_holds(NORM_F32, "A");
    let found = run.found();
    assert!(found.contains(&one(Code::ApplicationMissing, NORM, &[0])), "{found:?}");
    assert!(!found.iter().any(|found| found.1 == Code::LabelWithoutEffect), "{found:?}");
}

#[test]
fn one_rank_that_holds_the_old_generation_is_mixed() {
    let mut run = correct_at(2);
    without_effect(&mut run, "warm", "A>B", "A", |rank| rank == 1);
    assert_eq!(run.found(), [one(Code::MixedGeneration, "transaction 2", &[1])]);
    // It is the same finding where the rank says so itself.
    receipts(&mut run, |rank| (2 - u64::from(rank), true));
    assert_eq!(run.found(), [one(Code::MixedGeneration, "transaction 2", &[0, 1])]);
    // On both ranks it is the label that has no effect.
    let mut run = correct_at(2);
    without_effect(&mut run, "warm", "A>B", "A", |_| true);
    assert_eq!(run.found(), [one(Code::LabelWithoutEffect, "generation 2", &[0, 1])]);
}

#[test]
fn a_rank_that_is_wrong_in_part_is_not_of_another_generation() {
    let mut run = correct_at(2);
    without_effect(&mut run, "warm", "A>B", "A", |rank| rank == 1);
    run.phase("warm", "A>B").read(NORM, |rank, read| {
        if rank.tp == 0 {
            read.content = Some(model::content("garbage"));
        }
    });
    let found = run.found();
    assert!(found.contains(&one(Code::ApplicationMissing, UP, &[1])), "{found:?}");
    assert!(!found.iter().any(|found| found.1 == Code::MixedGeneration), "{found:?}");
}

#[test]
fn a_second_step_of_one_name_counts_as_taken_twice() {
    let mut run = correct();
    let resume = |outcome| Fact::Step(StepFact { name: StepName::Resume, outcome });
    let twice = vec![resume(Some(StepOutcome::Ok)), resume(None)];
    run.phase("composite", "A>B").add(StepName::Resume, Rank::default(), twice);
    assert_eq!(run.found(), [one(Code::Order, "transition `A>B`", &[0])]);
}

#[test]
fn a_hang_is_said_beside_what_the_slot_that_it_waited_on_has() {
    let mut run = correct();
    run.phase("warm", "A>B").slot(WORKSPACE, |_, slot| {
        let print = slot.fingerprint.as_mut().unwrap();
        (print.storage, print.address) = (model::storage(HEAD), Address(0x1_4000));
    });
    let before = run.judge().findings.remove(0).actual;
    run.phase("warm", "A>B").ends(StepName::Serve, timeout(Some(model::address(WORKSPACE))));
    let findings = run.judge().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    let text = "step serve (kernel `forward`): no end within 50 ms";
    assert_eq!(findings[0].actual, format!("{before}; {text}"));
}
