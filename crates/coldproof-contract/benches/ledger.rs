//! Applications recorded and checked, 1,000,000 of them in shuffled order.
//!
//! `tensors`: 1,000,000 sources, one application each. `chunks`: 1,000 sources of 1,000 chunks.
//! `rows`: one source in 1,000,000 chunks. `tensors/100000` shows that growth is linear. Beside
//! them `tensors` in Python, and `memory`: as many places of a piece's size, each read and written
//! once in that order and nothing else done.

mod python;

use std::hint::black_box;
use std::time::Duration;

use coldproof_contract::lifecycle::{
    Application, ApplicationIdentity, Ledger, Manifest, ManifestDraft, SlotKey, SourceKey,
};
use coldproof_contract::words::{Fragment, Span};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const COLUMNS: Span = Span::new(0, 4096);

struct Prepared {
    source: SourceKey,
    slot: SlotKey,
    spans: [Span; 2],
}

fn manifest(sources: u64, rows: u64) -> Manifest {
    let piece = |index: u64| {
        let whole = Fragment(vec![Span::new(0, rows), COLUMNS]);
        ApplicationIdentity {
            source: format!("model.layers.{index}.weight"),
            source_fragment: whole.clone(),
            slot: format!("model.layers.{index}.weight").as_str().into(),
            slot_fragment: whole,
        }
    };
    let draft = ManifestDraft { pieces: (0..sources).map(piece).collect(), ..Default::default() };
    draft.seal().expect("the pieces are disjoint")
}

/// Every chunk of one row of every source, shuffled.
fn applications(ledger: &Ledger, sources: u64, rows: u64) -> Vec<Prepared> {
    let mut all = Vec::new();
    for index in 0..sources {
        let name = format!("model.layers.{index}.weight");
        let source = ledger.source(&name).expect("the source is promised");
        let slot = ledger.slot(&name.as_str().into()).expect("the slot is promised");
        let row = |row| [Span::new(row, row + 1), COLUMNS];
        all.extend((0..rows).map(|at| Prepared { source, slot, spans: row(at) }));
    }
    shuffle(&mut all);
    all
}

fn shuffle<T>(all: &mut [T]) {
    let mut seed = 1_u64;
    for last in (1..all.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(last, (seed >> 33) as usize % (last + 1));
    }
}

fn record(ledger: &mut Ledger, applications: &[Prepared]) {
    for prepared in applications {
        let application = Application {
            source: prepared.source,
            source_fragment: &prepared.spans,
            slot: prepared.slot,
            slot_fragment: &prepared.spans,
        };
        ledger.record(black_box(&application)).expect("each row comes once");
    }
}

/// What a ledger keeps of one promised piece takes two cache lines.
const PLACE_WORDS: usize = 16;

#[derive(Clone)]
#[repr(align(64))]
struct Place([u64; PLACE_WORDS]);

fn shuffled(count: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count as usize).collect();
    shuffle(&mut order);
    order
}

/// Reads both lines of every place, and writes the first.
fn touch(places: &mut [Place], order: &[usize]) {
    for &at in order {
        let Place(words) = &mut places[at];
        words[0] = black_box(words[0] ^ words[PLACE_WORDS - 1]);
    }
}

fn ledger(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    let shapes = [
        ("tensors", 100_000, 1),
        ("tensors", 1_000_000, 1),
        ("chunks", 1_000, 1_000),
        ("rows", 1, 1_000_000),
    ];
    for (name, sources, rows) in shapes {
        let ledger = Ledger::seal(&manifest(sources, rows));
        let applications = applications(&ledger, sources, rows);
        let mut once = ledger.clone();
        record(&mut once, &applications);
        assert!(once.finish().is_empty(), "every row was recorded");
        group.throughput(Throughput::Elements(sources * rows));
        let id = BenchmarkId::new(name, sources * rows);
        group.bench_function(id, |bencher| {
            // Opening the ledger is not in the time.
            bencher.iter_batched_ref(
                || ledger.clone(),
                |ledger| record(ledger, &applications),
                BatchSize::PerIteration,
            );
        });
    }
    for places in [100_000, 1_000_000] {
        group.throughput(Throughput::Elements(places));
        let order = shuffled(places);
        group.bench_function(BenchmarkId::new("memory", places), |bencher| {
            bencher.iter_batched_ref(
                || vec![Place([1; PLACE_WORDS]); order.len()],
                |places| touch(places, &order),
                BatchSize::PerIteration,
            );
        });
    }
    let mut peer = python::Peer::start(include_str!("python/ledger.py"));
    group.throughput(Throughput::Elements(1_000_000));
    let id = BenchmarkId::new("tensors-in-python", 1_000_000);
    group.bench_function(id, |bencher| bencher.iter_custom(|n| peer.time(n)));
    group.finish();
}

criterion_group!(benches, ledger);
criterion_main!(benches);
