//! Category 3: applications and parameters.

use coldproof_contract::evidence::{
    ApplicationFact, Fact, PostLoadFact, PostLoadStage, StepOutcome,
};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::{Fragment, Packing, Rank, SlotName, Span, StepName, TransactionId};

use crate::support::model::{self, EMBED, GATE, GATE_UP, HEAD, NORM, UP};
use crate::support::{
    Run, assert_silent, assert_undecided, correct, correct_at, misplaced, one, room,
};

/// Changes the account of every application of `source` in `A>B` on every rank.
pub(crate) fn account(
    run: &mut Run,
    source: &str,
    change: impl Fn(ApplicationFact) -> Vec<ApplicationFact>,
) {
    let mut events = Vec::new();
    let mut phase = String::new();
    for event in std::mem::take(&mut run.events) {
        if let Fact::Phase(fact) = &event.fact {
            phase.clone_from(&fact.phase);
        }
        match &event.fact {
            Fact::Application(fact)
                if event.arm == "warm" && phase == "A>B" && fact.source == source =>
            {
                let facts = change(fact.clone()).into_iter().map(Fact::Application);
                events.extend(facts.map(|fact| {
                    let mut event = event.clone();
                    event.fact = fact;
                    event
                }));
            }
            _ => events.push(event),
        }
    }
    run.events = events;
}

fn rows(fact: &ApplicationFact, source: (u64, u64), slot: (u64, u64)) -> ApplicationFact {
    let with = |fragment: &Fragment, (start, end)| fragment.clone().with(0, Span::new(start, end));
    ApplicationFact {
        source_fragment: with(&fact.source_fragment, source),
        slot_fragment: with(&fact.slot_fragment, slot),
        ..fact.clone()
    }
}

/// The pieces of these sources hold what they held before the update.
fn stale(run: &mut Run, arm: &str, phase: &str, slot: &str, sources: &[&str]) {
    run.phase(arm, phase).read(slot, |rank, read| {
        let topology = Default::default();
        let old = model::read_backs(topology, rank, "A").into_iter();
        let old = old.clone().find(|old| old.slot == read.slot).unwrap();
        read.content = Some(model::content(&format!("{slot} in part")));
        for (now, old) in read.pieces.iter_mut().zip(old.pieces) {
            if sources.contains(&now.source.as_str()) {
                *now = old;
            }
        }
    });
}

