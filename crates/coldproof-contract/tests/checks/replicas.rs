//! Data-parallel replicas: each is judged by itself, and what one has makes up for no other.

use coldproof_contract::evidence::Fact;
use coldproof_contract::verdict::{FindingCode as Code, Room, VerdictKind};
use coldproof_contract::words::{Generation, Rank, StepName, Topology};

use crate::support::model::{self, GATE_UP, NORM};
use crate::support::{Run, assert_silent, assert_undecided, correct_with, one, room};

/// Two replicas of one rank each.
fn two() -> Run {
    correct_with(Topology { dp: 2, ..Topology::SINGLE })
}

/// Two replicas of two ranks each.
fn four() -> Run {
    correct_with(Topology { tp: 2, dp: 2, ..Topology::SINGLE })
}

/// A replica holds what it held before the update, and says that it committed.
fn passed_over(run: &mut Run, arm: &str, phase: &str, at: &str) {
    let header = run.header.arms.iter().find(|header| header.arm == arm).unwrap();
    let topology = header.topology;
    run.phase(arm, phase).map(|rank, fact| match fact {
        Fact::ReadBack(read) if rank.dp == 1 => {
            let old = model::read_backs(topology, rank, at);
            old.into_iter().find(|old| old.slot == read.slot).map(Fact::ReadBack)
        }
        Fact::SourceReadBack(mut source) => {
            source.digest = None;
            source.problem = Some("replicas differ".to_owned());
            Some(Fact::SourceReadBack(source))
        }
        // Nothing runs there: its receipt is all that it says.
        Fact::Application(_) | Fact::PostLoad(_) if rank.dp == 1 => None,
        fact => Some(fact),
    });
}

#[test]
fn replicas_that_take_every_update_are_silent_and_all_certified() {
    assert_silent(&two());
    let run = four();
    assert_silent(&run);
    let certificate = run.judge().certificate.unwrap();
    assert_eq!(certificate.ranks, [0, 1, 2, 3]);
    // One of fewer replicas holds something else.
    let of_one = correct_with(Topology::tensor(2)).judge().certificate.unwrap();
    assert_ne!(certificate.identity, of_one.identity);
}

#[test]
fn a_replica_that_keeps_the_old_weights_is_named_with_its_ranks() {
    let mut run = two();
    passed_over(&mut run, "warm", "A>B", "A");
    assert_eq!(run.found(), [one(Code::MixedGeneration, "transaction 2", &[1])]);
    let mut run = four();
    passed_over(&mut run, "warm", "A>B", "A");
    // It is one fault, in whichever updates it shows.
    passed_over(&mut run, "warm", "P>B", "P");
    passed_over(&mut run, "composite", "A>B", "A");
    assert_eq!(run.found(), [one(Code::MixedGeneration, "transaction 2", &[2, 3])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.actual, "every parameter of 2 ranks still holds the old bytes");
}

#[test]
fn a_replica_that_no_sentinel_reaches_is_passed_over() {
    let unreached = |run: &mut Run, on: fn(Rank) -> bool| {
        run.phase("routing", "A>S0").map(|rank, mut fact| {
            if let Fact::Origins(origins) = &mut fact
                && on(rank)
            {
                origins.runs.iter_mut().for_each(|run| run.source = None);
            }
            Some(fact)
        });
    };
    let mut run = two();
    unreached(&mut run, |rank| rank.dp == 1);
    assert_eq!(run.found(), [one(Code::MixedGeneration, "transaction 2", &[2, 3])]);
    assert!(room(&run.judge(), Room::Routing).1.contains("see mixed-generation"));
    // Where some of it arrived, what did not is named.
    let mut run = two();
    run.phase("routing", "A>S0").map(|rank, mut fact| {
        if let Fact::Origins(origins) = &mut fact
            && rank.dp == 1
            && origins.slot.0 != NORM
        {
            origins.runs.iter_mut().for_each(|run| run.source = None);
        }
        Some(fact)
    });
    let found = run.found();
    assert!(found.iter().all(|found| found.1 == Code::ApplicationMissing), "{found:?}");
    assert!(found.len() > 1 && found.iter().all(|found| found.3 == [2, 3]), "{found:?}");
}

#[test]
fn an_extra_of_one_replica_hides_no_gap_of_another() {
    let mut run = two();
    let mut extra = Vec::new();
    run.phase("warm", "A>B").map(|rank, fact| {
        if let Fact::Application(applied) = &fact
            && applied.source == NORM
        {
            if rank.dp == 0 {
                extra.push(fact.clone());
            } else {
                return None;
            }
        }
        Some(fact)
    });
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), extra);
    let found = run.found();
    assert!(found.contains(&one(Code::ApplicationMissing, NORM, &[1])), "{found:?}");
}

