//! Folds the pieces of a source, from any number of holders, into its digest.

use std::collections::BTreeMap;

use crate::words::{Fragment, FragmentError, Hex128, Span};

use super::piece::{Piece, fragment_bytes};
use super::rows::{Cut, Rows};
use super::{BLOCK_BYTES, SourceKey, mix};

/// Pieces that do not make one source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// A box does not fit the source.
    #[error(transparent)]
    Fragment(#[from] FragmentError),
    /// Remnants that are not those of the piece's box.
    #[error(
        "the piece {fragment} has other remnants than its box cuts; digest it again with the \
        source's own dtype and shape"
    )]
    Remnants {
        /// The piece's box.
        fragment: Fragment,
    },
    /// Two holders of the same elements hold different bits.
    #[error("two replicas of {fragment} differ; one of their holders has other weights")]
    ReplicaDiffers {
        /// The elements.
        fragment: Fragment,
    },
    /// Two pieces hold common elements and are not replicas.
    #[error(
        "the pieces {first} and {second} overlap in {common}; send disjoint boxes or equal \
        ones"
    )]
    Overlap {
        /// One piece.
        first: Fragment,
        /// The other piece.
        second: Fragment,
        /// What both hold.
        common: Fragment,
    },
    /// Elements that no piece holds.
    #[error(
        "no piece holds {missing} ({elements} elements missing in all); send the pieces of \
        every rank"
    )]
    Gap {
        /// The first missing box.
        missing: Fragment,
        /// Missing elements, over all boxes.
        elements: u64,
    },
}

/// The digest of the source, where the pieces cover it exactly. Equal replicas (pieces of the same
/// box) count once; empty pieces count as nothing.
///
/// # Errors
/// A gap, an overlap, replicas that differ, or a piece that is not one of this source.
pub fn fold(key: &SourceKey, pieces: &[Piece]) -> Result<Hex128, FoldError> {
    let mut distinct: BTreeMap<&Fragment, &Piece> = BTreeMap::new();
    for piece in pieces {
        piece.fragment.fits(&key.shape)?;
        if fragment_bytes(key, &piece.fragment) == 0 {
            continue;
        }
        expect_own_remnants(key, piece)?;
        let first = *distinct.entry(&piece.fragment).or_insert(piece);
        if (first.sum, &first.remnants) != (piece.sum, &piece.remnants) {
            return Err(FoldError::ReplicaDiffers { fragment: piece.fragment.clone() });
        }
    }
    let fragments: Vec<&Fragment> = distinct.keys().copied().collect();
    expect_disjoint(&fragments)?;
    expect_cover(key, &fragments)?;
    let total = distinct.values().fold(0_u128, |total, piece| total.wrapping_add(piece.sum.0));
    Ok(Hex128(total.wrapping_add(sum_of_remnants(key, &distinct))))
}

fn expect_own_remnants(key: &SourceKey, piece: &Piece) -> Result<(), FoldError> {
    let cut = Cut::of(key, &piece.fragment);
    let mut given = piece.remnants.iter();
    let own = cut.partial().next().is_none()
        || Rows::of(&key.shape, &piece.fragment).all(|row| {
            cut.partial().all(|part| {
                given.next().is_some_and(|remnant| {
                    (remnant.row, remnant.start) == (row, part.start)
                        && remnant.bits.len() as u64 == part.end - part.start
                })
            })
        });
    if own && given.next().is_none() {
        Ok(())
    } else {
        Err(FoldError::Remnants { fragment: piece.fragment.clone() })
    }
}

/// Boxes are sorted, so those that may meet a box along the first axis follow it closely.
fn expect_disjoint(fragments: &[&Fragment]) -> Result<(), FoldError> {
    for (at, first) in fragments.iter().enumerate() {
        for second in &fragments[at + 1..] {
            if let (Some(a), Some(b)) = (first.0.first(), second.0.first())
                && b.start >= a.end
            {
                break;
            }
            if let Some(common) = first.intersect(second) {
                return Err(FoldError::Overlap {
                    first: (*first).clone(),
                    second: (*second).clone(),
                    common,
                });
            }
        }
    }
    Ok(())
}

/// Disjoint boxes cover the source where their bytes add up to it.
fn expect_cover(key: &SourceKey, fragments: &[&Fragment]) -> Result<(), FoldError> {
    let covered: u64 = fragments.iter().map(|fragment| fragment_bytes(key, fragment)).sum();
    if covered == key.bytes() {
        return Ok(());
    }
    let mut left = vec![Fragment::whole(&key.shape)];
    for fragment in fragments {
        left = left.iter().flat_map(|part| subtract(part, fragment)).collect();
    }
    left.sort();
    Err(FoldError::Gap {
        // Bytes are missing, so a box is left.
        missing: left.into_iter().next().unwrap_or_else(|| Fragment::whole(&key.shape)),
        elements: (key.bytes() - covered) / key.dtype.bytes(),
    })
}

/// The parts of `from` outside `taken`, as disjoint boxes.
fn subtract(from: &Fragment, taken: &Fragment) -> Vec<Fragment> {
    let Some(common) = from.intersect(taken) else {
        return vec![from.clone()];
    };
    let mut parts = Vec::new();
    let mut rest = from.clone();
    for (axis, inner) in common.0.iter().enumerate() {
        let outer = rest.0[axis];
        for side in [Span::new(outer.start, inner.start), Span::new(inner.end, outer.end)] {
            if !side.is_empty() {
                parts.push(rest.clone().with(axis, side));
            }
        }
        rest = rest.with(axis, *inner);
    }
    parts
}

/// Joins the parts of each cut block and mixes it. The pieces cover the source exactly and have
/// their own remnants, so every cut block is complete.
fn sum_of_remnants(key: &SourceKey, pieces: &BTreeMap<&Fragment, &Piece>) -> u128 {
    let mut blocks: BTreeMap<u64, [u8; BLOCK_BYTES as usize]> = BTreeMap::new();
    for remnant in pieces.values().flat_map(|piece| &piece.remnants) {
        let index = remnant.row * key.row_blocks + remnant.start / BLOCK_BYTES;
        let block = blocks.entry(index).or_default();
        let start = (remnant.start % BLOCK_BYTES) as usize;
        for (to, from) in block.iter_mut().skip(start).zip(&remnant.bits) {
            *to = *from;
        }
    }
    // The row's short block is padded with zeros either way.
    blocks
        .iter()
        .fold(0, |total, (&index, block)| total.wrapping_add(mix::sum(&key.words, index, block)))
}
