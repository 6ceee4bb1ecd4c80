//! Digests of a checkpoint: each source's, and one of all (R61).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use coldproof_contract::digest::{SourceDigest, SourceKey, checkpoint_digest, digest_range};
use coldproof_contract::words::Hex128;

use crate::container::{Checkpoint, TensorRef};
use crate::error::CheckpointError;

/// Threads that read and digest.
const THREADS: usize = 2;
/// Bytes that one thread takes at a time.
const RANGE_BYTES: u64 = 16 << 20;
/// Bytes of one read: they stay in the core's own cache until they are digested.
const READ_BYTES: usize = 256 << 10;

/// The digests of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointDigest {
    /// BLAKE3 over all sources' digests, as 64 hexadecimal digits.
    pub digest: String,
    /// Each source's, by name.
    pub sources: BTreeMap<String, SourceDigest>,
}

/// A range of one source's blocks.
struct Range<'a> {
    source: usize,
    tensor: &'a TensorRef,
    start: u64,
    end: u64,
}

/// Digests every source of a checkpoint, streamed: memory does not grow with its size.
///
/// # Errors
/// A file that cannot be read, or that changed meanwhile.
pub fn digest_checkpoint(checkpoint: &Checkpoint) -> Result<CheckpointDigest, CheckpointError> {
    let tensors = checkpoint.in_file_order();
    let keys = tensors.iter().map(|tensor| key(tensor)).collect::<Result<Vec<_>, _>>()?;
    let mut ranges = Vec::new();
    for (source, (tensor, key)) in tensors.iter().zip(&keys).enumerate() {
        let mut start = 0;
        while start < tensor.bytes {
            // A row has a block at its start, so every range is longer than nothing.
            let end = key.block_start(start.saturating_add(RANGE_BYTES));
            ranges.push(Range { source, tensor, start, end });
            start = end;
        }
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, u128)>, CheckpointError> {
        let mut buffer = vec![0; READ_BYTES];
        let mut sums = Vec::new();
        while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
            sums.push((range.source, sum(range, &keys[range.source], &mut buffer)?));
        }
        Ok(sums)
    };
    let parts: Vec<Result<Vec<(usize, u128)>, CheckpointError>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS).map(|_| scope.spawn(work)).collect();
        let own = work();
        let joined = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(joined).collect()
    });
    let mut totals = vec![0_u128; tensors.len()];
    for part in parts {
        for (source, sum) in part? {
            totals[source] = totals[source].wrapping_add(sum);
        }
    }
    checkpoint.verify_unchanged()?;
    let source = |(tensor, total): (&&TensorRef, &u128)| {
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        (tensor.name.clone(), SourceDigest { dtype, shape, digest: Hex128(*total) })
    };
    let sources = tensors.iter().zip(&totals).map(source).collect();
    Ok(CheckpointDigest { digest: checkpoint_digest(&sources), sources })
}

fn key(tensor: &TensorRef) -> Result<SourceKey, CheckpointError> {
    SourceKey::new(&tensor.name, tensor.dtype, &tensor.shape)
        .map_err(|error| CheckpointError::key(&tensor.file, error))
}

fn sum(range: &Range<'_>, key: &SourceKey, buffer: &mut [u8]) -> Result<u128, CheckpointError> {
    let reader = range.tensor.open()?;
    let mut total = 0_u128;
    let mut start = range.start;
    while start < range.end {
        let end = key.block_start(start.saturating_add(READ_BYTES as u64)).min(range.end);
        // At most the buffer's length, since a block start is never beyond what was asked for.
        let bytes = &mut buffer[..(end - start) as usize];
        reader.read_range(start, bytes)?;
        let sum = digest_range(key, start, bytes).map_err(|error| {
            // Both ends are block starts of this key.
            CheckpointError::io(&range.tensor.file, "digest it", std::io::Error::other(error))
        })?;
        total = total.wrapping_add(sum.0);
        start = end;
    }
    Ok(total)
}
