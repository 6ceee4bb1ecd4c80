//! Writes checkpoints: deterministic bytes, each file complete under its name or not there at all.
//!
//! Tensors lie in a file as the format's own crate lays them: largest element first, then by name;
//! the header is padded with spaces so that data begins at a multiple of 8.

use std::fs::File;
use std::io::{BufWriter, Write};

use camino::Utf8Path;
use coldproof_contract::words::Dtype;
use serde_json::{Map, Value, json};

use crate::error::{CheckpointError, Fault};

use super::checkpoint::{ADAPTER_NAME, Checkpoint, SINGLE_NAME};
use super::header::bytes_of;
use super::index::INDEX_NAME;
use super::tensor::TensorRef;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Elements along each axis.
    pub shape: Vec<u64>,
}

impl From<&TensorRef> for TensorSpec {
    fn from(tensor: &TensorRef) -> Self {
        Self { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone() }
    }
}

/// Which tensors lie in which file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// File names with their tensors, in the order they are written.
    files: Vec<(String, Vec<TensorSpec>)>,
    indexed: bool,
}

impl Layout {
    /// One file without an index.
    #[must_use]
    pub fn single(tensors: Vec<TensorSpec>) -> Self {
        Self { files: vec![(SINGLE_NAME.to_owned(), ordered(tensors))], indexed: false }
    }

    /// The weights of an adapter.
    pub(crate) fn adapter(tensors: Vec<TensorSpec>) -> Self {
        Self { files: vec![(ADAPTER_NAME.to_owned(), ordered(tensors))], indexed: false }
    }

    /// Shards of at most `bytes` of data each (more where one tensor has more), filled by name.
    #[must_use]
    pub fn sharded(mut tensors: Vec<TensorSpec>, bytes: u64) -> Self {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let mut shards: Vec<Vec<TensorSpec>> = Vec::new();
        let mut used = 0_u64;
        for tensor in tensors {
            let own = bytes_of(tensor.dtype, &tensor.shape).unwrap_or(u64::MAX);
            match shards.last_mut() {
                Some(shard) if used.saturating_add(own) <= bytes => {
                    used = used.saturating_add(own);
                    shard.push(tensor);
                }
                _ => {
                    used = own;
                    shards.push(vec![tensor]);
                }
            }
        }
        let count = shards.len();
        let name = |at: usize| format!("model-{:05}-of-{count:05}.safetensors", at + 1);
        let files =
            shards.into_iter().enumerate().map(|(at, shard)| (name(at), ordered(shard))).collect();
        Self { files, indexed: true }
    }

    /// The same files with the same tensors as another checkpoint.
    #[must_use]
    pub fn like(checkpoint: &Checkpoint) -> Self {
        let file = |name: &String| {
            let path = checkpoint.directory().join(name);
            let inside = checkpoint.tensors().values().filter(|tensor| tensor.file == path);
            (name.clone(), ordered(inside.map(TensorSpec::from).collect()))
        };
        Self {
            files: checkpoint.files().keys().map(file).collect(),
            indexed: checkpoint.is_indexed(),
        }
    }

    fn tensors(&self) -> impl Iterator<Item = (&str, &TensorSpec)> {
        self.files.iter().flat_map(|(file, tensors)| tensors.iter().map(|t| (file.as_str(), t)))
    }
}

/// The order of data in a file.
fn ordered(mut tensors: Vec<TensorSpec>) -> Vec<TensorSpec> {
    tensors.sort_by(|a, b| {
        (std::cmp::Reverse(a.dtype.bytes()), &a.name)
            .cmp(&(std::cmp::Reverse(b.dtype.bytes()), &b.name))
    });
    tensors
}

/// Writes a checkpoint's weights into a directory, which must not exist or be empty. `data` gives
/// each tensor's bytes, once, in the order of the layout; the index comes last.
///
/// # Errors
/// A directory that holds something, a file that cannot be written, data of a wrong length, or what
/// `data` fails with.
pub fn write_checkpoint(
    directory: &Utf8Path,
    layout: &Layout,
    mut data: impl FnMut(&TensorSpec) -> Result<Vec<u8>, CheckpointError>,
) -> Result<(), CheckpointError> {
    prepare(directory)?;
    for (name, tensors) in &layout.files {
        let path = directory.join(name);
        let header = header(&path, tensors)?;
        write_whole(&path, |out| {
            out.write_all(&header)
                .map_err(|error| CheckpointError::io(&path, "write it", error))?;
            for tensor in tensors {
                let bytes = data(tensor)?;
                expect_length(&path, tensor, &bytes)?;
                out.write_all(&bytes)
                    .map_err(|error| CheckpointError::io(&path, "write it", error))?;
            }
            Ok(())
        })?;
    }
    if layout.indexed {
        let path = directory.join(INDEX_NAME);
        let text = index(layout);
        write_whole(&path, |out| {
            out.write_all(&text).map_err(|error| CheckpointError::io(&path, "write it", error))
        })?;
    }
    sync_directory(directory)
}

