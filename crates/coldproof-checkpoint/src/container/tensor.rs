//! A tensor by reference: where its bytes lie. What the engine protocol sends instead of bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use camino::Utf8PathBuf;
use coldproof_contract::words::Dtype;
use serde::{Deserialize, Serialize};

use crate::error::{CheckpointError, Fault};

/// A tensor of a checkpoint, by reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRef {
    /// Its name.
    pub name: String,
    /// The file that holds it.
    pub file: Utf8PathBuf,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its bytes, row-major, little-endian.
    pub bytes: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Elements along each axis.
    pub shape: Vec<u64>,
}

/// A tensor whose file is open.
#[derive(Debug)]
pub struct TensorReader<'a> {
    tensor: &'a TensorRef,
    file: File,
}

impl TensorRef {
    /// Number of elements.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.bytes / self.dtype.bytes()
    }

    /// Opens the file.
    ///
    /// # Errors
    /// A file that cannot be opened, or that ends before the tensor does.
    pub fn open(&self) -> Result<TensorReader<'_>, CheckpointError> {
        let file = File::open(&self.file)
            .map_err(|error| CheckpointError::io(&self.file, "open it", error))?;
        let found = file
            .metadata()
            .map_err(|error| CheckpointError::io(&self.file, "read its length", error))?
            .len();
        let expected = self.offset.saturating_add(self.bytes);
        if found < expected {
            return Err(self.fault(Fault::DataTruncated { found, expected }));
        }
        Ok(TensorReader { tensor: self, file })
    }

    /// All of its bytes.
    ///
    /// # Errors
    /// A file that cannot be read, or that ends before the tensor does.
    pub fn read(&self) -> Result<Vec<u8>, CheckpointError> {
        let reader = self.open()?;
        let length = usize::try_from(self.bytes)
            .map_err(|_| self.fault(Fault::ShapeOverflow { shape: self.shape.clone() }))?;
        let mut bytes = vec![0; length];
        reader.read_range(0, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn fault(&self, fault: Fault) -> CheckpointError {
        CheckpointError::tensor(&self.file, &self.name, fault)
    }
}

impl TensorReader<'_> {
    /// Fills `into` from the tensor's byte `start` on.
    ///
    /// # Errors
    /// A range beyond the tensor, or a file that cannot be read.
    pub fn read_range(&self, start: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        let TensorRef { bytes, offset, .. } = *self.tensor;
        let end = start.saturating_add(into.len() as u64);
        if end > bytes {
            return Err(self.tensor.fault(Fault::Range { start, end, bytes }));
        }
        // `open` found the file to be longer than offset + bytes, so the sum does not overflow.
        self.file.read_exact_at(into, offset + start).map_err(|error| {
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                self.tensor.fault(Fault::Changed { what: "its length" })
            } else {
                self.tensor.fault(Fault::Io { action: "read it", source: error })
            }
        })
    }
}
