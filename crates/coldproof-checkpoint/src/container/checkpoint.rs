//! A checkpoint in a directory: its headers, read and reconciled with its index.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

use camino::{Utf8Path, Utf8PathBuf};

use crate::error::{CheckpointError, Fault};

use super::header::{self, Entry, HEADER_MAX, LENGTH_BYTES};
use super::identity::FileIdentity;
use super::index::{self, INDEX_NAME, WeightMap};
use super::tensor::TensorRef;

/// File name of a checkpoint in one file.
pub(super) const SINGLE_NAME: &str = "model.safetensors";
/// File name of an adapter's weights.
pub(crate) const ADAPTER_NAME: &str = "adapter_model.safetensors";
/// File name of the model's configuration.
pub(crate) const CONFIG_NAME: &str = "config.json";
/// File name of the configuration of a draft model whose weights lie among the model's own.
pub(crate) const DRAFT_CONFIG_NAME: &str = "draft_config.json";
/// File names of what says how images are prepared, the usual one first.
pub(crate) const PROCESSOR_NAMES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

/// A checkpoint whose headers were read and found sound. Its data was not read.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    directory: Utf8PathBuf,
    /// By file name.
    files: BTreeMap<String, FileIdentity>,
    index: Option<FileIdentity>,
    /// The configurations beside the weights, which say what they mean.
    config: Vec<(&'static str, FileIdentity)>,
    tensors: BTreeMap<String, TensorRef>,
}

impl Checkpoint {
    /// Reads and checks the headers of the checkpoint in a directory: `model.safetensors`, or the
    /// shards that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// The first fault, in the order directory, index, shards by name, tensors.
    pub fn open(directory: &Utf8Path) -> Result<Self, CheckpointError> {
        let present = list(directory)?;
        // Its content is not read here: a checkpoint without one, or with another, opens.
        let names = [CONFIG_NAME, DRAFT_CONFIG_NAME].into_iter().chain(PROCESSOR_NAMES);
        let there = |name| Some((name, std::fs::metadata(directory.join(name)).ok()?));
        let config = names.filter_map(there);
        let config = config.map(|(name, metadata)| (name, FileIdentity::of(&metadata))).collect();
        let index_path = directory.join(INDEX_NAME);
        let indexed = present.contains(INDEX_NAME);
        let weights: BTreeSet<&str> = present
            .iter()
            .map(String::as_str)
            .filter(|name| name.ends_with(".safetensors"))
            .collect();
        let (index, map) = if indexed {
            let (text, identity) = read_small(&index_path)?;
            let map =
                index::parse(&text).map_err(|fault| CheckpointError::file(&index_path, fault))?;
            (Some(identity), Some(map))
        } else {
            (None, None)
        };
        let shards = shards(directory, map.as_ref(), &weights)?;
        let mut files = BTreeMap::new();
        let mut tensors: BTreeMap<String, TensorRef> = BTreeMap::new();
        for shard in shards {
            let path = directory.join(&shard);
            let (identity, entries) = read_header(&path)?;
            files.insert(shard, identity);
            for tensor in entries {
                if let Some(other) = tensors.get(&tensor.name) {
                    return Err(in_two_shards(&index_path, other, &tensor));
                }
                tensors.insert(tensor.name.clone(), tensor);
            }
        }
        if let Some(map) = &map {
            reconcile(directory, &index_path, map, &tensors)?;
        }
        Ok(Self { directory: directory.to_owned(), files, index, config, tensors })
    }

    /// Reads and checks the header of the adapter in a directory: `adapter_model.safetensors`.
    ///
    /// # Errors
    /// The first fault.
    pub(crate) fn open_adapter(directory: &Utf8Path) -> Result<Self, CheckpointError> {
        let (identity, entries) = read_header(&directory.join(ADAPTER_NAME))?;
        let tensors = entries.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let files = BTreeMap::from([(ADAPTER_NAME.to_owned(), identity)]);
        Ok(Self {
            directory: directory.to_owned(),
            files,
            index: None,
            config: Vec::new(),
            tensors,
        })
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Utf8Path {
        &self.directory
    }

    /// All tensors, by name.
    #[must_use]
    pub const fn tensors(&self) -> &BTreeMap<String, TensorRef> {
        &self.tensors
    }

    /// One tensor.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TensorRef> {
        self.tensors.get(name)
    }

