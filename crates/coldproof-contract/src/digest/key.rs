//! The key of a source: name, dtype and shape, bound into every block.

use crate::words::Dtype;

use super::BLOCK_BYTES;
use super::mix::KEY_WORDS;

/// The BLAKE3 derivation context of source keys.
const CONTEXT: &str = "coldproof.digest/1 source key";

/// A shape that no memory can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{source_name}` of shape {shape:?} and dtype {dtype} has more than 2^63 bytes; \
    correct its shape"
)]
pub struct KeyError {
    /// The source.
    pub source_name: String,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
}

/// What a source's digest is keyed by, with the geometry of its rows and blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceKey {
    pub(super) words: [u64; KEY_WORDS],
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    /// Bytes of one innermost-axis row.
    pub(super) row_bytes: u64,
    /// Blocks of one row.
    pub(super) row_blocks: u64,
    /// Bytes of the whole source.
    pub(super) bytes: u64,
}

impl SourceKey {
    /// The key of the source `name`, with this dtype and shape (elements along each axis).
    ///
    /// # Errors
    /// A source of more than 2^63 bytes.
    pub fn new(name: &str, dtype: Dtype, shape: &[u64]) -> Result<Self, KeyError> {
        let bytes = bytes_of(dtype, shape).ok_or_else(|| KeyError {
            source_name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
        })?;
        // An empty source has no block; any geometry does.
        let row_bytes = if bytes == 0 { 0 } else { shape.last().unwrap_or(&1) * dtype.bytes() };
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        absorb_identity(&mut hasher, name, dtype, shape);
        let mut material = [0; KEY_WORDS * 8];
        hasher.finalize_xof().fill(&mut material);
        let (chunks, _) = material.as_chunks::<8>();
        Ok(Self {
            words: std::array::from_fn(|i| u64::from_le_bytes(chunks[i])),
            dtype,
            shape: shape.to_vec(),
            row_bytes,
            row_blocks: row_bytes.div_ceil(BLOCK_BYTES),
            bytes,
        })
    }

    /// The key's twelve words, six of each lane, for a device kernel.
    #[must_use]
    pub const fn words(&self) -> &[u64; KEY_WORDS] {
        &self.words
    }

    /// Bytes of one innermost-axis row: where blocks restart.
    #[must_use]
    pub const fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Bytes of the whole source.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The start of the block that holds byte `offset` of the source, row-major; the end of the
    /// source for an offset at or beyond it. A range between two such points has whole blocks only.
    #[must_use]
    pub const fn block_start(&self, offset: u64) -> u64 {
        if offset >= self.bytes {
            return self.bytes;
        }
        let in_row = offset % self.row_bytes;
        offset - in_row % BLOCK_BYTES
    }

    /// The index of the block that starts at byte `offset`, over all rows.
    pub(super) const fn block_index(&self, offset: u64) -> u64 {
        offset / self.row_bytes * self.row_blocks + offset % self.row_bytes / BLOCK_BYTES
    }
}

/// Bytes of a tensor, or nothing where they exceed 2^63. An empty axis makes it empty.
fn bytes_of(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let elements = shape.iter().try_fold(1_u64, |total, &extent| total.checked_mul(extent))?;
    elements.checked_mul(dtype.bytes()).filter(|&bytes| bytes <= 1 << 63)
}

/// Feeds name, dtype and shape, each with its length, as little-endian 64-bit words and UTF-8.
pub(super) fn absorb_identity(
    hasher: &mut blake3::Hasher,
    name: &str,
    dtype: Dtype,
    shape: &[u64],
) {
    for text in [name, dtype.name()] {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.update(&(shape.len() as u64).to_le_bytes());
    for extent in shape {
        hasher.update(&extent.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_dtype_and_shape_are_each_bound_in() {
        let key = |name, dtype, shape: &[u64]| *SourceKey::new(name, dtype, shape).unwrap().words();
        let base = key("a", Dtype::Bf16, &[2, 3]);
        assert_eq!(base, key("a", Dtype::Bf16, &[2, 3]));
        assert_ne!(base, key("b", Dtype::Bf16, &[2, 3]));
        assert_ne!(base, key("a", Dtype::F16, &[2, 3]));
        assert_ne!(base, key("a", Dtype::Bf16, &[3, 2]));
        assert_ne!(base, key("a", Dtype::Bf16, &[6]));
    }

    #[test]
    fn a_shape_that_overflows_is_refused_and_an_empty_one_is_not() {
        assert!(SourceKey::new("a", Dtype::F32, &[1 << 32, 1 << 32]).is_err());
        assert!(SourceKey::new("a", Dtype::F32, &[1 << 61]).is_ok());
        assert!(SourceKey::new("a", Dtype::F32, &[1 << 62]).is_err());
        assert_eq!(SourceKey::new("a", Dtype::F32, &[u64::MAX, 0, 9]).unwrap().bytes(), 0);
    }

    #[test]
    fn block_starts_restart_at_each_row() {
        // Rows of 40 bytes: blocks start at 0, 32, 40, 72, 80, ...
        let key = SourceKey::new("a", Dtype::U8, &[3, 40]).unwrap();
        let starts: Vec<u64> =
            [0, 31, 32, 39, 40, 71, 72, 79, 80, 119, 120, 500].map(|o| key.block_start(o)).into();
        assert_eq!(starts, [0, 0, 32, 32, 40, 40, 72, 72, 80, 112, 120, 120]);
        assert_eq!([0, 32, 40, 72, 80].map(|o| key.block_index(o)), [0, 1, 2, 3, 4]);
    }
}
