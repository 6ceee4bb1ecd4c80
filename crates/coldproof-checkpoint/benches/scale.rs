//! Growth with the number of sources, on 16 ranks: `keys` accounts for names, `ledger` seals what
//! every rank promises and records its applications, `judge` judges an account of them.
//! `scripts/scaling.py` draws what this measures.

use std::hint::black_box;

use coldproof_contract::verdict::judge;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

#[path = "../tests/it/scale/model.rs"]
mod model;

use model::{findings, model};

fn scale(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scale");
    group.sample_size(10);
    for layers in [138, 277, 555, 1_111] {
        let model = model(layers);
        let sources = model.tensors.len() as u64;
        let promises = model.promises();
        let record = model.account(&promises);
        assert!(model.keys().is_clean());
        assert_eq!(findings(&judge(&record)), []);
        group.throughput(Throughput::Elements(sources));
        let id = |name| BenchmarkId::new(name, sources);
        group.bench_function(id("keys"), |bencher| bencher.iter(|| black_box(&model).keys()));
        group.bench_function(id("ledger"), |bencher| {
            bencher.iter(|| black_box(&model).ledgers(&promises));
        });
        group.bench_function(id("judge"), |bencher| bencher.iter(|| judge(black_box(&record))));
    }
    group.finish();
}

criterion_group!(benches, scale);
criterion_main!(benches);