    /// File names, sorted, with what they were when their headers were read.
    #[must_use]
    pub const fn files(&self) -> &BTreeMap<String, FileIdentity> {
        &self.files
    }

    /// Whether an index names the files.
    #[must_use]
    pub const fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// All tensors in the order of files and of the data in them: the fastest order to read.
    #[must_use]
    pub fn in_file_order(&self) -> Vec<&TensorRef> {
        let mut tensors: Vec<&TensorRef> = self.tensors.values().collect();
        tensors.sort_by(|a, b| (&a.file, a.offset, &a.name).cmp(&(&b.file, b.offset, &b.name)));
        tensors
    }

    /// Whether the files, and the configurations that lay beside them, are still those that were
    /// there when it was opened (device, inode, length, times of modification and of change). To be
    /// asked after the last read: bytes of a changed file prove nothing. A hard link made meanwhile
    /// counts as a change.
    ///
    /// # Errors
    /// The first file that changed.
    pub fn verify_unchanged(&self) -> Result<(), CheckpointError> {
        let index = self.index.iter().map(|identity| (INDEX_NAME, identity));
        let shards = self.files.iter().map(|(name, identity)| (name.as_str(), identity));
        let config = self.config.iter().map(|(name, identity)| (*name, identity));
        for (name, identity) in config.chain(index).chain(shards) {
            identity.verify(&self.directory.join(name))?;
        }
        Ok(())
    }
}

/// The names in a directory.
fn list(directory: &Utf8Path) -> Result<BTreeSet<String>, CheckpointError> {
    let metadata = std::fs::metadata(directory).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CheckpointError::file(directory, Fault::DirectoryMissing),
        _ => CheckpointError::io(directory, "look at it", error),
    })?;
    if !metadata.is_dir() {
        return Err(CheckpointError::file(directory, Fault::NotADirectory));
    }
    let refused = |error| CheckpointError::io(directory, "list it", error);
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(refused)? {
        let name = entry.map_err(refused)?.file_name();
        match name.into_string() {
            Ok(name) => {
                names.insert(name);
            }
            Err(name) => {
                let name = name.to_string_lossy().into_owned();
                return Err(CheckpointError::file(directory, Fault::NameNotUtf8 { name }));
            }
        }
    }
    Ok(names)
}

/// Which files make up the checkpoint; every other safetensors file is a fault.
fn shards(
    directory: &Utf8Path,
    map: Option<&WeightMap>,
    weights: &BTreeSet<&str>,
) -> Result<BTreeSet<String>, CheckpointError> {
    let shards: BTreeSet<String> = match map {
        Some(map) => map.values().cloned().collect(),
        None if weights.contains(SINGLE_NAME) => BTreeSet::from([SINGLE_NAME.to_owned()]),
        None => {
            let found = weights.iter().map(|&name| name.to_owned()).collect();
            return Err(CheckpointError::file(directory, Fault::NoWeights { found }));
        }
    };
    if let Some(map) = map {
        for shard in &shards {
            if !directory.join(shard).exists() {
                let inside = map.iter().filter(|(_, file)| *file == shard);
                let tensors = inside.map(|(tensor, _)| tensor.clone()).collect();
                let path = directory.join(shard);
                return Err(CheckpointError::file(&path, Fault::ShardMissing { tensors }));
            }
        }
    }
    if let Some(stale) = weights.iter().find(|&&name| !shards.contains(name)) {
        if *stale == SINGLE_NAME {
            return Err(CheckpointError::file(directory, Fault::TwoLayouts));
        }
        return Err(CheckpointError::file(&directory.join(stale), Fault::StaleFile));
    }
    Ok(shards)
}

/// Opens a regular file; anything else could block or never end.
fn open_regular(path: &Utf8Path) -> Result<(File, FileIdentity), CheckpointError> {
    let refused = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => CheckpointError::file(path, Fault::FileMissing),
        _ => CheckpointError::io(path, "open it", error),
    };
    if !std::fs::metadata(path).map_err(refused)?.is_file() {
        return Err(CheckpointError::file(path, Fault::NotAFile));
    }
    let file = File::open(path).map_err(refused)?;
    let identity = FileIdentity::of(&file.metadata().map_err(refused)?);
    Ok((file, identity))
}

