//! The digest of a source that does not depend on how it was cut (R61).
//!
//! A source is a matrix of rows: its innermost axis is a row, all other axes count rows. Each row
//! is cut into blocks of 32 bytes, the last one short. A source's digest is the sum over all blocks
//! of a 128-bit mix of the block's bits, its position and the source's key, modulo 2^128; so the
//! sums of disjoint pieces add up to the digest of the whole. `docs/digest.md` defines every bit.
//!
//! It detects error, not forgery: the keys are public.

mod checkpoint;
mod fold;
mod key;
mod mix;
mod piece;
mod rows;

pub use checkpoint::{SourceDigest, checkpoint_digest};
pub use fold::{FoldError, fold};
pub use key::{KeyError, SourceKey};
pub use piece::{Piece, PieceError, Remnant, content, digest_piece, digest_range, digest_whole};

/// Bytes of a block. The last block of a row may be shorter.
pub const BLOCK_BYTES: u64 = 32;

#[cfg(test)]
mod tests;
