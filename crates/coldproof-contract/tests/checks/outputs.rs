//! Outputs position by position, of requests alone and of requests that were decoded together.

use coldproof_contract::evidence::{Event, Fact, LogitsFact, LogitsRow};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::{Rank, StepName};

use crate::support::engine::bits;
use crate::support::{Run, assert_silent, assert_undecided, correct, model, moved, one, room};

fn row(request: &str, at: &str, position: u32) -> LogitsRow {
    let digest = model::content(&format!("{at} {request} {position}"));
    LogitsRow { position, digest, bits: Some(bits(at, position)), top: vec![] }
}

/// The request `row-0`, decoded with others or alone.
fn served(at: &str, batch: u32) -> Fact {
    let (request, mode) = ("row-0".to_owned(), "graph".to_owned());
    let rows = (0..4).map(|position| row(&request, at, position)).collect();
    Fact::Logits(LogitsFact {
        request,
        mode,
        adapter: None,
        repeat: 0,
        stage: None,
        batch,
        rows,
        tokens: vec![7, 8],
    })
}

/// A correct run whose cold load serves a request alone and in a batch, and whose composite lane
/// serves the batch before and after its update.
fn with_a_batch() -> Run {
    let mut run = correct();
    let cold = vec![served("B", 1), served("B", 2)];
    run.phase("cold-b", "before").add(StepName::Serve, Rank::default(), cold);
    for (phase, at) in [("before", "A"), ("A>B", "B")] {
        let facts = vec![served(at, 2)];
        run.phase("composite", phase).add(StepName::Serve, Rank::default(), facts);
    }
    // The first step that serves is an eager one: here it replays.
    for event in &mut run.events {
        if let Fact::Launch(launch) = &mut event.fact {
            launch.graph = Some("decode-1".to_owned());
        }
    }
    run
}

/// Changes what was served of `row-0` in one phase.
fn change(run: &mut Run, arm: &str, phase: &str, change: impl Fn(&mut LogitsFact)) {
    run.phase(arm, phase).map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact
            && logits.request == "row-0"
        {
            change(logits);
        }
        Some(fact)
    });
}

#[track_caller]
fn assert_open(run: &Run, reason: &str) {
    let verdict = run.judge();
    assert_eq!(verdict.findings, []);
    assert_eq!(verdict.transition.status, Status::Undecided);
    let why = verdict.transition.reason.unwrap();
    assert!(why.contains(reason), "{why}");
}

#[test]
fn rows_of_a_batch_are_compared_and_each_counts_once() {
    let run = with_a_batch();
    assert_silent(&run);
    assert_eq!(run.judge().transition.checks, correct().judge().transition.checks + 4);
}

#[test]
fn a_token_that_no_cold_load_chooses_is_enough() {
    let mut run = with_a_batch();
    change(&mut run, "composite", "A>B", |logits| logits.tokens[1] = 9);
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "row-0", &[0])]);
    let finding = run.judge().findings.remove(0);
    let text = "it chose the tokens [7, 9], a cold load [7, 8]";
    assert!(finding.actual.contains(text), "{}", finding.actual);
}

#[test]
fn one_bit_of_one_row_of_a_batch_is_enough() {
    let mut run = with_a_batch();
    change(&mut run, "composite", "A>B", |logits| moved(&mut logits.rows[2], 0.5));
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "row-0", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.actual.contains("`row-0` (graph, 2 together)"), "{}", finding.actual);
    // A cold load that serves no batch is compared with each request alone.
    run.phase("cold-b", "before").drop(|_, fact| match fact {
        Fact::Logits(logits) => logits.batch == 2,
        _ => false,
    });
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "row-0", &[0])]);
}

#[test]
fn a_batch_may_differ_from_a_request_alone_as_much_as_in_the_cold_load() {
    let in_batch = |run: &mut Run, arm: &str, phase: &str, by: f32| {
        change(run, arm, phase, |logits| {
            if logits.batch == 2 {
                moved(&mut logits.rows[0], by);
            }
        });
    };
    let mut run = with_a_batch();
    in_batch(&mut run, "cold-b", "before", 0.5);
    in_batch(&mut run, "composite", "A>B", 0.5);
    assert_silent(&run);
    // The same batch of the cold load it must equal.
    let mut run = with_a_batch();
    in_batch(&mut run, "cold-b", "before", 0.5);
    in_batch(&mut run, "composite", "A>B", 0.25);
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "row-0", &[0])]);
    // A cold load that is wrong alone makes no batch right.
    let mut run = with_a_batch();
    change(&mut run, "cold-b", "before", |logits| {
        if logits.batch == 1 {
            moved(&mut logits.rows[0], 0.5);
        }
    });
    in_batch(&mut run, "composite", "A>B", -0.5);
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "row-0", &[0])]);
}