/// Makes the directory; refuses one that holds something.
pub(crate) fn prepare(directory: &Utf8Path) -> Result<(), CheckpointError> {
    std::fs::create_dir_all(directory)
        .map_err(|error| CheckpointError::io(directory, "make the directory", error))?;
    let mut entries = std::fs::read_dir(directory)
        .map_err(|error| CheckpointError::io(directory, "list it", error))?;
    if entries.next().is_some() {
        return Err(CheckpointError::file(directory, Fault::OutputNotEmpty));
    }
    Ok(())
}

/// Writes a file under another name, makes it durable, then gives it its name.
pub(crate) fn write_whole(
    path: &Utf8Path,
    write: impl FnOnce(&mut BufWriter<&mut File>) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let refused = |error| CheckpointError::io(path, "write it", error);
    let directory = path.parent().unwrap_or(Utf8Path::new("."));
    let prefix = format!(".{}.", path.file_name().unwrap_or_default());
    let mut temporary = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".partial")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(directory)
        .map_err(refused)?;
    let mut out = BufWriter::new(temporary.as_file_mut());
    write(&mut out)?;
    out.flush().map_err(refused)?;
    drop(out);
    temporary.as_file().sync_all().map_err(refused)?;
    temporary.persist(path).map_err(|error| refused(error.error))?;
    Ok(())
}

/// Makes the names of a directory durable.
pub(crate) fn sync_directory(directory: &Utf8Path) -> Result<(), CheckpointError> {
    File::open(directory)
        .and_then(|file| file.sync_all())
        .map_err(|error| CheckpointError::io(directory, "make it durable", error))
}

/// Length and JSON of a file's header, padded.
fn header(path: &Utf8Path, tensors: &[TensorSpec]) -> Result<Vec<u8>, CheckpointError> {
    // Written by hand: JSON objects of the parser are sorted, and this order is the data's.
    let mut text = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0_u64;
    for tensor in tensors {
        let TensorSpec { name, dtype, shape } = tensor;
        let end =
            bytes_of(*dtype, shape).and_then(|bytes| at.checked_add(bytes)).ok_or_else(|| {
                let fault = Fault::ShapeOverflow { shape: shape.clone() };
                CheckpointError::tensor(path, name, fault)
            })?;
        let entry = format!(
            ",{}:{{\"dtype\":\"{dtype}\",\"shape\":{},\"data_offsets\":[{at},{end}]}}",
            Value::from(name.as_str()),
            Value::from(shape.as_slice())
        );
        text.push_str(&entry);
        at = end;
    }
    text.push('}');
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    Ok(bytes)
}

fn expect_length(
    path: &Utf8Path,
    tensor: &TensorSpec,
    bytes: &[u8],
) -> Result<(), CheckpointError> {
    let TensorSpec { name, dtype, shape } = tensor;
    let found = bytes.len() as u64;
    match bytes_of(*dtype, shape) {
        Some(expected) if found == expected => Ok(()),
        Some(expected) => {
            let (dtype, shape) = (*dtype, shape.clone());
            let fault = Fault::WrongLength { found, expected, dtype, shape };
            Err(CheckpointError::tensor(path, name, fault))
        }
        None => {
            let fault = Fault::ShapeOverflow { shape: shape.clone() };
            Err(CheckpointError::tensor(path, name, fault))
        }
    }
}

/// The text of an index, as transformers writes it.
fn index(layout: &Layout) -> Vec<u8> {
    let bytes = |tensor: &TensorSpec| bytes_of(tensor.dtype, &tensor.shape).unwrap_or(0);
    let total = layout.tensors().fold(0_u64, |total, (_, t)| total.saturating_add(bytes(t)));
    let map: Map<String, Value> =
        layout.tensors().map(|(file, tensor)| (tensor.name.clone(), json!(file))).collect();
    let document = json!({ "metadata": { "total_size": total }, "weight_map": map });
    format!("{document:#}\n").into_bytes()
}
