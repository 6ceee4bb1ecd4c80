//! Category 7: entries of the old generation.

use coldproof_contract::evidence::Fact;
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::Generation;

use crate::support::{Run, assert_silent, assert_undecided, correct, correct_at, one, room};

/// Rows that the launch trace has for each serve of a phase, in order.
fn computed(run: &mut Run, phase: &str, rows: &[u64]) {
    let mut rows = rows.iter();
    run.phase("caches", phase).map(|_, mut fact| {
        if let Fact::Launch(launch) = &mut fact {
            launch.rows = *rows.next().unwrap();
        }
        Some(fact)
    });
}

#[test]
fn rows_that_were_not_computed_again_came_from_the_old_generation() {
    let mut run = correct();
    computed(&mut run, "A>B", &[7, 2]);
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.expected, "71 rows computed");
    assert_eq!(finding.actual, "7 rows computed");
    assert!(finding.why.contains("took 64 rows from entries"), "{}", finding.why);
    let texts: Vec<&str> = finding.events.iter().map(|event| event.text.as_str()).collect();
    let served = "69 rows served from the cache on the old generation";
    assert_eq!(texts[..2], [served, "64 rows not computed after the update"]);
}

#[test]
fn entries_without_keys_and_values_have_the_name_that_the_engine_gives_them() {
    let mut run = correct();
    computed(&mut run, "A>B", &[7, 2]);
    for (from, to) in [("prefix-kv", "prefix-state"), ("prefix-state", "encoder")] {
        for phase in ["before", "A>B"] {
            run.phase("caches", phase).map(|_, mut fact| {
                if let Fact::Cache(cache) = &mut fact
                    && cache.cache == from
                {
                    to.clone_into(&mut cache.cache);
                }
                Some(fact)
            });
        }
        let named = if to == "prefix-state" { to } else { "prefix-kv" };
        assert_eq!(run.found(), [one(Code::CacheStale, named, &[0])]);
    }
}

#[test]
fn one_row_less_is_enough_and_one_row_more_is_none() {
    let mut run = correct();
    computed(&mut run, "A>B", &[70, 2]);
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[0])]);
    computed(&mut run, "A>B", &[72, 2]);
    assert_silent(&run);
}

#[test]
fn a_second_request_of_the_new_generation_may_hit() {
    let mut run = correct();
    computed(&mut run, "A>B", &[71, 1]);
    assert_silent(&run);
}

#[test]
fn without_a_hit_on_the_old_generation_nothing_is_proven() {
    let reason = "request `cache` hit no cache on the old generation";
    for rows in [[71, 71], [71, 72], [0, 0]] {
        let mut run = correct();
        computed(&mut run, "before", &rows);
        assert_undecided(&run, Room::Caches, reason);
    }
    let mut run = correct();
    run.phase("caches", "before")
        .drop(|_, fact| matches!(fact, Fact::Logits(logits) if logits.repeat == 1));
    assert_undecided(&run, Room::Caches, reason);
}

#[test]
fn a_launch_trace_that_was_not_recorded_is_no_hit() {
    let mut run = correct();
    computed(&mut run, "before", &[71, 0]);
    assert_undecided(&run, Room::Caches, "hit no cache on the old generation");
    let mut run = correct();
    computed(&mut run, "A>B", &[0, 2]);
    assert_undecided(&run, Room::Caches, "no launch of request `cache` was seen after the update");
}

#[test]
fn a_request_that_was_not_repeated_is_undecided() {
    let mut run = correct();
    run.phase("caches", "A>B").drop(|_, fact| matches!(fact, Fact::Logits(_)));
    assert_undecided(&run, Room::Caches, "request `cache` was not repeated after the update");
}

#[test]
fn an_arm_that_ended_before_its_update_is_undecided() {
    let mut run = correct();
    run.phase("caches", "before").breaks_off();
    assert_undecided(&run, Room::Caches, "arm `caches` ended before its update");
}

#[test]
fn without_the_lane_caches_are_not_covered() {
    let run = correct().without_arm("caches");
    assert_eq!(room(&run.judge(), Room::Caches).0, Status::NotCovered);
    let mut run = correct();
    run.header.arms[5].against = None;
    assert_eq!(room(&run.judge(), Room::Caches).0, Status::NotCovered);
}

fn states(run: &mut Run, rank: u32, generation: u64, entries: u64) {
    run.phase("caches", "A>B").map(|on, mut fact| {
        if let Fact::Cache(cache) = &mut fact
            && on.tp == rank
        {
            (cache.generation, cache.entries) = (Generation(generation), entries);
        }
        Some(fact)
    });
}

#[test]
fn a_cache_that_says_it_keeps_the_old_generation_is_stale() {
    let mut run = correct_at(2);
    states(&mut run, 1, 1, 3);
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[1])]);
}

#[test]
fn a_cache_that_is_empty_or_of_the_new_generation_is_coherent() {
    for (generation, entries) in [(1, 0), (2, 3)] {
        let mut run = correct_at(2);
        states(&mut run, 1, generation, entries);
        assert_silent(&run);
    }
}

#[test]
fn what_a_cache_says_cannot_acquit() {
    let mut run = correct();
    states(&mut run, 0, 2, 0);
    computed(&mut run, "A>B", &[7, 2]);
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[0])]);
}

#[test]
fn nothing_was_committed_so_nothing_is_acknowledged() {
    let mut run = correct();
    states(&mut run, 0, 1, 3);
    run.phase("caches", "A>B").drop(|_, fact| matches!(fact, Fact::Receipt(_)));
    assert_silent(&run);
}

#[test]
fn checks_count_requests() {
    let verdict = correct().judge();
    assert_eq!(verdict.categories[6].checks, 1);
    let (_, proven) = room(&verdict, Room::Caches);
    assert!(proven.starts_with("69 cached rows served on the old generation"), "{proven}");
}
