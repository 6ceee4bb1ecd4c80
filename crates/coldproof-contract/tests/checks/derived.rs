//! Category 2: values computed from weights.

use coldproof_contract::evidence::Fact;
use coldproof_contract::verdict::{FindingCode as Code, Room};
use coldproof_contract::words::SlotKind;

use crate::support::model::{self, NORM, NORM_F32, WORKSPACE};
use crate::support::{Run, assert_silent, assert_undecided, correct, one, room};

const UPDATES: [&str; 4] = ["A>B", "B>A", "A>P", "P>B"];

fn inputs(run: &mut Run, slot: &str, inputs: &[&str]) {
    run.since("warm", "before").slot(slot, |_, slot| {
        slot.inputs = inputs.iter().map(|name| model::name(name)).collect();
    });
}

#[test]
fn a_value_that_does_not_follow_its_inputs_is_stale() {
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.actual, "after `A>B` it still holds the bytes of the generation before");
    assert_eq!(finding.expected, "the value of `cold-b`");
    assert!(finding.why.contains("its inputs (`norm.weight`) hold the new weights"));
    assert_eq!(finding.events[0].what, "read-back");
    assert_eq!(finding.events[0].step, "read_back");
}

#[test]
fn garbage_and_memory_that_cannot_be_read_are_told_apart_from_old_bytes() {
    for (holds, text) in [
        (Some(model::content("garbage")), "after `A>B` it holds neither the old nor the new bytes"),
        (None, "after `A>B` its memory cannot be read"),
    ] {
        let mut run = correct();
        run.phase("warm", "A>B").read(NORM_F32, |_, read| read.content = holds);
        assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0])]);
        assert_eq!(run.judge().findings[0].actual, text);
    }
}

#[test]
fn a_value_whose_input_is_stale_too_is_no_second_fault() {
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(NORM_F32, "A").still_holds(NORM, "A");
    assert_eq!(run.found(), [one(Code::ApplicationMissing, NORM, &[0])]);
    let (_, reason) = room(&run.judge(), Room::Derived);
    assert!(reason.contains("and so does its input `norm.weight`"), "{reason}");
}

#[test]
fn a_chain_of_values_is_one_fault_at_its_beginning() {
    let mut run = correct();
    run.since("warm", "before").slot(WORKSPACE, |_, slot| slot.slot_kind = SlotKind::Derived);
    inputs(&mut run, WORKSPACE, &[NORM_F32]);
    for (arm, phase, at) in
        [("cold-b", "before", "B"), ("warm", "before", "A"), ("warm", "A>B", "A")]
    {
        let read = model::read_backs(Default::default(), Default::default(), at);
        let mut read = read.into_iter().find(|read| read.slot.0 == NORM_F32).unwrap();
        read.slot = WORKSPACE.into();
        let facts = vec![Fact::ReadBack(read)];
        let step = coldproof_contract::words::StepName::ReadBack;
        run.phase(arm, phase).add(step, Default::default(), facts);
    }
    assert_eq!(run.found(), [one(Code::DerivedStale, WORKSPACE, &[0])]);
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0])]);
    // With the parameter stale as well, the beginning is the parameter.
    run.phase("warm", "A>B").still_holds(NORM, "A");
    assert_eq!(run.found(), [one(Code::ApplicationMissing, NORM, &[0])]);
    // Declared inputs that go in circles explain nothing.
    inputs(&mut run, NORM_F32, &[WORKSPACE]);
    let found = run.found();
    assert!(found.contains(&one(Code::DerivedStale, NORM_F32, &[0])), "{found:?}");
    assert!(found.contains(&one(Code::DerivedStale, WORKSPACE, &[0])), "{found:?}");
}

#[test]
fn a_value_that_names_itself_as_input_is_not_excused() {
    let mut run = correct();
    inputs(&mut run, NORM_F32, &[NORM_F32]);
    assert_silent(&run);
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0])]);
}

