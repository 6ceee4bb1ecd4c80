//! Category 7: what an encoder computed of an image under old weights, and prepared images, which
//! weights do not make.

use std::collections::BTreeSet;

use coldproof_contract::evidence::{CacheFact, Event, Fact, LaunchFact, RequestStage};
use coldproof_contract::verdict::{FindingCode as Code, Room};
use coldproof_contract::words::{Generation, Rank, StepName};

use crate::support::{Run, assert_silent, assert_undecided, correct, one, room};

const ENCODER: u64 = 34;
const PROCESSOR: u64 = 32;
const MODEL: u64 = 33;

/// The launches of one answer: rows of the model, of the encoder and of the processor.
fn launches([model, encoder, processor]: [u64; 3]) -> Vec<Fact> {
    let stages = [None, Some(RequestStage::Encoder), Some(RequestStage::Processor)];
    let one = |(stage, rows): (Option<RequestStage>, u64)| {
        Fact::Launch(LaunchFact {
            request: "image".to_owned(),
            kernel: "forward".to_owned(),
            graph: None,
            stage,
            launches: 1,
            rows,
        })
    };
    stages
        .into_iter()
        .zip([model, encoder, processor])
        .filter(|(_, rows)| *rows > 0)
        .map(one)
        .collect()
}

/// A correct run that serves a request with an image beside the one of each caches lane.
fn with_images() -> Run {
    let mut run = correct();
    let cached = |event: &Event| match &event.fact {
        Fact::Logits(logits) => logits.request == "cache",
        _ => false,
    };
    let steps: BTreeSet<(String, u32)> = run
        .events
        .iter()
        .filter(|event| cached(event))
        .map(|event| (event.arm.clone(), event.step))
        .collect();
    run.events.iter_mut().for_each(|event| event.step *= 2);
    let again: Vec<Event> = run
        .events
        .iter()
        .filter(|event| steps.contains(&(event.arm.clone(), event.step / 2)))
        .cloned()
        .map(|mut event| {
            event.step += 1;
            if let Fact::Logits(logits) = &mut event.fact {
                logits.request = "image".to_owned();
            }
            event
        })
        .filter(|event| !matches!(event.fact, Fact::Launch(_)))
        .collect();
    run.events.extend(again);
    // Phases are told by where events stand.
    let arms: Vec<String> = run.header.arms.iter().map(|arm| arm.arm.clone()).collect();
    let arm = |event: &Event| arms.iter().position(|arm| *arm == event.arm);
    run.events.sort_by_key(|event| (arm(event), event.step));
    for phase in ["before", "A>B"] {
        let declared = [declared("encoder", phase, None), declared("processor", phase, Some("v"))];
        run.phase("caches", phase).add(StepName::ReadBack, Rank::default(), declared.into());
        computed(
            &mut run,
            phase,
            [MODEL, ENCODER, if phase == "before" { PROCESSOR } else { 0 }],
            0,
        );
        computed(&mut run, phase, [MODEL, 0, 0], 1);
    }
    run
}

fn declared(cache: &str, phase: &str, version: Option<&str>) -> Fact {
    let generation = Generation(if phase == "before" { 1 } else { 2 });
    let (cache, version) = (cache.to_owned(), version.map(str::to_owned));
    Fact::Cache(CacheFact { cache, generation, entries: 1, hits: 0, version })
}

/// What the answer number `repeat` in a phase computed.
fn computed(run: &mut Run, phase: &str, rows: [u64; 3], repeat: u32) {
    run.phase("caches", phase).drop(|_, fact| match fact {
        Fact::Launch(launch) => launch.request == format!("image-{repeat}"),
        _ => false,
    });
    let found = run.events.iter().position(|event| match &event.fact {
        Fact::Logits(logits) => {
            let own = event.arm == "caches" && logits.request == "image";
            own && logits.repeat == repeat && after(&run.events, event) == phase
        }
        _ => false,
    });
    let at = found.expect("an answer");
    let event = run.events[at].clone();
    let launches = launches(rows).into_iter().map(|mut fact| {
        if let Fact::Launch(launch) = &mut fact {
            launch.request = format!("image-{repeat}");
        }
        Event { fact, ..event.clone() }
    });
    run.events.splice(at..at, launches.collect::<Vec<_>>());
}

