//! The gate: fingerprints of 1,000,000 slots compared with those of the capture, on one core,
//! beside the same in Python.

mod python;

use std::hint::black_box;

use coldproof_contract::storage::{Hold, Registry, RegistryDraft, Sighting, Snapshot};
use coldproof_contract::words::{Address, Dtype, Fingerprint, StorageId};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const SLOTS: u64 = 1_000_000;

fn fingerprint(slot: u64) -> Fingerprint {
    let rows = 64 * (1 + slot % 7);
    Fingerprint {
        storage: StorageId(slot),
        address: Address(slot * 0x1000),
        storage_bytes: rows * 128 * 2,
        shape: vec![rows, 128],
        stride: vec![128, 1],
        offset: 0,
        dtype: Dtype::Bf16,
        device: "cuda:0".to_owned(),
    }
}

fn registry() -> Registry {
    let mut draft = RegistryDraft::default();
    for slot in 0..SLOTS {
        let name = format!("model.layers.{slot}.weight").as_str().into();
        draft.register(name, fingerprint(slot)).expect("names are unique");
    }
    draft.seal(Hold::Weak)
}

/// Every `step`th slot moved; none where `step` is 0.
fn snapshot(registry: &Registry, step: u64) -> Snapshot<'_> {
    let mut snapshot = registry.snapshot();
    for slot in 0..SLOTS {
        let moved = step > 0 && slot % step == 0;
        let now = fingerprint(if moved { slot + SLOTS } else { slot });
        let name = format!("model.layers.{slot}.weight").as_str().into();
        snapshot.see(&name, Sighting::At(&now)).expect("the slot is registered");
    }
    snapshot
}

fn gate(criterion: &mut Criterion) {
    let registry = registry();
    let mut group = criterion.benchmark_group("gate");
    group.throughput(Throughput::Elements(SLOTS)).sample_size(20);
    for (name, step, changed) in [("unchanged", 0, 0), ("one-in-1000-moved", 1000, 1000)] {
        let snapshot = snapshot(&registry, step);
        assert_eq!(snapshot.changes().len(), changed);
        group.bench_function(name, |bencher| bencher.iter(|| black_box(&snapshot).changes()));
    }
    let mut peer = python::Peer::start(include_str!("python/gate.py"));
    group.sample_size(10);
    group.bench_function("unchanged-in-python", |bencher| bencher.iter_custom(|n| peer.time(n)));
    group.finish();
}

criterion_group!(benches, gate);
criterion_main!(benches);