#[test]
fn stale_on_another_phase_is_no_excuse_here() {
    // The parameter is stale after `P>B`, the value after `A>B`: two faults.
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    run.phase("warm", "P>B").still_holds(NORM, "P");
    let wanted =
        [one(Code::DerivedStale, NORM_F32, &[0]), one(Code::ApplicationMissing, NORM, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_value_under_a_stale_address_joins_that_finding() {
    let mut run = correct();
    run.since("warm", "A>B").slot(NORM_F32, |_, slot| slot.fingerprint = None);
    run.phase("warm", "A>B").still_holds(NORM_F32, "A");
    assert_eq!(run.found(), [one(Code::SlotExpired, NORM_F32, &[0])]);
    let (_, reason) = room(&run.judge(), Room::Derived);
    assert!(reason.contains("see slot-expired of `norm/kernel.weight_f32`"), "{reason}");
}

#[test]
fn without_a_comparison_with_a_cold_load_nothing_is_proven() {
    let mut run = correct();
    let derived = |fact: &Fact| matches!(fact, Fact::ReadBack(read) if read.slot.0 == NORM_F32);
    run.phase("cold-b", "before").drop(|_, fact| derived(fact));
    assert_undecided(&run, Room::Derived, "no derived value was compared with a cold load's");
    assert_undecided(&run, Room::Derived, "`norm/kernel.weight_f32` of `cold-b` was not read back");
}

#[test]
fn equality_with_an_earlier_phase_alone_is_not_equality_with_a_cold_load() {
    let mut run = correct();
    run.phase("cold-b", "before").drop(|_, fact| matches!(fact, Fact::ReadBack(_)));
    for room in [Room::Derived, Room::Lifecycle, Room::State] {
        assert_undecided(&run, room, "was compared with a cold load's");
        assert_undecided(&run, room, "arm `composite` was compared with no cold load");
    }
}

#[test]
fn an_arm_that_broke_off_before_its_read_back_proves_nothing() {
    for phase in UPDATES {
        let mut run = correct();
        run.phase("warm", phase).breaks_off().drop(|_, fact| {
            matches!(fact, Fact::ReadBack(_) | Fact::Slot(_) | Fact::Logits(_) | Fact::Control(_))
        });
        for room in [Room::Derived, Room::Lifecycle, Room::State] {
            assert_undecided(&run, room, &format!("arm `warm` was not read back after `{phase}`"));
        }
    }
}

#[test]
fn one_slot_that_was_not_read_back_is_undecided_in_its_room_alone() {
    let mut run = correct();
    run.phase("composite", "A>B")
        .drop(|_, fact| matches!(fact, Fact::ReadBack(read) if read.slot.0 == NORM_F32));
    let verdict = run.judge();
    assert_undecided(
        &run,
        Room::Derived,
        "`norm/kernel.weight_f32` of `composite` was not read back",
    );
    assert_eq!(room(&verdict, Room::State), room(&correct().judge(), Room::State));
    assert_eq!(room(&verdict, Room::Lifecycle), room(&correct().judge(), Room::Lifecycle));
}

#[test]
fn a_slot_that_only_the_live_engine_has_is_listed() {
    let mut run = correct();
    run.phase("warm", "A>B").map(|_, fact| match fact {
        Fact::Slot(mut slot) if slot.slot.0 == WORKSPACE => {
            slot.slot = model::name("lazy.table");
            Some(Fact::Slot(slot))
        }
        fact => Some(fact),
    });
    assert_eq!(run.judge().unseen, ["lazy.table (registered by no cold load)"]);
}

#[test]
fn a_slot_that_is_equal_in_every_generation_is_listed() {
    let mut run = correct();
    for arm in ["cold-b", "warm", "names", "names-1", "caches", "composite", "routing"] {
        run.since(arm, "before").read(NORM, |_, read| {
            read.content = Some(model::content("the same"));
        });
    }
    assert_silent(&run);
    assert_eq!(run.judge().unseen, ["norm.weight (equal in every generation)"]);
    // One arm that shows a change is enough.
    run.since("warm", "A>P").read(NORM, |_, read| {
        let at = if read.content.is_some() { "another" } else { "" };
        read.content = Some(model::content(at));
    });
    run.phase("warm", "P>B").read(NORM, |_, read| read.content = Some(model::content("the same")));
    assert_eq!(run.judge().unseen, Vec::<String>::new());
}

#[test]
fn checks_count_equal_values() {
    let (_, proven) = room(&correct().judge(), Room::Derived);
    // Three in warm (nothing is equal to P), one in each of names, names-1, caches and composite.
    assert_eq!(proven, "7 derived values equal to a cold load's, bit for bit");
    assert_eq!(correct().judge().categories[1].checks, 7);
}