#[test]
fn a_batch_that_is_not_served_again_is_named() {
    let mut run = with_a_batch();
    run.phase("composite", "A>B").drop(|_, fact| match fact {
        Fact::Logits(logits) => logits.batch == 2,
        _ => false,
    });
    assert_open(&run, "arm `composite` did not serve `row-0` (graph, 2 together) after `A>B`");
}

#[test]
fn outputs_that_no_load_of_the_checkpoint_has_are_not_compared() {
    for (request, name) in [("row-0", "`row-0` (graph, 2 together)"), ("main", "`main` (eager)")] {
        let mut run = with_a_batch();
        run.phase("cold-b", "before").drop(|_, fact| match fact {
            Fact::Logits(logits) => logits.request == request,
            _ => false,
        });
        assert_open(&run, &format!("no load of the same checkpoint answers request {name}"));
    }
}

#[test]
fn a_batch_in_graph_mode_replays_a_graph() {
    let mut run = with_a_batch();
    let of_batch = |event: &&Event| match &event.fact {
        Fact::Logits(logits) => event.arm == "composite" && logits.batch == 2,
        _ => false,
    };
    let step = run.events.iter().rfind(of_batch).unwrap().step;
    for event in run.events.iter_mut().filter(|e| e.arm == "composite" && e.step == step) {
        if let Fact::Launch(launch) = &mut event.fact {
            launch.graph = None;
        }
    }
    let reason = "request `row-0` of arm `composite` replayed no graph after `A>B`";
    let verdict = run.judge();
    let (status, why) = room(&verdict, Room::Storage);
    assert_eq!((status, why.contains(reason)), (Status::Undecided, true), "{why}");
}

/// Changes the outputs of one repeat of one request.
fn rows(run: &mut Run, of: (&str, &str), request: (&str, u32), keep: impl Fn(u32) -> bool) {
    run.phase(of.0, of.1).map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact
            && (logits.request.as_str(), logits.repeat) == request
        {
            logits.rows.retain(|row| keep(row.position));
        }
        Some(fact)
    });
}

#[test]
fn fewer_positions_than_a_cold_load_has_are_no_pass() {
    let reason = "`main` (eager) of arm `composite` and what it must equal differ in 1 positions";
    for gone in [0, 1, 2] {
        let mut run = correct();
        rows(&mut run, ("composite", "A>B"), ("main", 0), |position| position != gone);
        assert_open(&run, reason);
        // More than a cold load has are not compared either.
        let mut run = correct();
        rows(&mut run, ("cold-b", "before"), ("main", 0), |position| position != gone);
        assert_open(&run, reason);
    }
    // A stream that ends elsewhere is another stream.
    let mut run = correct();
    rows(&mut run, ("composite", "A>B"), ("main", 0), |position| position != 3);
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main", &[0])]);
}

#[test]
fn a_cache_that_is_hit_again_may_leave_out_the_first_positions() {
    // The correct run does: its second answer has the last two alone.
    let run = correct();
    assert_silent(&run);
    let short = run.events.iter().filter_map(|event| match &event.fact {
        Fact::Logits(logits) if event.arm == "caches" => Some((logits.repeat, logits.rows.len())),
        _ => None,
    });
    assert_eq!(short.collect::<Vec<_>>(), [(0, 4), (1, 2), (0, 4), (1, 2)]);
    // The first answer after the update must have all.
    let mut run = correct();
    rows(&mut run, ("caches", "A>B"), ("cache", 0), |position| position > 1);
    let reason = "`cache` (eager) of arm `caches` and what it must equal differ in 2 positions";
    assert_open(&run, reason);
    assert_undecided(&run, Room::Caches, reason);
    // And no answer may have a hole.
    let mut run = correct();
    run.phase("caches", "A>B").map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact
            && logits.repeat == 1
        {
            logits.rows.push(row("cache", "B", 0));
        }
        Some(fact)
    });
    assert_undecided(&run, Room::Caches, "`cache` (eager) of arm `caches`");
}

/// The main request is served without a finite number after this update.
fn void(run: &mut Run, phase: &str) {
    run.phase("warm", phase).map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact {
            for row in &mut logits.rows {
                let words = row.bits.as_ref().map_or(0, String::len) / 8;
                row.bits = Some("7fc00000".repeat(words));
                row.digest = model::content("no number");
            }
        }
        Some(fact)
    });
}

#[test]
fn what_no_number_left_in_the_engine_is_no_second_finding() {
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(model::NORM, "A");
    let alone = run.found();
    void(&mut run, "A>B");
    void(&mut run, "B>A");
    assert_eq!(run.found(), alone);
    // Numbers that are wrong are another matter, and so is a NaN of which nothing came before.
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(model::NORM, "A");
    void(&mut run, "B>A");
    let served = one(Code::OutputUnexplained, "main", &[0]);
    assert_eq!(run.found(), [alone.as_slice(), &[served]].concat());
}
