//! Digests of a checkpoint do not depend on its files, and tell checkpoints apart.

use coldproof_checkpoint::{
    Checkpoint, Layout, TensorSpec, digest_checkpoint, digest_unsigned, write_checkpoint,
};
use coldproof_contract::digest::{SourceKey, digest_whole};
use coldproof_contract::words::Dtype;

use crate::support::{Scratch, all_fixtures, bytes_of, fixtures, spec, write};

#[test]
fn streamed_digests_are_those_of_whole_tensors() {
    for (_, directory) in all_fixtures() {
        let checkpoint = Checkpoint::open(&directory).unwrap();
        let digest = digest_checkpoint(&checkpoint).unwrap();
        assert_eq!(digest.sources.len(), checkpoint.tensors().len());
        for (name, source) in &digest.sources {
            let tensor = checkpoint.get(name).unwrap();
            let key = SourceKey::new(name, tensor.dtype, &tensor.shape).unwrap();
            assert_eq!(source.digest, digest_whole(&key, &tensor.read().unwrap()).unwrap());
        }
    }
}

/// Tensors longer than one read, with rows that end inside a block, and short ones.
#[test]
fn long_tensors_are_cut_at_blocks() {
    let specs = [
        spec("long rows", Dtype::Bf16, &[3, 300_001]),
        spec("short rows", Dtype::F32, &[120_000, 3]),
        spec("one row", Dtype::U8, &[17_000_003]),
        spec("scalar", Dtype::F64, &[]),
        spec("empty", Dtype::F64, &[4, 0]),
    ];
    let tensors: Vec<_> = specs.iter().map(|s| (s.clone(), bytes_of(s))).collect();
    let scratch = Scratch::new();
    let checkpoint = write(&scratch.path().join("A"), &tensors);
    let digest = digest_checkpoint(&checkpoint).unwrap();
    for (spec, bytes) in &tensors {
        let key = SourceKey::new(&spec.name, spec.dtype, &spec.shape).unwrap();
        let whole = digest_whole(&key, bytes).unwrap();
        assert_eq!(digest.sources[&spec.name].digest, whole, "{}", spec.name);
    }
}

#[test]
fn other_files_have_the_same_digest_and_another_bit_has_not() {
    let directory = fixtures().join("qwen3_moe/A");
    let single = Checkpoint::open(&directory).unwrap();
    let scratch = Scratch::new();
    let specs: Vec<TensorSpec> = single.tensors().values().map(TensorSpec::from).collect();
    let rewrite = |name: &str, flip: Option<&str>| {
        let out = scratch.path().join(name);
        write_checkpoint(&out, &Layout::sharded(specs.clone(), 100_000), |spec| {
            let mut bytes = single.get(&spec.name).unwrap().read()?;
            if flip == Some(&spec.name) {
                bytes[11] ^= 1;
            }
            Ok(bytes)
        })
        .unwrap();
        digest_checkpoint(&Checkpoint::open(&out).unwrap()).unwrap()
    };
    let whole = digest_checkpoint(&single).unwrap();
    assert_eq!(rewrite("same", None), whole);
    let other = rewrite("other", Some("model.layers.1.mlp.gate.weight"));
    assert_ne!(other.digest, whole.digest);
    let differing = whole.sources.iter().filter(|(name, d)| other.sources[*name] != **d);
    let differing: Vec<&String> = differing.map(|(name, _)| name).collect();
    assert_eq!(differing, ["model.layers.1.mlp.gate.weight"]);
}

#[test]
fn a_file_that_changes_meanwhile_has_no_digest() {
    let scratch = Scratch::new();
    let tensor = spec("a", Dtype::U8, &[64]);
    let checkpoint = write(&scratch.path().join("A"), &[(tensor.clone(), bytes_of(&tensor))]);
    std::fs::remove_dir_all(scratch.path().join("A")).unwrap();
    write(&scratch.path().join("A"), &[(tensor.clone(), bytes_of(&tensor))]);
    let error = digest_checkpoint(&checkpoint).unwrap_err();
    assert_eq!(error.code(), "changed-while-read");
}

/// Rows that end inside a block, longer than one read, with negative zeros in some.
#[test]
fn zeros_without_a_sign_have_a_digest_where_one_had_a_sign() {
    let signed = |size: usize, elements: usize| {
        let mut bytes = vec![1; size * elements];
        for element in [0, elements / 2, elements - 1] {
            bytes[element * size..][..size].fill(0);
            bytes[element * size + size - 1] = 0x80;
        }
        bytes
    };
    let specs = [
        (spec("bf16", Dtype::Bf16, &[3, 100_001]), signed(2, 300_003)),
        (spec("f32", Dtype::F32, &[5, 3]), signed(4, 15)),
        (spec("none", Dtype::F32, &[5, 3]), vec![1; 60]),
        // 0x80 in a type that has no sign, and in half a zero.
        (spec("bytes", Dtype::U8, &[8]), signed(1, 8)),
        (spec("halves", Dtype::F32, &[1]), vec![0, 0x80, 0, 0]),
    ];
    let scratch = Scratch::new();
    let checkpoint = write(&scratch.path().join("A"), &specs);
    let (_, digests) = digest_unsigned(&checkpoint).unwrap();
    assert_eq!(digests.keys().collect::<Vec<_>>(), ["bf16", "f32"]);
    for (spec, mut bytes) in specs.into_iter().take(2) {
        bytes.iter_mut().filter(|byte| **byte == 0x80).for_each(|byte| *byte = 0);
        let key = SourceKey::new(&spec.name, spec.dtype, &spec.shape).unwrap();
        assert_eq!(digests[&spec.name], digest_whole(&key, &bytes).unwrap());
    }
}
