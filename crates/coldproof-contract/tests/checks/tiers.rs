//! Category 7: blocks that lie below the KV cache, in host memory and in files.

use coldproof_contract::evidence::{
    ArmHeader, CacheFact, Event, Fact, LaneName, RequestStage, StepFact, StepOutcome,
};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::{Generation, Rank, StepName, Topology};

use crate::support::engine::{CACHE_ROWS, Engine};
use crate::support::{Run, assert_silent, assert_undecided, correct, model, one, room};

/// Rows that the model computes where a tier gave all that it may.
const LEFT: u64 = 7;
/// Rows that it then gave.
const GIVEN: u64 = 64;
const FULL: [u64; 3] = [CACHE_ROWS, 0, 0];
const HOST: [u64; 3] = [LEFT, GIVEN, 0];
const FILE: [u64; 3] = [LEFT, 0, GIVEN];
const PAGED: [u64; 3] = [LEFT, 0, 0];

/// A run of all lanes in which nothing is wrong, of an engine with tiers.
fn with_tiers() -> Run {
    let mut run = correct();
    let header = |arm, against| ArmHeader::new(arm, LaneName::Tiers, Topology::SINGLE, against);
    let cold = run.header.arms[0].clone();
    run.events.retain(|event| event.arm != cold.arm);
    let mut events = Vec::new();
    let mut engine = Engine::start(cold, &mut events, "B");
    engine.capture();
    engine.look("B");
    engine.serve_all("B");
    engine.serve("cache", "eager", 0, "B", CACHE_ROWS);
    engine.serve("kept", "eager", 0, "B", CACHE_ROWS);
    for (arm, at) in [("tiers", "A"), ("tiers-other", "B"), ("tiers-again", "A")] {
        let header = header(arm, Some("cold-b"));
        run.header.arms.push(header.clone());
        let mut engine = Engine::start(header, &mut events, at);
        match arm {
            "tiers" => {
                engine.serve("cache", "eager", 0, at, CACHE_ROWS);
                engine.serve("kept", "eager", 0, at, CACHE_ROWS);
            }
            "tiers-other" => engine.serve("cache", "eager", 0, at, CACHE_ROWS),
            _ => {
                engine.serve("kept", "eager", 0, at, CACHE_ROWS);
                engine.serve("cache", "eager", 0, at, CACHE_ROWS);
                engine.serve("kept", "eager", 1, at, CACHE_ROWS);
                engine.update("A", "B");
                engine.look("B");
                engine.serve("kept", "eager", 0, "B", CACHE_ROWS);
                engine.serve("kept", "eager", 1, "B", LEFT);
            }
        }
    }
    run.events.splice(0..0, events);
    launched(&mut run, "tiers-again", "before", &[FILE, FILE, HOST]);
    for arm in ["tiers", "tiers-other", "tiers-again"] {
        let declared = |cache: &str, version: Option<&str>| {
            let (cache, version) = (cache.to_owned(), version.map(str::to_owned));
            Fact::Cache(CacheFact {
                cache,
                generation: Generation(1),
                entries: 4,
                hits: 0,
                version,
            })
        };
        let facts = vec![declared("host-kv", None), declared("file-kv", Some("digest"))];
        run.phase(arm, "before").add(StepName::Serve, Rank::default(), facts);
    }
    run
}

/// What each serve of a phase launched: rows of the model, of the host tier, of the file tier.
fn launched(run: &mut Run, arm: &str, of: &str, serves: &[[u64; 3]]) {
    let mut serves = serves.iter();
    let mut phase = "before".to_owned();
    let mut kept = Vec::new();
    for event in std::mem::take(&mut run.events) {
        if event.arm == arm
            && let Fact::Phase(fact) = &event.fact
        {
            phase.clone_from(&fact.phase);
        }
        let Fact::Launch(launch) = &event.fact else {
            kept.push(event);
            continue;
        };
        if event.arm != arm || phase != of {
            kept.push(event);
        } else if launch.stage.is_none() {
            let stages = [None, Some(RequestStage::HostTier), Some(RequestStage::FileTier)];
            for (stage, rows) in stages.into_iter().zip(serves.next().unwrap()) {
                let mut launch = launch.clone();
                (launch.stage, launch.rows) = (stage, *rows);
                if *rows > 0 {
                    kept.push(Event { fact: Fact::Launch(launch), ..event.clone() });
                }
            }
        }
    }
    run.events = kept;
}