#[test]
fn a_slot_of_one_replica_that_keeps_its_bytes_is_of_that_replica_alone() {
    let mut run = two();
    let old = model::read_backs(Topology { dp: 2, ..Topology::SINGLE }, Rank::default(), "A");
    run.phase("warm", "A>B").read(GATE_UP, |rank, read| {
        if rank.dp == 1 {
            *read = old.iter().find(|old| old.slot == read.slot).unwrap().clone();
        }
    });
    let found = run.found();
    assert!(!found.is_empty() && found.iter().all(|found| found.3 == [1]), "{found:?}");
}

#[test]
fn a_stale_cache_of_one_replica_is_found_there() {
    let mut run = two();
    run.phase("caches", "A>B").map(|rank, mut fact| {
        if let Fact::Launch(launch) = &mut fact
            && rank.dp == 1
        {
            launch.rows = 2;
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[1])]);
    // What it says of its cache counts by replica too.
    let mut run = two();
    run.phase("caches", "A>B").map(|rank, mut fact| {
        if let Fact::Cache(cache) = &mut fact
            && rank.dp == 1
        {
            (cache.generation, cache.entries) = (Generation(1), 3);
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[1])]);
}

#[test]
fn a_replica_without_a_receipt_is_not_certified() {
    for arm in ["composite", "warm"] {
        let mut run = two();
        run.since(arm, "A>B").drop(|rank, fact| rank.dp == 1 && matches!(fact, Fact::Receipt(_)));
        let verdict = run.judge();
        assert_eq!(verdict.findings, []);
        let whole = arm == "warm";
        // The whole transition is what is certified.
        assert_eq!(verdict.certificate.is_some(), whole);
        assert_eq!(verdict.verdict == VerdictKind::Pass, whole);
    }
}

#[test]
fn ranks_of_two_replicas_that_state_two_generations_are_mixed() {
    let mut run = two();
    run.phase("warm", "A>B").map(|rank, mut fact| {
        if let Fact::Receipt(receipt) = &mut fact {
            receipt.committed = rank.dp == 0;
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::MixedGeneration, "transaction 2", &[0, 1])]);
}

#[test]
fn a_replica_that_nobody_asked_is_not_proven() {
    let asked = |fact: &Fact| matches!(fact, Fact::Logits(_) | Fact::Launch(_));
    // Neither before nor after: nothing of it is missing by name.
    let mut run = two();
    for arm in ["cold-b", "composite"] {
        run.since(arm, "before").drop(|rank, fact| rank.dp == 1 && asked(fact));
    }
    let transition = run.judge().transition.reason.unwrap();
    assert!(transition.contains("replica 1 of arm `composite` served nothing"), "{transition}");
    let mut run = two();
    run.since("caches", "before").drop(|rank, fact| rank.dp == 1 && asked(fact));
    assert_undecided(&run, Room::Caches, "no request was served on replica 1");
    let mut run = two();
    run.since("warm", "before").drop(|rank, fact| rank.dp == 1 && asked(fact));
    run.since("composite", "before").drop(|rank, fact| rank.dp == 1 && asked(fact));
    let (_, reason) = room(&run.judge(), Room::Storage);
    assert!(reason.contains("no captured graph was replayed on replica 1"), "{reason}");
    assert_eq!(run.judge().verdict, VerdictKind::Undecided);
}

#[test]
fn a_request_that_ran_on_another_replica_shows_nothing_of_the_one_it_names() {
    let mut run = two();
    for event in &mut run.events {
        if matches!(event.fact, Fact::Launch(_)) && event.arm == "composite" {
            event.rank = Rank::default();
        }
    }
    let transition = run.judge().transition.reason.unwrap();
    assert!(transition.contains("replica 1 of arm `composite` served nothing"), "{transition}");
}

#[test]
fn what_one_replica_answers_otherwise_is_of_its_rank() {
    let mut run = two();
    run.phase("composite", "A>B").map(|rank, mut fact| {
        if let Fact::Logits(logits) = &mut fact
            && rank.dp == 1
        {
            logits.rows.iter_mut().for_each(|row| crate::support::moved(row, 1.0));
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "main@dp1", &[1])]);
}
