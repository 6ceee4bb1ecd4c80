//! What the writer writes: the reference crate's bytes, whole files, no leftovers.

use std::collections::BTreeMap;

use coldproof_checkpoint::{Checkpoint, Layout, TensorSpec, write_checkpoint};
use coldproof_contract::words::Dtype;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::support::{Scratch, bytes_of, fixtures, spec, write};

fn specs() -> Vec<TensorSpec> {
    vec![
        spec("z.weight", Dtype::F32, &[3, 5]),
        spec("größe \"quoted\"", Dtype::Bf16, &[7]),
        spec("a.weight", Dtype::Bf16, &[2, 3]),
        spec("scalar", Dtype::F64, &[]),
        spec("empty", Dtype::U8, &[0, 4]),
    ]
}

#[test]
fn one_file_has_the_reference_crates_bytes() {
    let scratch = Scratch::new();
    let tensors: Vec<_> = specs().into_iter().map(|s| (s.clone(), bytes_of(&s))).collect();
    let checkpoint = write(&scratch.path().join("out"), &tensors);
    let views: BTreeMap<String, TensorView<'_>> = tensors
        .iter()
        .map(|(spec, bytes)| {
            let dtype = serde_json::from_value(spec.dtype.name().into()).unwrap();
            let shape = spec.shape.iter().map(|&extent| extent as usize).collect();
            (spec.name.clone(), TensorView::new(dtype, shape, bytes).unwrap())
        })
        .collect();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let theirs = safetensors::serialize(&views, Some(metadata)).unwrap();
    let path = checkpoint.directory().join("model.safetensors");
    assert_eq!(std::fs::read(path).unwrap(), theirs);
}

#[test]
fn a_fixture_written_again_is_the_same_file() {
    let original = Checkpoint::open(&fixtures().join("qwen3_moe/B")).unwrap();
    let scratch = Scratch::new();
    let out = scratch.path().join("out");
    write_checkpoint(&out, &Layout::like(&original), |spec| {
        original.get(&spec.name).unwrap().read()
    })
    .unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    assert_eq!(copy.files().len(), 4);
    for name in copy.files().keys() {
        let bytes = |at: &Checkpoint| std::fs::read(at.directory().join(name)).unwrap();
        assert_eq!(bytes(&original), bytes(&copy), "{name}");
    }
    let mut names: Vec<_> =
        std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn shards_hold_at_most_their_bytes_unless_one_tensor_has_more() {
    let scratch = Scratch::new();
    let out = scratch.path().join("out");
    write_checkpoint(&out, &Layout::sharded(specs(), 30), |spec| Ok(bytes_of(spec))).unwrap();
    let checkpoint = Checkpoint::open(&out).unwrap();
    let shard = |name: &str| checkpoint.get(name).unwrap().file.file_name().unwrap().to_owned();
    assert_eq!(checkpoint.files().len(), 3);
    assert_eq!(shard("a.weight"), "model-00001-of-00003.safetensors");
    assert_eq!(shard("größe \"quoted\""), "model-00001-of-00003.safetensors");
    assert_eq!(shard("scalar"), "model-00002-of-00003.safetensors");
    assert_eq!(shard("z.weight"), "model-00003-of-00003.safetensors");
    for spec in specs() {
        assert_eq!(checkpoint.get(&spec.name).unwrap().read().unwrap(), bytes_of(&spec));
    }
    for name in checkpoint.files().keys() {
        SafeTensors::deserialize(&std::fs::read(out.join(name)).unwrap()).unwrap();
    }
}

#[test]
fn a_directory_that_holds_something_is_refused() {
    let scratch = Scratch::new();
    scratch.put("precious", b"");
    let layout = Layout::single(specs());
    let error = write_checkpoint(scratch.path(), &layout, |s| Ok(bytes_of(s))).unwrap_err();
    assert_eq!(
        scratch.relative(&error.to_string()),
        "`.`: it exists and is not empty; name a new directory or empty it"
    );
}

#[test]
fn data_of_a_wrong_length_leaves_no_file() {
    let scratch = Scratch::new();
    let out = scratch.path().join("out");
    let error = write_checkpoint(&out, &Layout::single(specs()), |spec| {
        let mut bytes = bytes_of(spec);
        bytes.truncate(3);
        Ok(bytes)
    })
    .unwrap_err();
    assert_eq!((error.code(), error.object()), ("wrong-length", "scalar"));
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
}
