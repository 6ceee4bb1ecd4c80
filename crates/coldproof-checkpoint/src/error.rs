//! What can be wrong with a checkpoint: the file, the tensor if it is one's, the fault, the mend.

use std::fmt;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_contract::digest::KeyError;
use coldproof_contract::words::Dtype;

use crate::arch::ConfigError;
use crate::json::JsonError;

/// How many names a message spells out.
const NAMES_SHOWN: usize = 3;

/// A fault of a checkpoint, where it is, and how to mend it.
#[derive(Debug)]
pub struct CheckpointError {
    /// The file or directory.
    pub file: Utf8PathBuf,
    /// The tensor, where the fault is one tensor's.
    pub tensor: Option<String>,
    /// The fault.
    pub fault: Box<Fault>,
}

/// A fault of a file or a tensor.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// There is no such directory.
    #[error("there is no such directory")]
    DirectoryMissing,
    /// A file stands where a directory should.
    #[error("it is not a directory")]
    NotADirectory,
    /// A name that is not UTF-8.
    #[error("it holds a file whose name is not UTF-8: {name}")]
    NameNotUtf8 {
        /// The name, as well as it can be shown.
        name: String,
    },
    /// Neither a single file nor an index.
    #[error("it has neither `model.safetensors` nor `model.safetensors.index.json`{}", also(found))]
    NoWeights {
        /// Other safetensors files in it.
        found: Vec<String>,
    },
    /// A single file and an index that does not name it.
    #[error("`model.safetensors` and `model.safetensors.index.json` both exist")]
    TwoLayouts,
    /// A shard that the index names is not there.
    #[error("the shard is missing; it holds {}", list(tensors))]
    ShardMissing {
        /// Tensors that the index places in it.
        tensors: Vec<String>,
    },
    /// A shard name that leads out of the directory.
    #[error("the index names the shard `{shard}`, which is no plain file name")]
    ShardName {
        /// The name.
        shard: String,
    },
    /// A safetensors file that is no part of the checkpoint.
    #[error("the file is no part of the checkpoint; it may be left from another one")]
    StaleFile,
    /// Something else than a regular file.
    #[error("it is not a regular file")]
    NotAFile,
    /// The index has another structure.
    #[error("the index has no `weight_map` of names to file names ({reason})")]
    IndexStructure {
        /// What is wrong.
        reason: String,
    },
    /// The index names no tensor.
    #[error("the index names no tensor")]
    IndexEmpty,
    /// The index places a tensor in a shard that does not hold it.
    #[error("the index places it in `{shard}`, which does not hold it{}", but_is_in(found_in))]
    NotInShard {
        /// The shard.
        shard: String,
        /// The shard that does hold it.
        found_in: Option<String>,
    },
    /// A shard holds a tensor that the index does not name.
    #[error("the shard holds it, but the index does not name it")]
    NotInIndex,
    /// Two shards hold one tensor.
    #[error("both `{first}` and `{second}` hold it")]
    KeyInTwoShards {
        /// One shard.
        first: String,
        /// The other shard.
        second: String,
    },
    /// Malformed JSON, or a key twice, in a header, an index or a configuration.
    #[error(transparent)]
    Json(JsonError),
    /// There is no such file.
    #[error("there is no such file")]
    FileMissing,
    /// A configuration that is wrong.
    #[error(transparent)]
    Config(ConfigError),
    /// The file ends within its header.
    #[error("truncated: it has {found} bytes where its header needs {needed}")]
    HeaderTruncated {
        /// Bytes of the file.
        found: u64,
        /// Bytes up to the header's end.
        needed: u64,
    },
    /// The header's length is absurd.
    #[error("its header would have {bytes} bytes; the format allows {max}")]
    HeaderTooLong {
        /// The stated length.
        bytes: u64,
        /// The format's limit.
        max: u64,
    },
    /// An index or a configuration of absurd length.
    #[error("it has {bytes} bytes; at most {max} are read")]
    FileTooLong {
        /// Bytes of the file.
        bytes: u64,
        /// The most that are read.
        max: u64,
    },
    /// The header has another structure.
    #[error("malformed header: {reason}")]
    HeaderStructure {
        /// What is wrong.
        reason: String,
    },
    /// The header names a dtype that is not known here.
    #[error("its dtype is `{found}`, which is not supported")]
    DtypeUnknown {
        /// The spelling.
        found: String,
    },
    /// The number of bytes exceeds 64 bits.
    #[error("its shape {shape:?} has more elements than any memory")]
    ShapeOverflow {
        /// The shape.
        shape: Vec<u64>,
    },
    /// Offsets end before they begin.
    #[error("its data ends at {end}, before it begins at {start}")]
    OffsetsReversed {
        /// First byte, from the beginning of the data.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Offsets that do not span what dtype and shape say.
    #[error("its data has {found} bytes where {dtype} of shape {shape:?} needs {expected}")]
    WrongLength {
        /// Bytes that the offsets span.
        found: u64,
        /// Bytes that dtype and shape need.
        expected: u64,
        /// Element type.
        dtype: Dtype,
        /// Elements along each axis.
        shape: Vec<u64>,
    },
    /// Two tensors share bytes.
    #[error("its data, from {start}, overlaps that of `{other}`, which ends at {other_end}")]
    Overlap {
        /// First byte of the tensor.
        start: u64,
        /// The tensor before.
        other: String,
        /// One past its last byte.
        other_end: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("{bytes} bytes before its data, which begins at {start}, belong to no tensor")]
    Gap {
        /// First byte of the tensor.
        start: u64,
        /// Bytes between.
        bytes: u64,
    },
    /// Offsets beyond the end of the file, in a layout with holes.
    #[error("its data ends at {end}, beyond the {data} bytes of data in the file")]
    OffsetsBeyondData {
        /// One past the tensor's last byte.
        end: u64,
        /// Bytes of data.
        data: u64,
    },
    /// The file ends within its data; the header is sound.
    #[error("truncated: it has {found} bytes where its header describes {expected}")]
    DataTruncated {
        /// Bytes of the file.
        found: u64,
        /// Bytes that header and data need.
        expected: u64,
    },
    /// Bytes after the last tensor.
    #[error("{bytes} bytes after the last tensor belong to none")]
    TrailingBytes {
        /// How many.
        bytes: u64,
    },
    /// The file is not the one whose header was read.
    #[error("it changed while it was read ({what})")]
    Changed {
        /// What differs: it is gone, device, inode, length, time of modification or of change.
        what: &'static str,
    },
    /// A range beyond the tensor.
    #[error("bytes {start}..{end} were asked of a tensor of {bytes} bytes")]
    Range {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes of the tensor.
        bytes: u64,
    },
    /// The output directory holds something.
    #[error("it exists and is not empty")]
    OutputNotEmpty,
    /// A dtype that cannot carry what was asked.
    #[error("its dtype {dtype} cannot {what}")]
    DtypeUnfit {
        /// Element type.
        dtype: Dtype,
        /// What it cannot do.
        what: &'static str,
    },
    /// Two checkpoints that must hold the same tensors do not.
    #[error("it is not the same tensor in both checkpoints ({what})")]
    PairDiffers {
        /// What differs.
        what: String,
    },
    /// The checkpoint holds no element at all.
    #[error("it holds no element")]
    NothingToChange,
    /// A tensor of an adapter that is no factor.
    #[error(
        "it is no factor of a LoRA adapter (`base_model.model.MODULE.lora_A.weight`, `lora_B`)"
    )]
    NoFactor,
    /// One factor of a module without the other.
    #[error("the other factor of its module is missing")]
    FactorAlone,
    /// A factor of another rank than its adapter's, or no matrix.
    #[error("its shape {shape:?} is not that of a factor of rank {rank}")]
    FactorShape {
        /// Elements along each axis.
        shape: Vec<u64>,
        /// `r` of the configuration.
        rank: u64,
    },
    /// More elements than identities.
    #[error("it has too many elements to give each an identity of its own")]
    TooManyElements,
}

