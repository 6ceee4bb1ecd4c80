//! The verdict as a whole: what is required, modes, two faults at once, an engine that ends early.

use coldproof_contract::evidence::{Ability, ArmHeader, Fact, RequiredItem, StepOutcome};
use coldproof_contract::verdict::{FindingCode as Code, Listed, Room, Status, VerdictKind, accept};
use coldproof_contract::words::StepName;

use crate::support::model::{self, NORM, NORM_F32, ROPE};
use crate::support::{Run, correct, one, room};

fn mode(run: &mut Run, room: Room, mode: &str) {
    run.header.settings.modes.insert(room.name().to_owned(), mode.to_owned());
}

fn require(run: &mut Run, items: &[RequiredItem]) {
    run.header.settings.required = items.to_vec();
}

/// The derived value does not follow, and the outputs show it.
fn stale_value() -> Run {
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(NORM_F32, "A").map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact {
            logits.rows[0].digest = model::content("other outputs");
        }
        Some(fact)
    });
    run
}

#[test]
fn two_faults_at_once_are_two_findings_and_each_keeps_its_own() {
    let mut run = stale_value();
    run.phase("warm", "A>B").read(ROPE, |_, read| read.content = Some(model::content("garbage")));
    let wanted = [one(Code::DerivedStale, NORM_F32, &[0]), one(Code::StateLost, ROPE, &[0])];
    assert_eq!(run.found(), wanted);
    assert_eq!(run.judge().verdict, VerdictKind::Fail);
}

#[test]
fn a_finding_fails_the_run_though_its_category_is_not_required() {
    let mut run = stale_value();
    require(&mut run, &[RequiredItem::Category(1)]);
    assert_eq!(run.judge().verdict, VerdictKind::Fail);
}

#[test]
fn what_is_required_must_be_proven_and_nothing_else() {
    let mut run = correct().without_arm("caches");
    assert_eq!(run.judge().verdict, VerdictKind::Undecided);
    require(&mut run, &[RequiredItem::Category(6), RequiredItem::Transition]);
    assert_eq!(run.judge().verdict, VerdictKind::Pass);
    let mut run = correct().without_arm("composite");
    require(&mut run, &[RequiredItem::Category(6)]);
    assert_eq!(run.judge().verdict, VerdictKind::Pass);
    require(&mut run, &[RequiredItem::Transition]);
    assert_eq!(run.judge().verdict, VerdictKind::Undecided);
    // Where nothing is required nothing is proven.
    let mut run = correct();
    require(&mut run, &[]);
    assert_eq!(run.judge().verdict, VerdictKind::Undecided);
}

#[test]
fn a_checker_set_to_warn_keeps_its_finding_and_leaves_the_verdict_undecided() {
    let mut run = stale_value();
    mode(&mut run, Room::Derived, "warn");
    let verdict = run.judge();
    assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0])]);
    assert_eq!(room(&verdict, Room::Derived).0, Status::Fail);
    assert_eq!(verdict.verdict, VerdictKind::Undecided);
    assert_eq!(verdict.modes["derived"], "warn");
    // Also where the category is not required.
    require(&mut run, &[RequiredItem::Category(6)]);
    assert_eq!(run.judge().verdict, VerdictKind::Undecided);
    // It excuses no other checker.
    run.phase("warm", "A>B").read(ROPE, |_, read| read.content = Some(model::content("garbage")));
    assert_eq!(run.judge().verdict, VerdictKind::Fail);
}

#[test]
fn a_checker_that_is_off_finds_nothing_and_explains_nothing() {
    let mut run = stale_value();
    mode(&mut run, Room::Derived, "off");
    let verdict = run.judge();
    assert_eq!(room(&verdict, Room::Derived), (Status::NotCovered, "switched off".to_owned()));
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
    assert!(verdict.findings[0].why.contains("switched off: derived"), "{:?}", verdict.findings);
    let mut run = correct();
    mode(&mut run, Room::Derived, "off");
    assert_eq!(run.judge().verdict, VerdictKind::Undecided);
    require(&mut run, &[RequiredItem::Category(1)]);
    assert_eq!(run.judge().verdict, VerdictKind::Pass);
}

#[test]
fn strict_is_strict_however_it_is_said() {
    let mut run = stale_value();
    mode(&mut run, Room::Derived, "strict");
    assert_eq!(run.judge().verdict, VerdictKind::Fail);
}

