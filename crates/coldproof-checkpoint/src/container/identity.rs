//! Whether a file is still the one whose header was read.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use camino::Utf8Path;

use crate::error::{CheckpointError, Fault};

/// What a rewrite of a file changes: at least one of these.
///
/// The time of change cannot be set back, as that of modification can. It also moves with a hard
/// link, a mode or an owner: a file that gets one meanwhile counts as changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Seconds and nanoseconds, of content or attributes.
    changed: (i64, i64),
}

impl FileIdentity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Bytes of the file.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Whether the path still leads to this file, unchanged.
    pub(super) fn verify(self, path: &Utf8Path) -> Result<(), CheckpointError> {
        let what = match std::fs::metadata(path) {
            Err(_) => "it is gone",
            Ok(metadata) => {
                let now = Self::of(&metadata);
                if now == self {
                    return Ok(());
                }
                if now.bytes != self.bytes {
                    "its length"
                } else if (now.device, now.inode) != (self.device, self.inode) {
                    "another file took its place"
                } else if now.modified != self.modified {
                    "its time of modification"
                } else {
                    "its time of change: it was rewritten, linked, or got another mode or owner"
                }
            }
        };
        Err(CheckpointError::file(path, Fault::Changed { what }))
    }
}