/// The logits of answer `repeat` to a request become those of another checkpoint.
fn answers_as(run: &mut Run, arm: &str, request: &str, repeat: u32, at: &str) {
    run.phase(arm, "before").map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact
            && logits.request == request
            && logits.repeat == repeat
        {
            for row in &mut logits.rows {
                row.digest = model::content(&format!("{at} {request} {}", row.position));
                row.bits = Some(crate::support::engine::bits(at, row.position));
            }
        }
        Some(fact)
    });
}

#[test]
fn tiers_that_were_hit_and_gave_nothing_to_other_weights_are_coherent() {
    let run = with_tiers();
    assert_silent(&run);
    let verdict = run.judge();
    // The request of the caches lane, the engine on B, the request after the update twice over: by
    // another arm's entries and by its own host tier's.
    assert_eq!(verdict.categories[6].checks, 4);
    let (_, proven) = room(&verdict, Room::Caches);
    assert!(proven.contains("64 rows served from `host-kv` on the old generation"), "{proven}");
    assert!(proven.contains("128 from `file-kv` after a restart"), "{proven}");
}

#[test]
fn a_host_tier_that_outlives_its_weights_is_stale() {
    for rows in [HOST, [CACHE_ROWS - 1, 1, 0]] {
        let mut run = with_tiers();
        launched(&mut run, "tiers-again", "A>B", &[rows, PAGED]);
        assert_eq!(run.found(), [one(Code::CacheStale, "host-kv", &[0])]);
    }
    let mut run = with_tiers();
    launched(&mut run, "tiers-again", "A>B", &[FULL, HOST]);
    assert_silent(&run);
}