#[test]
fn a_cold_load_that_failed_is_no_pass() {
    let ends = [
        StepOutcome::Error { text: "no".to_owned() },
        StepOutcome::Died { text: "gone".to_owned(), kernel: None, address: None },
        StepOutcome::Timeout { deadline_ms: 50, kernel: None, address: None },
    ];
    for outcome in ends {
        for step in [StepName::Start, StepName::Load, StepName::Capture, StepName::ReadBack] {
            let mut run = correct();
            if step == StepName::Start {
                run.events.retain(|event| event.arm != "cold-b" || event.step == 1);
                let end = run.events.iter_mut().rfind(|event| event.arm == "cold-b").unwrap();
                let Fact::Step(fact) = &mut end.fact else { panic!("the end of a step") };
                fact.outcome = Some(outcome.clone());
            } else {
                run.phase("cold-b", "before").ends(step, outcome.clone());
            }
            let verdict = run.judge();
            assert_eq!(verdict.verdict, VerdictKind::Fail, "{step}");
            assert_eq!(verdict.findings.len(), 1, "{:?}", verdict.findings);
            for of in [Room::Derived, Room::Lifecycle, Room::State] {
                assert_eq!(room(&verdict, of).0, Status::Undecided, "{step}");
            }
        }
    }
}

#[test]
fn a_cold_load_that_broke_off_in_silence_or_never_was_is_no_pass() {
    let mut run = correct();
    run.events.retain(|event| event.arm != "cold-b" || event.step < 5);
    let verdict = run.judge();
    assert_eq!((verdict.findings.len(), verdict.verdict), (0, VerdictKind::Undecided));
    let verdict = correct().without_arm("cold-b").judge();
    assert_eq!((verdict.findings.len(), verdict.verdict), (0, VerdictKind::Undecided));
    assert_eq!(verdict.transition.status, Status::Undecided);
}

#[test]
fn a_run_without_evidence_proves_nothing() {
    let mut run = correct();
    run.events.clear();
    let verdict = run.judge();
    assert_eq!(verdict.verdict, VerdictKind::Undecided);
    assert!(
        verdict.categories.iter().all(|c| c.status != Status::Pass),
        "{:?}",
        verdict.categories
    );
    assert_eq!(verdict.elapsed_ms, None);
    run.header.arms.clear();
    assert!(run.judge().categories.iter().all(|c| c.status == Status::NotCovered));
}

#[test]
fn each_category_rests_on_evidence_and_not_on_claims() {
    // All that engines claim stays, all that is observed goes.
    let mut run = correct();
    run.events.retain(|event| {
        event.fact.provenance() != coldproof_contract::evidence::Provenance::Observed
    });
    let verdict = run.judge();
    assert_eq!(verdict.findings, []);
    assert!(
        verdict.categories.iter().all(|c| c.status == Status::Undecided),
        "{:?}",
        verdict.categories
    );
    assert_eq!(verdict.transition.status, Status::Undecided);
}

#[test]
fn the_generation_is_read_off_the_content() {
    let run = correct();
    let generation = run.judge().generation.unwrap();
    assert_eq!(run.judge().generation.unwrap(), generation);
    let mut other = correct();
    other.phase("composite", "A>B").map(|_, mut fact| {
        if let Fact::SourceReadBack(read) = &mut fact
            && read.source == NORM
        {
            read.digest = Some(model::content("another"));
        }
        Some(fact)
    });
    assert_ne!(other.judge().generation.unwrap(), generation);
    other.phase("composite", "A>B").map(|_, mut fact| {
        if let Fact::SourceReadBack(read) = &mut fact {
            read.digest = None;
        }
        Some(fact)
    });
    assert_eq!(other.judge().generation, None);
    // Without the composite lane it is that of the differential lane, never that of the cold load.
    assert_eq!(correct().without_arm("composite").judge().generation.unwrap(), generation);
    let cold = correct().without_arm("composite").without_arm("warm");
    assert_eq!(cold.judge().generation, None);
}

#[test]
fn what_the_run_was_is_in_its_verdict() {
    let mut run = correct();
    run.header.notes.push("a setting".to_owned());
    run.header.seed = 7;
    let verdict = run.judge();
    assert_eq!(verdict.schema, "coldproof.verdict/1");
    assert_eq!(
        (verdict.from.unwrap().path, verdict.to.unwrap().path),
        ("checkpoints/A".into(), "checkpoints/B".into())
    );
    assert_eq!((verdict.seed, verdict.engine.kind.as_str()), (7, "hand-made"));
    assert_eq!(
        (verdict.notes[0].kind.as_str(), verdict.notes[0].text.as_str()),
        ("setting", "a setting")
    );
    assert!(verdict.elapsed_ms.unwrap() > 0.0);
    assert_eq!(verdict.noise.values().copied().fold(0.0, f64::max), 0.0);
}

#[test]
fn events_of_an_arm_that_the_header_does_not_name_are_not_judged() {
    let mut run = correct();
    let ArmHeader { arm, .. } = run.header.arms.pop().unwrap();
    assert_eq!(arm, "composite");
    assert_eq!(run.judge().transition.status, Status::NotCovered);
}