impl CheckpointError {
    /// A fault of a file or directory.
    pub(crate) fn file(file: &Utf8Path, fault: Fault) -> Self {
        Self { file: file.to_owned(), tensor: None, fault: Box::new(fault) }
    }

    /// A fault of one tensor.
    pub(crate) fn tensor(file: &Utf8Path, tensor: &str, fault: Fault) -> Self {
        let tensor = Some(tensor.to_owned());
        Self { file: file.to_owned(), tensor, fault: Box::new(fault) }
    }

    /// The operating system refused something.
    pub(crate) fn io(file: &Utf8Path, action: &'static str, source: io::Error) -> Self {
        Self::file(file, Fault::Io { action, source })
    }

    /// A source that has no digest.
    pub(crate) fn key(file: &Utf8Path, error: KeyError) -> Self {
        Self::tensor(file, &error.source_name, Fault::ShapeOverflow { shape: error.shape })
    }

    /// What the fault is about: the tensor, if it has a name, else the file.
    #[must_use]
    pub fn object(&self) -> &str {
        let tensor = self.tensor.as_deref().filter(|tensor| !tensor.is_empty());
        tensor.unwrap_or(self.file.as_str())
    }

    /// The fault's name.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.fault.code()
    }

    /// What the reader can do about it.
    #[must_use]
    pub fn mend(&self) -> &'static str {
        self.fault.mend()
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.file)?;
        if let Some(tensor) = &self.tensor {
            write!(f, ", tensor `{tensor}`")?;
        }
        write!(f, ": {}; {}", self.fault, self.mend())
    }
}

