//! Digests of tensors in memory on all cores, beside a bare read of the same bytes and SHA-256 on
//! one thread, in one run. What is digested from a core's own cache shows what the arithmetic takes
//! when memory costs nothing: by one thread, then by one a core.

use std::hint::black_box;

use coldproof_contract::digest::{SourceKey, digest_whole};
use coldproof_contract::words::Dtype;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

/// More than any cache holds.
const BYTES: usize = 512 << 20;
const TENSOR: usize = 8 << 20;
/// What a core's own cache holds, and how often it is digested.
const CACHED: usize = 256 << 10;
const TIMES: usize = 256;
/// SHA-256 takes its time.
const HASHED: usize = 64 << 20;

fn digest(criterion: &mut Criterion) {
    let words: Vec<u64> = (0..BYTES as u64 / 8).map(|n| n.wrapping_mul(0x9e37_79b9)).collect();
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    let shape = [TENSOR as u64 / 2];
    let keys: Vec<SourceKey> = (0..BYTES / TENSOR)
        .map(|n| SourceKey::new(&format!("layer.{n}"), Dtype::Bf16, &shape).expect("a plain shape"))
        .collect();
    let tensors: Vec<(&SourceKey, &[u8])> = keys.iter().zip(bytes.chunks(TENSOR)).collect();
    let mut group = criterion.benchmark_group("digest");
    group.throughput(Throughput::Bytes(BYTES as u64)).sample_size(10);
    group.bench_function("bare-read", |bencher| {
        bencher.iter(|| {
            let sum = |chunk: &[u64]| chunk.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
            black_box(&words).par_chunks(TENSOR / 8).map(sum).reduce(|| 0, u64::wrapping_add)
        });
    });
    group.bench_function("digest", |bencher| {
        bencher.iter(|| {
            let whole = |(key, bytes): &(&SourceKey, &[u8])| digest_whole(key, bytes);
            black_box(&tensors).par_iter().map(whole).collect::<Result<Vec<_>, _>>()
        });
    });
    let key = SourceKey::new("cached", Dtype::Bf16, &[CACHED as u64 / 2]).expect("a plain shape");
    for threads in [1, rayon::current_num_threads()] {
        group.throughput(Throughput::Bytes((threads * CACHED * TIMES) as u64));
        group.bench_function(format!("digest-cached-{threads}-threads"), |bencher| {
            bencher.iter(|| {
                bytes[..threads * CACHED].par_chunks(CACHED).for_each(|own| {
                    for _ in 0..TIMES {
                        black_box(digest_whole(&key, black_box(own)).expect("its own length"));
                    }
                });
            });
        });
    }
    group.throughput(Throughput::Bytes(HASHED as u64));
    group.bench_function("sha256-one-thread", |bencher| {
        bencher.iter(|| Sha256::digest(black_box(&bytes[..HASHED])));
    });
    group.finish();
}

criterion_group!(benches, digest);
criterion_main!(benches);
