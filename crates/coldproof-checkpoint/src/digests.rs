//! Digests of a checkpoint: each source's, and one of all (R61).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use coldproof_contract::digest::{SourceDigest, SourceKey, checkpoint_digest, digest_range};
use coldproof_contract::words::Hex128;

use crate::container::{Checkpoint, TensorRef};
use crate::error::CheckpointError;
use crate::zeros::{made_positive, negative_zero};

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

/// What was summed up of a source, or of a range of it.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    digest: u128,
    /// As if all zeros were positive, where that was asked for.
    unsigned: u128,
    negative_zero: bool,
}

impl Sum {
    const fn add(&mut self, other: Self) {
        self.digest = self.digest.wrapping_add(other.digest);
        self.unsigned = self.unsigned.wrapping_add(other.unsigned);
        self.negative_zero |= other.negative_zero;
    }
}

/// Digests every source of a checkpoint, streamed: memory does not grow with its size.
///
/// # Errors
/// A file that cannot be read, or that changed meanwhile.
pub fn digest_checkpoint(checkpoint: &Checkpoint) -> Result<CheckpointDigest, CheckpointError> {
    Ok(digests(checkpoint, false)?.0)
}

/// As [`digest_checkpoint`], and the digest that each source with a negative zero would have if all
/// its zeros were positive, by name.
///
/// # Errors
/// As [`digest_checkpoint`].
pub fn digest_unsigned(
    checkpoint: &Checkpoint,
) -> Result<(CheckpointDigest, BTreeMap<String, Hex128>), CheckpointError> {
    digests(checkpoint, true)
}

fn digests(
    checkpoint: &Checkpoint,
    unsigned: bool,
) -> Result<(CheckpointDigest, BTreeMap<String, Hex128>), CheckpointError> {
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
    let work = || -> Result<Vec<(usize, Sum)>, CheckpointError> {
        let mut buffer = vec![0; READ_BYTES];
        let mut sums = Vec::new();
        while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
            let zero = negative_zero(range.tensor.dtype).filter(|_| unsigned);
            sums.push((range.source, sum(range, &keys[range.source], zero, &mut buffer)?));
        }
        Ok(sums)
    };
    let parts: Vec<Result<Vec<(usize, Sum)>, CheckpointError>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS).map(|_| scope.spawn(work)).collect();
        let own = work();
        let joined = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(joined).collect()
    });
    let mut totals = vec![Sum::default(); tensors.len()];
    for part in parts {
        for (source, sum) in part? {
            totals[source].add(sum);
        }
    }
    checkpoint.verify_unchanged()?;
    let source = |(tensor, total): (&&TensorRef, &Sum)| {
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        (tensor.name.clone(), SourceDigest { dtype, shape, digest: Hex128(total.digest) })
    };
    let sources = tensors.iter().zip(&totals).map(source).collect();
    let negative = tensors.iter().zip(&totals).filter(|(_, total)| total.negative_zero);
    let unsigned = negative.map(|(tensor, total)| (tensor.name.clone(), Hex128(total.unsigned)));
    Ok((CheckpointDigest { digest: checkpoint_digest(&sources), sources }, unsigned.collect()))
}

fn key(tensor: &TensorRef) -> Result<SourceKey, CheckpointError> {
    SourceKey::new(&tensor.name, tensor.dtype, &tensor.shape)
        .map_err(|error| CheckpointError::key(&tensor.file, error))
}

/// Sums up a range. Where the bytes of a negative zero are given, also as if it were positive.
fn sum(
    range: &Range<'_>,
    key: &SourceKey,
    zero: Option<&[u8]>,
    buffer: &mut [u8],
) -> Result<Sum, CheckpointError> {
    let reader = range.tensor.open()?;
    let digest = |start: u64, bytes: &[u8]| {
        let sum = digest_range(key, start, bytes).map_err(|error| {
            // Both ends are block starts of this key.
            CheckpointError::io(&range.tensor.file, "digest it", std::io::Error::other(error))
        })?;
        Ok::<u128, CheckpointError>(sum.0)
    };
    let mut total = Sum::default();
    let mut start = range.start;
    while start < range.end {
        let end = key.block_start(start.saturating_add(READ_BYTES as u64)).min(range.end);
        // At most the buffer's length, since a block start is never beyond what was asked for.
        let bytes = &mut buffer[..(end - start) as usize];
        reader.read_range(start, bytes)?;
        let own = digest(start, bytes)?;
        // A block begins and ends between elements.
        let negative_zero = zero.is_some_and(|zero| made_positive(bytes, zero));
        let unsigned = if negative_zero { digest(start, bytes)? } else { own };
        total.add(Sum { digest: own, unsigned, negative_zero });
        start = end;
    }
    Ok(total)
}