#[test]
fn a_fragment_that_was_applied_twice_is_a_duplicate() {
    let mut run = correct();
    account(&mut run, NORM, |fact| vec![fact.clone(), fact]);
    assert_eq!(run.found(), [one(Code::ApplicationDuplicate, NORM, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.actual.contains("was applied before"), "{}", finding.actual);
    assert_eq!(finding.events[0].what, "applied");
    assert_eq!(finding.events[0].step, "update");
}

#[test]
fn chunks_in_any_order_are_one_application() {
    let mut run = correct();
    account(&mut run, GATE, |fact| vec![rows(&fact, (3, 4), (3, 4)), rows(&fact, (0, 3), (0, 3))]);
    assert_silent(&run);
}

#[test]
fn the_same_elements_in_other_pieces_are_an_overlap() {
    let mut run = correct();
    account(&mut run, GATE, |fact| vec![rows(&fact, (0, 3), (0, 3)), rows(&fact, (2, 4), (2, 4))]);
    let found = run.found();
    assert!(found.contains(&one(Code::ApplicationOverlap, GATE, &[0])), "{found:?}");
}

#[test]
fn a_write_of_fewer_elements_than_it_names_is_undersized() {
    let mut run = correct();
    account(&mut run, NORM, |fact| vec![fact.clone(), rows(&fact, (0, 1), (0, 2))]);
    assert_eq!(run.found(), [one(Code::ApplicationUndersized, NORM, &[0])]);
}

#[test]
fn a_source_that_is_never_applied_is_missing() {
    let mut run = correct();
    account(&mut run, GATE, |_| vec![]);
    assert_eq!(run.found(), [one(Code::ApplicationMissing, GATE, &[0])]);
}

#[test]
fn a_gap_that_a_repeat_fills_up_to_the_count_is_one_finding() {
    let mut run = correct();
    account(&mut run, GATE, |_| vec![]);
    account(&mut run, UP, |fact| vec![fact.clone(), fact]);
    assert_eq!(run.found(), [one(Code::ApplicationMissing, GATE, &[0])]);
    let events = run.judge().findings.remove(0).events;
    assert!(events[0].text.contains(UP), "{events:?}");
}

#[test]
fn a_gap_in_one_slot_and_a_repeat_in_another_are_two_findings() {
    let mut run = correct();
    account(&mut run, GATE, |_| vec![]);
    account(&mut run, NORM, |fact| vec![fact.clone(), fact]);
    let wanted =
        [one(Code::ApplicationDuplicate, NORM, &[0]), one(Code::ApplicationMissing, GATE, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn one_rank_that_applies_too_much_does_not_hide_that_another_applies_too_little() {
    let mut run = correct_at(2);
    let mut rank_of = Vec::new();
    run.phase("warm", "A>B").map(|rank, fact| {
        if matches!(&fact, Fact::Application(fact) if fact.source == GATE) {
            rank_of.push(rank.tp);
            return (rank.tp == 0).then_some(fact);
        }
        Some(fact)
    });
    assert_eq!(rank_of, [0, 1]);
    account(&mut run, GATE, |fact| vec![fact.clone(), fact]);
    let wanted =
        [one(Code::ApplicationDuplicate, GATE, &[0]), one(Code::ApplicationMissing, GATE, &[1])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn an_engine_that_gives_no_account_on_a_rank_claims_nothing_there() {
    let mut run = correct_at(2);
    run.phase("warm", "A>B")
        .drop(|rank, fact| rank.tp == 1 && matches!(fact, Fact::Application(_)));
    // Nobody says what it did, so that nothing speaks for it either.
    let reason = "rank tp1 of arm `warm` stated no application in `A>B`";
    assert_undecided(&run, Room::Lifecycle, reason);
    run.phase("warm", "A>B").drop(|_, fact| matches!(fact, Fact::Application(_)));
    let reason = "arm `warm` stated no application in `A>B`";
    assert_undecided(&run, Room::Lifecycle, reason);
}

#[test]
fn an_account_without_a_promise_is_not_judged() {
    let mut run = correct();
    account(&mut run, NORM, |fact| vec![fact.clone(), fact]);
    run.phase("warm", "A>B").drop(|_, fact| matches!(fact, Fact::Manifest(_)));
    assert_undecided(&run, Room::Names, "arm `warm` sealed no manifest in `A>B`");
}

#[test]
fn an_account_that_a_failed_step_cut_short_is_not_judged() {
    let mut run = correct();
    account(&mut run, NORM, |_| vec![]);
    let refused = StepOutcome::Error { text: "no".to_owned() };
    run.phase("warm", "A>B").ends(StepName::Finalize, refused);
    assert_eq!(run.found(), [one(Code::StepRefused, "finalize", &[0])]);
}

#[test]
fn an_engine_that_began_again_is_judged_by_its_last_transaction() {
    let mut run = correct();
    account(&mut run, GATE, |fact| {
        vec![ApplicationFact { transaction: TransactionId(1), ..fact.clone() }, fact]
    });
    assert_silent(&run);
    let stage = |layer: &str, stage, transaction| {
        let (layer, prerequisites) = (layer.to_owned(), vec![]);
        let transaction = TransactionId(transaction);
        Fact::PostLoad(PostLoadFact { transaction, layer, stage, prerequisites })
    };
    let facts = vec![
        stage("mlp", PostLoadStage::Finalised, 1),
        stage("rotary", PostLoadStage::Expected, 1),
    ];
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), facts);
    assert_silent(&run);
}

#[test]
fn an_optional_source_that_was_delivered_is_promised() {
    let mut run = correct();
    for arm in ["warm", "names", "names-1", "caches", "composite", "routing"] {
        run.since(arm, "before").map(|_, mut fact| {
            if let Fact::Manifest(manifest) = &mut fact {
                manifest.required.retain(|source| source != NORM);
                manifest.allowed_missing.push(NORM.to_owned());
            }
            Some(fact)
        });
    }
    assert_silent(&run);
    let mut gap = run.clone();
    account(&mut gap, NORM, |_| vec![]);
    assert_eq!(gap.found(), [one(Code::ApplicationMissing, NORM, &[0])]);
    // One that was not delivered is none of the promise.
    run.phase("warm", "A>B").map(|_, mut fact| {
        if let Fact::Manifest(manifest) = &mut fact {
            manifest.delivered.retain(|source| source != NORM);
        }
        Some(fact)
    });
    account(&mut run, NORM, |_| vec![]);
    assert_silent(&run);
}

#[test]
fn an_alias_leads_to_the_slot_that_owns_the_storage() {
    let mut run = correct();
    account(&mut run, EMBED, |fact| vec![ApplicationFact { slot: HEAD.into(), ..fact }]);
    assert_silent(&run);
    account(&mut run, EMBED, |fact| {
        vec![fact.clone(), ApplicationFact { slot: EMBED.into(), ..fact }]
    });
    assert_eq!(run.found(), [one(Code::ApplicationDuplicate, EMBED, &[0])]);
}

#[test]
fn a_write_to_a_slot_that_nothing_belongs_to_is_ambiguous() {
    let mut run = correct();
    let elsewhere = SlotName("mlp.other.weight".to_owned());
    account(&mut run, NORM, |fact| {
        vec![fact.clone(), ApplicationFact { slot: elsewhere.clone(), ..fact }]
    });
    assert_eq!(run.found(), [one(Code::NameAmbiguous, "mlp.other.weight", &[0])]);
}

#[test]
fn a_write_of_a_source_that_nothing_promised_is_unexpected() {
    let mut run = correct();
    account(&mut run, NORM, |fact| {
        vec![fact.clone(), ApplicationFact { source: "extra.weight".to_owned(), ..fact }]
    });
    assert_eq!(run.found(), [one(Code::SourceUnexpected, "extra.weight", &[0])]);
}

#[test]
fn the_wrong_half_of_a_slot_is_misplaced_and_its_gap_is_no_second_finding() {
    let mut run = correct();
    account(&mut run, GATE, |fact| vec![rows(&fact, (0, 4), (4, 8))]);
    assert_eq!(run.found(), [one(Code::ShardMisplaced, GATE_UP, &[0])]);
    // A gap of another source in the same slot is another fault.
    account(&mut run, UP, |_| vec![]);
    let wanted =
        [one(Code::ApplicationMissing, UP, &[0]), one(Code::ShardMisplaced, GATE_UP, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_gap_in_a_slot_that_sentinels_show_misplaced_joins_that_finding() {
    let mut run = correct_at(2);
    misplaced(&mut run);
    account(&mut run, GATE, |_| vec![]);
    assert_eq!(run.found(), [one(Code::ShardMisplaced, GATE_UP, &[1])]);
    let events = run.judge().findings.remove(0).events;
    assert_eq!(events.last().unwrap().what, "applied");
}

#[test]
fn old_bytes_where_a_delivered_source_belongs_are_a_missing_application() {
    // The account says that all was applied.
    let mut run = correct();
    stale(&mut run, "warm", "A>B", GATE_UP, &[UP]);
    assert_eq!(run.found(), [one(Code::ApplicationMissing, UP, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.actual.contains("the generation before `A>B`"), "{}", finding.actual);
    stale(&mut run, "warm", "A>B", GATE_UP, &[UP, GATE]);
    let wanted =
        [one(Code::ApplicationMissing, GATE, &[0]), one(Code::ApplicationMissing, UP, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn bytes_of_another_layout_are_a_stale_loader() {
    let mut run = correct();
    run.phase("warm", "A>B").read(GATE_UP, |_, read| {
        read.content = Some(model::content("another layout"));
        for piece in &mut read.pieces {
            piece.content = model::content("another layout");
        }
    });
    assert_eq!(run.found(), [one(Code::LoaderStale, GATE_UP, &[0])]);
    // So are right pieces in a slot that differs, where nothing else tells why.
    let mut run = correct();
    run.phase("warm", "A>B").read(GATE_UP, |_, read| {
        read.content = Some(model::content("another layout"));
    });
    assert_eq!(run.found(), [one(Code::LoaderStale, GATE_UP, &[0])]);
}

#[test]
fn one_stale_piece_and_one_of_another_layout_are_two_findings() {
    let mut run = correct();
    stale(&mut run, "warm", "A>B", GATE_UP, &[GATE]);
    run.phase("warm", "A>B").read(GATE_UP, |_, read| {
        read.pieces[1].content = model::content("another layout");
    });
    let wanted = [one(Code::ApplicationMissing, GATE, &[0]), one(Code::LoaderStale, GATE_UP, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_stale_slot_that_is_no_bijection_names_its_sources() {
    let mut run = correct();
    for arm in ["cold-b", "warm", "names", "names-1", "caches", "composite"] {
        run.since(arm, "before")
            .slot(NORM, |_, slot| slot.packing = Packing::Opaque)
            .read(NORM, |_, read| read.pieces.clear());
    }
    assert_silent(&run);
    run.phase("warm", "A>B").read(NORM, |_, read| {
        read.content = Some(model::content("A norm.weight 0"));
    });
    assert_eq!(run.found(), [one(Code::ApplicationMissing, NORM, &[0])]);
    run.phase("warm", "A>B").read(NORM, |_, read| read.content = Some(model::content("garbage")));
    assert_eq!(run.found(), [one(Code::LoaderStale, NORM, &[0])]);
}

#[test]
fn a_parameter_that_cannot_be_read_is_lost() {
    let mut run = correct();
    run.phase("warm", "A>B").read(NORM, |_, read| {
        read.content = None;
        read.pieces.clear();
    });
    assert_eq!(run.found(), [one(Code::StateLost, NORM, &[0])]);
}

#[test]
fn bytes_that_the_account_explains_join_its_finding() {
    let mut run = correct();
    account(&mut run, GATE, |_| vec![]);
    stale(&mut run, "warm", "A>B", GATE_UP, &[GATE]);
    assert_eq!(run.found(), [one(Code::ApplicationMissing, GATE, &[0])]);
    let events = run.judge().findings.remove(0).events;
    assert!(events.iter().any(|event| event.what == "read-back"), "{events:?}");
    // Bytes of another source in the same slot are another fault.
    stale(&mut run, "warm", "A>B", GATE_UP, &[UP]);
    let wanted =
        [one(Code::ApplicationMissing, GATE, &[0]), one(Code::ApplicationMissing, UP, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn bytes_under_a_finding_of_another_room_join_it() {
    let mut run = correct();
    run.since("warm", "A>B").slot(GATE_UP, |_, slot| slot.fingerprint = None);
    stale(&mut run, "warm", "A>B", GATE_UP, &[GATE]);
    assert_eq!(run.found(), [one(Code::SlotExpired, GATE_UP, &[0])]);
    let (status, reason) = room(&run.judge(), Room::Lifecycle);
    assert_eq!(status, Status::Undecided);
    assert!(reason.contains("see slot-expired of `mlp.gate_up.weight`"), "{reason}");
}

fn source(run: &mut Run, arm: &str, phase: &str, of: &str, digest: Option<&str>) {
    run.phase(arm, phase).map(|_, mut fact| {
        if let Fact::SourceReadBack(read) = &mut fact
            && read.source == of
        {
            read.digest = digest.map(model::content);
            read.problem = digest.is_none().then(|| "no piece holds [0..1]".to_owned());
        }
        Some(fact)
    });
}

#[test]
fn a_cold_load_that_is_not_its_file_is_found_though_the_live_engine_is_equal_to_it() {
    let mut run = correct();
    source(&mut run, "cold-b", "before", NORM, Some("narrowed"));
    assert_eq!(run.found(), [one(Code::LoaderStale, NORM, &[0])]);
    assert_eq!(run.judge().findings[0].actual, "its digest is not the file's");
    // A finding about something else explains nothing of it.
    let garbage = Some(model::content("garbage"));
    run.phase("warm", "A>B").read(model::ROPE, |_, read| read.content = garbage);
    let wanted = [one(Code::LoaderStale, NORM, &[0]), one(Code::StateLost, model::ROPE, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_source_that_differs_where_its_slot_differs_is_no_second_finding() {
    let mut run = correct();
    run.phase("warm", "A>B").read(GATE_UP, |_, read| {
        read.content = Some(model::content("another layout"));
    });
    source(&mut run, "warm", "A>B", GATE, Some("another layout"));
    assert_eq!(run.found(), [one(Code::LoaderStale, GATE_UP, &[0])]);
    let mut run = correct();
    stale(&mut run, "warm", "A>B", GATE_UP, &[GATE]);
    source(&mut run, "warm", "A>B", GATE, Some("A mlp.gate.weight"));
    assert_eq!(run.found(), [one(Code::ApplicationMissing, GATE, &[0])]);
}

#[test]
fn a_slot_that_is_packed_by_a_wrong_permutation_reads_wrong() {
    let mut run = correct();
    for phase in ["before", "A>B"] {
        run.phase("warm", phase).slot(GATE_UP, |_, slot| {
            let permutation = model::name(model::NORM_F32);
            slot.packing = Packing::ColumnsPermuted { permutation };
        });
    }
    source(&mut run, "warm", "A>B", GATE, Some("permuted"));
    let mut alone = run.clone();
    alone.phase("warm", "A>B").slot(GATE_UP, |_, slot| slot.packing = Packing::Plain);
    assert_eq!(alone.found(), [one(Code::LoaderStale, GATE, &[0])]);
    run.phase("warm", "A>B").still_holds(model::NORM_F32, "A");
    assert_eq!(run.found(), [one(Code::DerivedStale, model::NORM_F32, &[0])]);
}

#[test]
fn a_source_that_cannot_be_put_together_is_undecided() {
    let mut run = correct();
    source(&mut run, "warm", "A>P", NORM, None);
    assert_undecided(&run, Room::Lifecycle, "`norm.weight` could not be put together after `A>P`");
}

#[test]
fn replicas_that_differ_are_named_with_their_ranks() {
    let mut run = correct_at(2);
    source(&mut run, "warm", "A>P", NORM, None);
    run.phase("warm", "A>P").read(NORM, |rank, read| {
        if rank.tp == 1 {
            read.pieces[0].content = model::content("another replica");
        }
    });
    assert_eq!(run.found(), [one(Code::ReplicaDiffers, NORM, &[0, 1])]);
    // Pieces of one source that are no replicas may differ: they are other elements.
    let mut run = correct_at(2);
    source(&mut run, "warm", "A>P", GATE, None);
    assert_undecided(&run, Room::Lifecycle, "`mlp.gate.weight` could not be put together");
}

#[test]
fn without_sources_or_parameters_nothing_is_proven() {
    let mut run = correct();
    for arm in ["cold-b", "warm", "names", "names-1", "caches", "composite", "routing"] {
        run.since(arm, "before").drop(|_, fact| matches!(fact, Fact::SourceReadBack(_)));
    }
    assert_undecided(&run, Room::Lifecycle, "no source was read back and compared with its file");
    let mut run = correct();
    let parameters = [NORM, EMBED, GATE_UP];
    run.phase("cold-b", "before").drop(|_, fact| match fact {
        Fact::ReadBack(read) => parameters.contains(&read.slot.0.as_str()),
        _ => false,
    });
    assert_undecided(&run, Room::Lifecycle, "no parameter was compared with a cold load's");
}

#[test]
fn checks_count_parameters_and_sources() {
    let verdict = correct().judge();
    let (_, proven) = room(&verdict, Room::Lifecycle);
    // Seven updates of three parameters; four sources in 1, 5, 1, 2, 2, 2 and 2 read-backs.
    let wanted =
        "21 parameters equal to a cold load's and 60 sources equal to their files, bit for bit";
    assert_eq!(proven, wanted);
    assert_eq!(verdict.categories[2].checks, 81);
}

#[test]
fn a_source_that_never_came_is_one_finding_with_the_slot_that_lacks_it() {
    let mut run = correct();
    run.phase("warm", "A>B").map(|_, mut fact| {
        if let Fact::Manifest(manifest) = &mut fact {
            manifest.delivered.retain(|source| source != GATE);
        }
        Some(fact)
    });
    account(&mut run, GATE, |_| vec![]);
    stale(&mut run, "warm", "A>B", GATE_UP, &[GATE]);
    assert_eq!(run.found(), [one(Code::SourceMissing, GATE, &[0])]);
}