#[test]
fn a_file_that_another_engine_on_other_weights_takes_is_stale() {
    let mut run = with_tiers();
    launched(&mut run, "tiers-other", "before", &[FILE]);
    assert_eq!(run.found(), [one(Code::CacheStale, "file-kv", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.expected, "71 rows computed");
    assert!(finding.why.contains("64 rows from entries of `A`"), "{}", finding.why);
    assert!(finding.why.ends_with("an engine that was started with `B`"), "{}", finding.why);
    let mut run = with_tiers();
    launched(&mut run, "tiers-again", "A>B", &[FILE, PAGED]);
    assert_eq!(run.found(), [one(Code::CacheStale, "file-kv", &[0])]);
    let mut run = with_tiers();
    launched(&mut run, "tiers-again", "A>B", &[PAGED, PAGED]);
    assert_eq!(run.found(), [one(Code::CacheStale, "prefix-kv", &[0])]);
}

#[test]
fn a_tier_that_was_declared_and_never_hit_is_undecided() {
    let cases = [
        ([FULL, FULL, HOST], "no request hit `file-kv` after a restart"),
        ([FILE, FILE, FILE], "no request hit `host-kv` on the old generation"),
        // Its own entries show no restart.
        ([FULL, FULL, FILE], "no request hit `file-kv` after a restart"),
        // It gave rows, and the model computed all the same.
        ([FILE, FILE, [CACHE_ROWS, GIVEN, 0]], "no request hit `host-kv` on the old generation"),
        ([FILE, FILE, [0, GIVEN, 0]], "no request hit `host-kv` on the old generation"),
    ];
    for (rows, reason) in cases {
        let mut run = with_tiers();
        launched(&mut run, "tiers-again", "before", &rows);
        assert_undecided(&run, Room::Caches, reason);
    }
}

#[test]
fn a_tier_that_is_not_declared_is_undecided() {
    for name in ["host-kv", "file-kv"] {
        let mut run = with_tiers();
        run.phase("tiers-again", "before")
            .drop(|_, fact| matches!(fact, Fact::Cache(cache) if cache.cache == name));
        let reason =
            format!("the engine does not say that it has a cache `{name}`, and it was hit");
        assert_undecided(&run, Room::Caches, &reason);
    }
    let mut run = with_tiers();
    for arm in ["tiers", "tiers-other", "tiers-again"] {
        launched(&mut run, arm, "before", &[FULL, FULL, PAGED]);
        run.phase(arm, "before").drop(|_, fact| {
            matches!(fact, Fact::Cache(cache) if ["host-kv", "file-kv"].contains(&&*cache.cache))
        });
    }
    assert_undecided(&run, Room::Caches, "was started with tiers and states none");
}

#[test]
fn what_was_not_repeated_on_other_weights_is_undecided() {
    let mut run = with_tiers();
    run.phase("tiers-again", "A>B").drop(|_, fact| matches!(fact, Fact::Logits(_)));
    assert_undecided(&run, Room::Caches, "no request that hit `host-kv` was computed after");
    let run = with_tiers().without_arm("tiers-other");
    assert_undecided(&run, Room::Caches, "no engine on other weights computed a request");
    let mut run = with_tiers();
    launched(&mut run, "tiers-other", "before", &[[0, 0, 0]]);
    assert_undecided(&run, Room::Caches, "no launch of request `cache` was seen");
    let mut run = with_tiers();
    run.phase("cold-b", "before")
        .drop(|_, fact| matches!(fact, Fact::Logits(logits) if logits.request == "kept"));
    assert_undecided(&run, Room::Caches, "no cold load computed request `kept`");
}

#[test]
fn what_a_tier_gives_back_is_what_was_kept() {
    let mut run = with_tiers();
    answers_as(&mut run, "tiers-again", "kept", 0, "P");
    assert_eq!(run.found(), [one(Code::CacheStale, "file-kv", &[0])]);
    // All of it was computed: then no tier is to blame.
    let mut run = with_tiers();
    answers_as(&mut run, "tiers-other", "cache", 0, "A");
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "cache", &[0])]);
}

#[test]
fn two_labels_of_one_content_are_the_same_weights() {
    let mut run = with_tiers();
    let digest = run.header.checkpoints[1].digest.clone();
    run.header.checkpoints[0].digest = digest;
    for (arm, request, repeat) in [
        ("tiers", "cache", 0),
        ("tiers", "kept", 0),
        ("tiers-again", "kept", 0),
        ("tiers-again", "cache", 0),
        ("tiers-again", "kept", 1),
    ] {
        answers_as(&mut run, arm, request, repeat, "B");
    }
    launched(&mut run, "tiers-other", "before", &[FILE]);
    launched(&mut run, "tiers-again", "A>B", &[FILE, PAGED]);
    let verdict = run.judge();
    assert_eq!(verdict.findings, []);
    let (status, proven) = room(&verdict, Room::Caches);
    assert_eq!(status, Status::Pass, "{proven}");
    assert!(proven.contains("both have one content"), "{proven}");
}

#[test]
fn an_engine_without_tiers_is_judged_by_the_other_lanes_and_covers_nothing_by_this_one_alone() {
    let mut run = correct();
    let header = ArmHeader::new("tiers", LaneName::Tiers, Topology::SINGLE, Some("cold-b"));
    run.header.arms.push(header.clone());
    let mut events = Vec::new();
    Engine::start(header, &mut events, "A").step(StepName::Serve, |_| ());
    let last = events.last_mut().unwrap();
    let outcome = Some(StepOutcome::Unsupported { what: "KV tiers".to_owned() });
    last.fact = Fact::Step(StepFact { name: StepName::Serve, outcome });
    run.events.extend(events);
    let (status, reason) = room(&run.judge(), Room::Caches);
    assert_eq!(status, Status::NotCovered);
    assert!(reason.contains("does not support KV tiers"), "{reason}");
}
