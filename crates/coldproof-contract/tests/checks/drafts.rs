//! Speculative decoding: what drafts is judged by its own logits, and its blocks as a cache.

use coldproof_contract::evidence::{CacheFact, Event, Fact, LaunchFact, LogitsFact, RequestStage};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::{Generation, Rank, StepName};

use crate::support::{Run, assert_silent, assert_undecided, correct, moved, one, room};

const DRAFT: Option<RequestStage> = Some(RequestStage::Draft);
/// Rows that are drafted for the cache request where no block is known.
const FULL: u64 = 21;

fn alone(fact: &Fact) -> Option<&LogitsFact> {
    match fact {
        Fact::Logits(logits) if logits.batch == 1 && logits.stage.is_none() => Some(logits),
        _ => None,
    }
}

/// A correct run in which something drafts for every request that is decoded alone.
fn with_drafts() -> Run {
    let mut run = correct();
    let drafted = |event: &Event| {
        let fact = Fact::Logits(LogitsFact { stage: DRAFT, ..alone(&event.fact)?.clone() });
        Some(Event { fact, ..event.clone() })
    };
    let events = std::mem::take(&mut run.events).into_iter();
    run.events = events.flat_map(|event| [drafted(&event), Some(event)]).flatten().collect();
    for (phase, generation) in [("before", 1), ("A>B", 2)] {
        let (cache, generation) = ("draft-kv".to_owned(), Generation(generation));
        let fact = Fact::Cache(CacheFact { cache, generation, entries: 1, hits: 0, version: None });
        run.phase("caches", phase).add(StepName::ReadBack, Rank::default(), vec![fact]);
        drafts(&mut run, phase, 0, FULL);
        drafts(&mut run, phase, 1, 5);
    }
    run
}

/// Rows that were drafted for answer number `repeat` to the cache request in a phase.
fn drafts(run: &mut Run, phase: &str, repeat: u32, rows: u64) {
    let name = format!("cache-{repeat}");
    run.phase("caches", phase)
        .drop(|_, fact| matches!(fact, Fact::Launch(launch) if launch.request == name));
    let steps: Vec<u32> = run.events.iter().filter(|event| event.arm == "caches").fold(
        Vec::new(),
        |mut steps, event| {
            if let Fact::Phase(_) = &event.fact {
                steps.push(event.step);
            }
            steps
        },
    );
    let (first, end) = match phase {
        "before" => (steps[0], steps[1]),
        _ => (steps[1], u32::MAX),
    };
    let own = |event: &Event| {
        let asked = alone(&event.fact);
        let asked = asked.is_some_and(|one| one.request == "cache" && one.repeat == repeat);
        event.arm == "caches" && asked && (first..end).contains(&event.step)
    };
    let at = run.events.iter().position(own).expect("an answer");
    let (request, kernel) = (name, "forward".to_owned());
    let launch = LaunchFact { request, kernel, graph: None, stage: DRAFT, launches: 1, rows };
    let event = Event { fact: Fact::Launch(launch), ..run.events[at].clone() };
    run.events.insert(at, event);
}

/// Changes what is drafted for the main request in a phase.
fn change(run: &mut Run, arm: &str, phase: &str, change: impl Fn(&mut LogitsFact)) {
    run.phase(arm, phase).map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact
            && logits.stage == DRAFT
            && logits.request == "main"
        {
            change(logits);
        }
        Some(fact)
    });
}

#[test]
fn drafts_that_equal_those_of_a_cold_load_are_rows_that_were_compared() {
    let rows = |run: &Run| run.judge().transition.reason.unwrap();
    let run = with_drafts();
    assert_silent(&run);
    assert_ne!(rows(&run), rows(&correct()), "they count");
    let (_, proven) = room(&run.judge(), Room::Caches);
    assert!(proven.contains("so were 16 rows that the draft's cache had served"), "{proven}");
}

#[test]
fn a_draft_that_a_cold_load_would_not_make_is_found_though_the_model_answers_right() {
    let mut run = with_drafts();
    change(&mut run, "composite", "A>B", |logits| moved(&mut logits.rows[0], 0.5));
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.actual.contains("drafted"), "{}", finding.actual);
}

#[test]
fn drafts_that_are_gone_after_the_update_leave_the_transition_open() {
    let mut run = with_drafts();
    run.phase("composite", "A>B")
        .drop(|_, fact| matches!(fact, Fact::Logits(logits) if logits.stage == DRAFT));
    let verdict = run.judge();
    assert_eq!((verdict.findings.len(), verdict.transition.status), (0, Status::Undecided));
    let why = verdict.transition.reason.unwrap();
    assert!(why.contains("drafted"), "{why}");
}

#[test]
fn blocks_of_the_draft_that_outlive_their_weights_are_stale() {
    for left in [0, FULL - 1] {
        let mut run = with_drafts();
        drafts(&mut run, "A>B", 0, left);
        assert_eq!(run.found(), [one(Code::CacheStale, "draft-kv", &[0])], "{left}");
    }
}

#[test]
fn a_cache_of_the_draft_that_is_named_must_be_hit_and_one_that_is_not_need_not() {
    let mut run = with_drafts();
    drafts(&mut run, "before", 1, FULL);
    let reason = "request `cache` hit no cache `draft-kv` on the old generation";
    assert_undecided(&run, Room::Caches, reason);
    for phase in ["before", "A>B"] {
        run.phase("caches", phase)
            .drop(|_, fact| matches!(fact, Fact::Cache(cache) if cache.cache == "draft-kv"));
    }
    assert_silent(&run);
}
