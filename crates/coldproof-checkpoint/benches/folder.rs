//! `coldproof digest` on a folder of 512 MiB in the page cache, beside bare positioned reads of the
//! same file by as many threads, in one run.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use camino::Utf8Path;
use coldproof_checkpoint::{Checkpoint, Layout, TensorSpec, digest_checkpoint, write_checkpoint};
use coldproof_contract::words::Dtype;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const TENSORS: u64 = 64;
const TENSOR: u64 = 8 << 20;
/// What the digest reads at a time.
const READ: usize = 256 << 10;
const THREADS: u64 = 2;

fn checkpoint(at: &Utf8Path) -> Checkpoint {
    let spec = |index| TensorSpec {
        name: format!("layer.{index:02}"),
        dtype: Dtype::Bf16,
        shape: vec![TENSOR / 2 / 1024, 1024],
    };
    let layout = Layout::single((0..TENSORS).map(spec).collect());
    let words = (0..TENSOR / 8).map(|word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    write_checkpoint(at, &layout, |_| Ok(bytes.clone())).expect("space for 512 MiB");
    Checkpoint::open(at).expect("it was written")
}

/// Reads the whole file, each thread its own part, with positioned reads.
fn bare_read(file: &File, length: u64) -> u64 {
    let part = length.div_ceil(THREADS);
    std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            scope.spawn(move || {
                let mut buffer = vec![0; READ];
                let (mut at, end) = (thread * part, length.min((thread + 1) * part));
                while at < end {
                    let read = file.read_at(&mut buffer, at).expect("the file is there") as u64;
                    black_box(&buffer);
                    at += read;
                }
                at
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("it only reads")).max()
    })
    .unwrap_or(0)
}

fn folder(criterion: &mut Criterion) {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let at = Utf8Path::from_path(scratch.path()).expect("UTF-8").join("checkpoint");
    let checkpoint = checkpoint(&at);
    let file = File::open(at.join("model.safetensors")).expect("one file");
    let length = file.metadata().expect("its length").len();
    let mut group = criterion.benchmark_group("folder");
    group.throughput(Throughput::Bytes(TENSORS * TENSOR)).sample_size(10);
    group.bench_function("bare-read", |bencher| bencher.iter(|| bare_read(&file, length)));
    group.bench_function("digest", |bencher| {
        bencher.iter(|| digest_checkpoint(black_box(&checkpoint)).expect("it does not change"));
    });
    group.finish();
}

criterion_group!(benches, folder);
criterion_main!(benches);