impl std::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.fault.as_ref() {
            Fault::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Fault {
    /// A short stable name.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::DirectoryMissing => "directory-missing",
            Self::NotADirectory => "not-a-directory",
            Self::NameNotUtf8 { .. } => "name-not-utf8",
            Self::NoWeights { .. } => "no-weights",
            Self::TwoLayouts => "two-layouts",
            Self::ShardMissing { .. } => "shard-missing",
            Self::ShardName { .. } => "shard-name",
            Self::StaleFile => "stale-file",
            Self::NotAFile => "not-a-file",
            Self::IndexStructure { .. } => "index-structure",
            Self::IndexEmpty => "index-empty",
            Self::NotInShard { .. } => "not-in-shard",
            Self::NotInIndex => "not-in-index",
            Self::KeyInTwoShards { .. } => "key-in-two-shards",
            Self::Json(JsonError::Malformed { .. })
            | Self::Config(ConfigError::Json(JsonError::Malformed { .. })) => "malformed-json",
            Self::Json(JsonError::KeyTwice { .. })
            | Self::Config(ConfigError::Json(JsonError::KeyTwice { .. })) => "key-twice",
            Self::FileMissing => "file-missing",
            Self::Config(_) => "config",
            Self::HeaderTruncated { .. } => "header-truncated",
            Self::HeaderTooLong { .. } => "header-too-long",
            Self::FileTooLong { .. } => "file-too-long",
            Self::HeaderStructure { .. } => "header-structure",
            Self::DtypeUnknown { .. } => "dtype-unknown",
            Self::ShapeOverflow { .. } => "shape-overflow",
            Self::OffsetsReversed { .. } => "offsets-reversed",
            Self::WrongLength { .. } => "wrong-length",
            Self::Overlap { .. } => "overlap",
            Self::Gap { .. } => "gap",
            Self::OffsetsBeyondData { .. } => "offsets-beyond-data",
            Self::DataTruncated { .. } => "data-truncated",
            Self::TrailingBytes { .. } => "trailing-bytes",
            Self::Changed { .. } => "changed-while-read",
            Self::Range { .. } => "range",
            Self::OutputNotEmpty => "output-not-empty",
            Self::DtypeUnfit { .. } => "dtype-unfit",
            Self::PairDiffers { .. } => "pair-differs",
            Self::NothingToChange => "nothing-to-change",
            Self::TooManyElements => "too-many-elements",
            Self::NoFactor => "no-factor",
            Self::FactorAlone => "factor-alone",
            Self::FactorShape { .. } => "factor-shape",
        }
    }

    /// What the reader can do about it.
    #[must_use]
    pub const fn mend(&self) -> &'static str {
        match self {
            Self::Io { .. } => "check its permissions and the disk",
            Self::DirectoryMissing | Self::NotADirectory => {
                "give the directory of a Hugging Face checkpoint"
            }
            Self::NameNotUtf8 { .. } => "rename it",
            Self::NoWeights { .. } => "give a directory that holds one of them",
            Self::TwoLayouts => "remove the one that is out of date",
            Self::ShardMissing { .. } => "copy it again, or write the index anew",
            Self::ShardName { .. } => "name a file of the same directory",
            Self::StaleFile => "remove it, or add it to the index",
            Self::NotAFile => "put a regular file there",
            Self::IndexStructure { .. } | Self::IndexEmpty => "write the index anew",
            Self::NotInShard { .. } | Self::NotInIndex => {
                "write the index anew from the shards' headers"
            }
            Self::KeyInTwoShards { .. } => "remove one of the copies",
            Self::FileMissing => "copy it from the model",
            Self::FileTooLong { .. } => "put the model's own file there",
            Self::Config(error) => error.mend(),
            Self::HeaderTruncated { .. } | Self::DataTruncated { .. } => "copy the file again",
            Self::DtypeUnknown { .. } => {
                "convert it to one of BOOL, U8 to U64, I8 to I64, F8_E4M3, F8_E5M2, F8_E8M0, F16, \
                 BF16, F32, F64"
            }
            Self::Json(_)
            | Self::HeaderTooLong { .. }
            | Self::HeaderStructure { .. }
            | Self::ShapeOverflow { .. }
            | Self::OffsetsReversed { .. }
            | Self::WrongLength { .. }
            | Self::Overlap { .. }
            | Self::Gap { .. }
            | Self::OffsetsBeyondData { .. }
            | Self::TrailingBytes { .. } => "write the file again with a safetensors library",
            Self::Changed { .. } => "wait until its writer is done, then start again",
            Self::Range { .. } => "ask for a range inside it",
            Self::OutputNotEmpty => "name a new directory or empty it",
            Self::DtypeUnfit { .. } => "use a checkpoint of floats",
            Self::PairDiffers { .. } => "give two checkpoints of one model",
            Self::NothingToChange => "give a checkpoint with weights",
            Self::TooManyElements => "use a smaller model",
            Self::NoFactor | Self::FactorAlone | Self::FactorShape { .. } => {
                "save the adapter again with PEFT"
            }
        }
    }
}

fn list(names: &[String]) -> String {
    let shown: Vec<String> =
        names.iter().take(NAMES_SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn also(found: &[String]) -> String {
    if found.is_empty() { String::new() } else { format!("; it has {}", list(found)) }
}

fn but_is_in(shard: &Option<String>) -> String {
    shard.as_ref().map(|shard| format!("; `{shard}` does")).unwrap_or_default()
}
