//! A step that an update leaves out: by what it did, not by its absence alone.

use coldproof_contract::evidence::{Fact, StepOutcome};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status, VerdictKind};
use coldproof_contract::words::StepName;

use crate::support::{Run, correct, one, room};

const UPDATED: [(&str, &str); 8] = [
    ("warm", "A>B"),
    ("warm", "B>A"),
    ("warm", "A>P"),
    ("warm", "P>B"),
    ("names", "A>B"),
    ("names-1", "A>B-alt"),
    ("caches", "A>B"),
    ("composite", "A>B"),
];

/// A run whose updates leave the caches as they are; `said` where the caller says so.
fn kept(said: bool) -> Run {
    let mut run = correct();
    for (arm, phase) in UPDATED {
        run.phase(arm, phase)
            .drop(|_, fact| matches!(fact, Fact::Step(step) if step.name == StepName::Invalidate));
    }
    run.header.settings.skipped = said.then_some(StepName::Invalidate).into_iter().collect();
    run
}

/// The first request after the update computed so many rows.
fn computed(run: &mut Run, rows: u64) {
    let mut first = true;
    run.phase("caches", "A>B").map(|_, mut fact| {
        if let Fact::Launch(launch) = &mut fact
            && std::mem::take(&mut first)
        {
            launch.rows = rows;
        }
        Some(fact)
    });
}

#[test]
fn what_was_served_from_caches_that_were_kept_is_the_only_finding() {
    let mut run = kept(true);
    computed(&mut run, 7);
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[0])]);
    let verdict = run.judge();
    let why = &verdict.findings[0].why;
    assert!(why.ends_with("in which the caches were not told to empty"), "{why}");
    assert_eq!(verdict.transition.status, Status::Undecided);
    let reason = verdict.transition.reason.unwrap();
    assert!(reason.contains("arm `composite` took no step invalidate in `A>B`"), "{reason}");
    // With its step the update is blamed for nothing but the rows.
    let mut run = correct();
    computed(&mut run, 7);
    assert!(!run.judge().findings[0].why.contains("told"));
}

#[test]
fn an_absent_step_alone_proves_nothing_and_accuses_nobody() {
    let mut run = kept(true);
    assert_eq!(run.found(), []);
    let verdict = run.judge();
    assert_eq!(room(&verdict, Room::Caches).0, Status::Pass);
    assert_eq!(verdict.transition.status, Status::Undecided);
    assert_eq!(verdict.verdict, VerdictKind::Undecided);
    // Nor where no more is required than what was shown.
    run.header
        .settings
        .required
        .retain(|item| *item == coldproof_contract::evidence::RequiredItem::Category(7));
    let verdict = run.judge();
    assert_eq!(verdict.verdict, VerdictKind::Undecided);
    let notes: Vec<&str> = verdict.notes.iter().map(|note| note.text.as_str()).collect();
    assert!(notes.contains(&"left out and nothing of it found: invalidate"), "{notes:?}");
}

#[test]
fn a_step_that_nobody_said_would_be_left_out_is_out_of_order_where_it_did_nothing() {
    let run = kept(false);
    let names: Vec<_> = run.found().into_iter().map(|found| (found.1, found.2)).collect();
    assert!(names.contains(&(Code::Order, "transition `A>B`".to_owned())), "{names:?}");
    // Where it did, that says it.
    let mut run = correct();
    run.phase("caches", "A>B")
        .drop(|_, fact| matches!(fact, Fact::Step(step) if step.name == StepName::Invalidate));
    assert_eq!(run.found(), [one(Code::Order, "transition `A>B`", &[0])]);
    computed(&mut run, 7);
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[0])]);
}

#[test]
fn an_engine_that_refuses_to_resume_has_the_left_out_step_as_its_cause() {
    let mut run = kept(true);
    let text = "call `invalidate` before `resume`".to_owned();
    for (arm, phase) in [("warm", "A>B"), ("caches", "A>B"), ("composite", "A>B")] {
        let outcome = StepOutcome::Error { text: text.clone() };
        run.phase(arm, phase).ends(StepName::Resume, outcome);
    }
    assert_eq!(run.found(), [one(Code::Order, "step `invalidate`", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.actual.starts_with("resume may not follow finalize; invalidate may"));
    assert!(finding.actual.ends_with(&text), "{}", finding.actual);
    // A refusal of a step in its place is its own finding.
    let mut run = correct();
    run.phase("warm", "A>B").ends(StepName::Resume, StepOutcome::Error { text });
    assert_eq!(run.found(), [one(Code::StepRefused, "resume", &[0])]);
}