/// The phase that an event of the caches arm belongs to.
fn after(events: &[Event], of: &Event) -> &'static str {
    let updated = events.iter().find(|event| match &event.fact {
        Fact::Phase(fact) => event.arm == "caches" && fact.phase == "A>B",
        _ => false,
    });
    if updated.is_some_and(|phase| phase.step < of.step) { "A>B" } else { "before" }
}

#[test]
fn an_image_that_the_encoder_computes_again_is_coherent_and_a_prepared_one_may_stay() {
    let run = with_images();
    assert_silent(&run);
    let verdict = run.judge();
    assert_eq!(verdict.categories[6].checks, 2);
    let (_, proven) = room(&verdict, Room::Caches);
    assert!(proven.contains("34 rows that the encoder's cache had served"), "{proven}");
    assert!(proven.contains("32 rows were served from the processor's cache"), "{proven}");
    let mut run = with_images();
    computed(&mut run, "A>B", [MODEL, ENCODER, PROCESSOR], 0);
    assert_silent(&run);
}

#[test]
fn rows_of_an_image_that_were_not_computed_again_are_of_the_old_generation() {
    for left in [0, 33] {
        let mut run = with_images();
        computed(&mut run, "A>B", [MODEL, left, 0], 0);
        assert_eq!(run.found(), [one(Code::CacheStale, "encoder", &[0])]);
        let finding = run.judge().findings.remove(0);
        assert_eq!(finding.expected, "34 rows computed");
        assert_eq!(finding.actual, format!("{left} rows computed"));
    }
}

#[test]
fn a_hit_of_the_models_own_cache_is_no_hit_of_the_encoders() {
    let mut run = with_images();
    computed(&mut run, "before", [1, 0, 0], 1);
    let reason = "request `image` hit no cache `encoder` on the old generation";
    assert_undecided(&run, Room::Caches, reason);
    let mut run = with_images();
    computed(&mut run, "before", [MODEL, ENCODER, 0], 1);
    assert_undecided(&run, Room::Caches, reason);
    let mut run = with_images();
    computed(&mut run, "before", [MODEL, 0, PROCESSOR], 1);
    let reason = "request `image` hit no cache `processor` on the old generation";
    assert_undecided(&run, Room::Caches, reason);
}

#[test]
fn a_cache_that_is_hit_and_not_declared_is_undecided() {
    for name in ["encoder", "processor"] {
        let mut run = with_images();
        run.phase("caches", "before")
            .drop(|_, fact| matches!(fact, Fact::Cache(cache) if cache.cache == name));
        let reason = format!("the engine does not say that it has a cache `{name}`");
        assert_undecided(&run, Room::Caches, &reason);
    }
}

fn states(run: &mut Run, name: &str, change: impl Fn(&mut CacheFact)) {
    run.phase("caches", "A>B").map(|_, mut fact| {
        if let Fact::Cache(cache) = &mut fact
            && cache.cache == name
        {
            change(cache);
        }
        Some(fact)
    });
}

#[test]
fn an_encoders_cache_that_says_it_keeps_the_old_generation_is_stale_and_a_processors_is_not() {
    let old = |cache: &mut CacheFact| cache.generation = Generation(1);
    let mut run = with_images();
    states(&mut run, "encoder", old);
    assert_eq!(run.found(), [one(Code::CacheStale, "encoder", &[0])]);
    let mut run = with_images();
    states(&mut run, "processor", old);
    assert_silent(&run);
}

#[test]
fn images_that_another_processor_prepared_are_stale() {
    let other = |cache: &mut CacheFact| cache.version = Some("w".to_owned());
    let mut run = with_images();
    states(&mut run, "processor", other);
    assert_eq!(run.found(), [one(Code::CacheStale, "processor", &[0])]);
    let mut run = with_images();
    states(&mut run, "processor", |cache| {
        other(cache);
        cache.entries = 0;
    });
    assert_silent(&run);
}