#[test]
fn what_an_engine_cannot_do_is_not_covered() {
    let cannot = || StepOutcome::Unsupported { what: "capture".to_owned() };
    let reason = "the engine does not support capture (step `capture`)".to_owned();
    let mut run = correct();
    run.phase("warm", "before").ends(StepName::Capture, cannot());
    let verdict = run.judge();
    assert_eq!((verdict.findings.len(), verdict.verdict), (0, VerdictKind::Undecided));
    for of in [Room::Storage, Room::Derived, Room::Lifecycle, Room::State] {
        assert_eq!(room(&verdict, of), (Status::NotCovered, reason.clone()));
    }
    assert_eq!(room(&verdict, Room::Names).0, Status::Pass);
    let mut run = correct();
    run.phase("composite", "before").ends(StepName::Capture, cannot());
    assert_eq!(run.judge().transition.status, Status::NotCovered);
    assert_eq!(run.judge().transition.reason, Some(reason));
    // What was found all the same is found.
    let mut run = stale_value();
    run.phase("warm", "B>A").ends(StepName::Update, cannot());
    assert_eq!(run.found(), [one(Code::DerivedStale, NORM_F32, &[0])]);
    assert_eq!(room(&run.judge(), Room::Derived).0, Status::Fail);
}

#[test]
fn a_seeded_fault_that_is_not_found_is_undecided() {
    let mut run = correct();
    run.header.settings.seeded.push("F2.01".to_owned());
    let verdict = run.judge();
    assert_eq!((verdict.findings.len(), verdict.verdict), (0, VerdictKind::Undecided));
    assert_eq!(verdict.notes[0].text, "switched on and not found: F2.01");
    let mut run = stale_value();
    run.header.settings.seeded.push("F2.01".to_owned());
    assert_eq!(run.judge().verdict, VerdictKind::Fail);
    assert_eq!(run.judge().notes, []);
}

/// Without the steps of sleep in the composite arm.
fn awake() -> Run {
    let mut run = correct();
    let sleeps = [StepName::Sleep, StepName::WakeWeights, StepName::WakeKv];
    for phase in ["A>B", "B>A"] {
        run.phase("composite", phase).drop(|_, fact| match fact {
            Fact::Step(step) => sleeps.contains(&step.name),
            Fact::Region(_) => true,
            _ => false,
        });
    }
    run
}

#[test]
fn sleep_is_left_out_where_the_engine_has_none_and_nowhere_else() {
    let mut run = awake();
    assert_eq!(run.judge().transition.status, Status::Undecided);
    run.header.engine.cannot = vec![Ability::Sleep];
    let transition = run.judge().transition;
    assert_eq!((transition.status, transition.steps.len()), (Status::Pass, 5));
    assert!(transition.reason.unwrap().contains("no sleep"));
}

#[test]
fn what_an_engine_has_not_is_not_covered_and_a_finding_there_still_is_one() {
    let mut run = correct();
    run.header.engine.cannot = vec![Ability::Graphs, Ability::PrefixCache];
    let verdict = run.judge();
    for without in [Room::Storage, Room::Caches] {
        let (status, reason) = room(&verdict, without);
        assert_eq!(status, Status::NotCovered);
        assert!(reason.contains("the engine"), "{reason}");
    }
    assert_eq!(verdict.verdict, VerdictKind::Undecided);
    let mut run = stale_value();
    run.header.engine.cannot = vec![Ability::Graphs];
    assert_eq!(room(&run.judge(), Room::Derived).0, Status::Fail);
}

#[test]
fn a_listed_finding_passes_and_what_only_it_explains_with_it() {
    let entry = |code| Listed { code, object: "*norm*".to_owned(), link: "there".to_owned() };
    let mut verdict = stale_value().judge();
    assert_eq!(verdict.transition.status, Status::Undecided);
    accept(&mut verdict, &[entry(Code::DerivedStale)]);
    assert_eq!(verdict.verdict, VerdictKind::Pass);
    assert_eq!(room(&verdict, Room::Derived).0, Status::Fail);
    // Something else stays open beside it: that is no pass.
    let mut verdict = stale_value().without_arm("caches").judge();
    accept(&mut verdict, &[entry(Code::DerivedStale)]);
    assert_eq!(verdict.verdict, VerdictKind::Undecided);
    // And what is listed and gone fails a correct run, unless nobody looked.
    let mut verdict = correct().judge();
    accept(&mut verdict, &[entry(Code::CacheStale)]);
    assert_eq!(verdict.verdict, VerdictKind::Fail);
    let mut verdict = correct().without_arm("caches").judge();
    accept(&mut verdict, &[entry(Code::CacheStale)]);
    assert_eq!(verdict.verdict, VerdictKind::Undecided);
}
