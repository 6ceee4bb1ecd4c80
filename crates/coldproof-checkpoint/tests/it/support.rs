//! Directories and files for the tests.

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::{Checkpoint, TensorSpec, write_checkpoint};
use coldproof_contract::words::Dtype;
use tempfile::TempDir;

/// The fixtures: `testdata/checkpoints`.
pub(crate) fn fixtures() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/checkpoints")
}

/// All fixtures, as (family, directory).
pub(crate) fn all_fixtures() -> Vec<(&'static str, Utf8PathBuf)> {
    [
        "deepseek_v3",
        "deepseek_v3_mtp",
        "deepseek_v3_yarn",
        "gemma3",
        "gemma3_global",
        "gpt_oss",
        "llama",
        "llama_tied",
        "llava",
        "mamba2",
        "mixtral",
        "nemotron_h",
        "qwen2",
        "qwen3",
        "qwen3_moe",
    ]
    .into_iter()
    .flat_map(|family| ["A", "B"].map(|side| (family, fixtures().join(family).join(side))))
    .collect()
}

/// A new directory that goes away with the value.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        Utf8Path::from_path(self.0.path()).unwrap()
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> &Self {
        std::fs::write(self.path().join(name), bytes).unwrap();
        self
    }

    /// The fault of opening it: code, then message with paths relative to it.
    pub(crate) fn fault(&self) -> (&'static str, String) {
        let error = Checkpoint::open(self.path()).unwrap_err();
        (error.code(), self.relative(&error.to_string()))
    }

    pub(crate) fn relative(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.path()), "").replace(self.path().as_str(), ".")
    }
}

/// A file with this header and that many bytes of data.
pub(crate) fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

/// A tensor's entry in a header.
pub(crate) fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

pub(crate) fn spec(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

/// Deterministic bytes of a tensor.
pub(crate) fn bytes_of(spec: &TensorSpec) -> Vec<u8> {
    let count = spec.shape.iter().product::<u64>() * spec.dtype.bytes();
    (0..count).map(|i| (i.wrapping_mul(73) >> 2) as u8 ^ spec.name.len() as u8).collect()
}

/// Writes a checkpoint in one file and opens it.
pub(crate) fn write(at: &Utf8Path, tensors: &[(TensorSpec, Vec<u8>)]) -> Checkpoint {
    let specs = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    write_checkpoint(at, &coldproof_checkpoint::Layout::single(specs), |wanted| {
        Ok(tensors.iter().find(|(spec, _)| spec == wanted).unwrap().1.clone())
    })
    .unwrap();
    Checkpoint::open(at).unwrap()
}
