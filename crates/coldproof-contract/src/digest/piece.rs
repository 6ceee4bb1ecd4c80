//! Digests of a whole source, of a range of its blocks, and of a piece of it.

use serde::{Deserialize, Serialize};

use crate::words::{Dtype, Fragment, FragmentError, Hex128};

use super::mix;
use super::rows::{Cut, Rows};
use super::{BLOCK_BYTES, SourceKey};

/// What one holder of a part of a source sends: a box, the sum of its whole blocks, and the raw
/// bits of blocks that the box cuts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Which elements, in source coordinates.
    pub fragment: Fragment,
    /// Sum over the whole blocks inside.
    pub sum: Hex128,
    /// Parts of blocks, by row, then by start.
    pub remnants: Vec<Remnant>,
}

/// Raw bits of a part of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remnant {
    /// The row, counted over all leading axes.
    pub row: u64,
    /// The first byte within the row.
    pub start: u64,
    /// At most 31 bytes, as hexadecimal digits.
    #[serde(with = "hex")]
    pub bits: Vec<u8>,
}

/// Bytes that are not what they are said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PieceError {
    /// The box does not fit the source.
    #[error(transparent)]
    Fragment(#[from] FragmentError),
    /// Another number of bytes.
    #[error("{found} bytes were given where {expected} are described; pass all of them")]
    Length {
        /// What dtype and box or shape say.
        expected: u64,
        /// What was given.
        found: u64,
    },
    /// A range that begins or ends inside a block.
    #[error(
        "bytes {start}..{end} of the source do not begin and end at blocks; cut at \
        `block_start`"
    )]
    Unaligned {
        /// First byte of the source.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
}

/// The digest of a whole source: its bytes, row-major, little-endian.
///
/// # Errors
/// Another number of bytes than dtype and shape say.
pub fn digest_whole(key: &SourceKey, bytes: &[u8]) -> Result<Hex128, PieceError> {
    expect_length(key.bytes(), bytes)?;
    digest_range(key, 0, bytes)
}

/// The sum over a range of whole blocks that begins at byte `start` of the source. The sums of
/// ranges that cover the source add up, modulo 2^128, to its digest.
///
/// # Errors
/// A range that begins or ends inside a block or beyond the source.
pub fn digest_range(key: &SourceKey, start: u64, bytes: &[u8]) -> Result<Hex128, PieceError> {
    let end = start.saturating_add(bytes.len() as u64);
    if end > key.bytes() || key.block_start(start) != start || key.block_start(end) != end {
        return Err(PieceError::Unaligned { start, end });
    }
    if bytes.is_empty() {
        return Ok(Hex128(0));
    }
    if key.row_bytes.is_multiple_of(BLOCK_BYTES) {
        // No short blocks: block indices run on from row to row.
        return Ok(Hex128(mix::sum(&key.words, key.block_index(start), bytes)));
    }
    let mut total = 0_u128;
    let (mut at, mut rest) = (start, bytes);
    while !rest.is_empty() {
        let row_left = key.row_bytes - at % key.row_bytes;
        let take = rest.len().min(usize::try_from(row_left).unwrap_or(usize::MAX));
        let (now, later) = rest.split_at(take);
        total = total.wrapping_add(mix::sum(&key.words, key.block_index(at), now));
        at += now.len() as u64;
        rest = later;
    }
    Ok(Hex128(total))
}

/// The piece of a source that a box holds: `bytes` are the box's elements, row-major.
///
/// # Errors
/// A box that does not fit the source, or another number of bytes.
pub fn digest_piece(
    key: &SourceKey,
    fragment: &Fragment,
    bytes: &[u8],
) -> Result<Piece, PieceError> {
    fragment.fits(&key.shape)?;
    expect_length(fragment_bytes(key, fragment), bytes)?;
    let mut piece = Piece { fragment: fragment.clone(), sum: Hex128(0), remnants: Vec::new() };
    if bytes.is_empty() {
        return Ok(piece);
    }
    let cut = Cut::of(key, fragment);
    // Box and bytes agree, so a row of the box is a part of a slice and its bytes fit `usize`.
    let length = |range: &std::ops::Range<u64>| (range.end - range.start) as usize;
    for (row, mut rest) in Rows::of(&key.shape, fragment).zip(bytes.chunks(cut.bytes() as usize)) {
        for part in [&cut.head, &cut.full, &cut.tail] {
            let (now, later) = rest.split_at(length(part));
            rest = later;
            if now.is_empty() {
                continue;
            }
            if part == &cut.full {
                let first = row * key.row_blocks + part.start / BLOCK_BYTES;
                let sum = mix::sum(&key.words, first, now);
                piece.sum = Hex128(piece.sum.0.wrapping_add(sum));
            } else {
                piece.remnants.push(Remnant { row, start: part.start, bits: now.to_vec() });
            }
        }
    }
    Ok(piece)
}

/// The digest of raw bytes without a name, for slots: that of a source with an empty name, dtype U8
/// and one axis.
#[must_use]
pub fn content(bytes: &[u8]) -> Hex128 {
    let length = bytes.len() as u64;
    SourceKey::new("", Dtype::U8, &[length])
        .ok()
        .and_then(|key| digest_whole(&key, bytes).ok())
        // A slice has at most 2^63 - 1 bytes, so neither step fails.
        .unwrap_or_default()
}

/// Bytes of a box that fits the key's shape.
pub(super) fn fragment_bytes(key: &SourceKey, fragment: &Fragment) -> u64 {
    if fragment.0.iter().any(|span| span.is_empty()) {
        return 0;
    }
    fragment.volume() * key.dtype.bytes()
}

fn expect_length(expected: u64, bytes: &[u8]) -> Result<(), PieceError> {
    let found = bytes.len() as u64;
    if found == expected { Ok(()) } else { Err(PieceError::Length { expected, found }) }
}

/// Bytes as hexadecimal digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let digits = |byte: &u8| [byte >> 4, byte & 15].map(|d| char::from_digit(d.into(), 16));
        serializer.collect_str(&bytes.iter().flat_map(digits).flatten().collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("a remnant has pairs of hexadecimal digits");
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(wrong());
        }
        let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(high)? * 16 + digit(low)?).ok();
        pairs.iter().map(|pair| byte(pair).ok_or_else(wrong)).collect()
    }
}