/// Reads a JSON file beside the weights, of at most as many bytes as a header.
pub(crate) fn read_small(path: &Utf8Path) -> Result<(Vec<u8>, FileIdentity), CheckpointError> {
    let (file, identity) = open_regular(path)?;
    let bytes = identity.bytes();
    if bytes > HEADER_MAX {
        let fault = Fault::FileTooLong { bytes, max: HEADER_MAX };
        return Err(CheckpointError::file(path, fault));
    }
    // At most `HEADER_MAX`.
    let mut text = vec![0; bytes as usize];
    read_exact(path, &file, 0, &mut text)?;
    Ok((text, identity))
}

fn read_exact(
    path: &Utf8Path,
    file: &File,
    at: u64,
    into: &mut [u8],
) -> Result<(), CheckpointError> {
    file.read_exact_at(into, at).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            CheckpointError::file(path, Fault::Changed { what: "its length" })
        }
        _ => CheckpointError::io(path, "read it", error),
    })
}

/// Reads and checks one file's header. Tensors come in the order of their data.
fn read_header(path: &Utf8Path) -> Result<(FileIdentity, Vec<TensorRef>), CheckpointError> {
    let (file, identity) = open_regular(path)?;
    let found = identity.bytes();
    let truncated = |needed| CheckpointError::file(path, Fault::HeaderTruncated { found, needed });
    if found < LENGTH_BYTES {
        return Err(truncated(LENGTH_BYTES));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    read_exact(path, &file, 0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_MAX {
        let fault = Fault::HeaderTooLong { bytes: length, max: HEADER_MAX };
        return Err(CheckpointError::file(path, fault));
    }
    let data_start = LENGTH_BYTES + length;
    if found < data_start {
        return Err(truncated(data_start));
    }
    // At most `HEADER_MAX`, and the file is as long.
    let mut json = vec![0; length as usize];
    read_exact(path, &file, LENGTH_BYTES, &mut json)?;
    let entries = header::parse(&json, found - data_start).map_err(|(tensor, fault)| {
        let fault = match fault {
            Fault::DataTruncated { expected, .. } => {
                Fault::DataTruncated { found, expected: expected.saturating_add(data_start) }
            }
            other => other,
        };
        CheckpointError { file: path.to_owned(), tensor, fault: Box::new(fault) }
    })?;
    let tensor = |entry: Entry| TensorRef {
        file: path.to_owned(),
        // The layout was checked: both ends lie within the file.
        offset: data_start + entry.start,
        bytes: entry.end - entry.start,
        name: entry.name,
        dtype: entry.dtype,
        shape: entry.shape,
    };
    Ok((identity, entries.into_iter().map(tensor).collect()))
}

fn in_two_shards(index: &Utf8Path, first: &TensorRef, second: &TensorRef) -> CheckpointError {
    let fault = Fault::KeyInTwoShards { first: file_name(first), second: file_name(second) };
    CheckpointError::tensor(index, &second.name, fault)
}

fn file_name(tensor: &TensorRef) -> String {
    tensor.file.file_name().unwrap_or_default().to_owned()
}

/// The index and the headers must say the same of every tensor.
fn reconcile(
    directory: &Utf8Path,
    index_path: &Utf8Path,
    map: &WeightMap,
    tensors: &BTreeMap<String, TensorRef>,
) -> Result<(), CheckpointError> {
    for (name, shard) in map {
        let found_in = tensors.get(name).map(file_name);
        if found_in.as_ref() != Some(shard) {
            let fault = Fault::NotInShard { shard: shard.clone(), found_in };
            return Err(CheckpointError::tensor(index_path, name, fault));
        }
    }
    for tensor in tensors.values() {
        if !map.contains_key(&tensor.name) {
            let path = directory.join(file_name(tensor));
            return Err(CheckpointError::tensor(&path, &tensor.name, Fault::NotInIndex));
        }
    }
    Ok(())
}
