//! Reads a slot back to logical order and to its sources' coordinates. This is checker code: it
//! shares nothing with an engine's own packing or loading.

use coldproof_contract::digest::{self, SourceKey};
use coldproof_contract::evidence::PieceContent;
use coldproof_contract::words::{ByteRange, Fragment, Packing};

use crate::engine::{EngineError, ReadBack, ReadBackPiece, ReadBackRequest, Reply};

/// Reads one slot through `read`.
///
/// Memory that cannot be read, or a permutation that is none, gives a read-back without content or
/// without pieces: that is evidence, not an error.
///
/// # Errors
/// Whatever `read` says when the engine is gone.
pub fn run(
    request: &ReadBackRequest,
    read: &mut dyn FnMut(ByteRange) -> Reply<Vec<u8>>,
) -> Reply<ReadBack> {
    let empty = ReadBack { content: None, pieces: vec![], shares: vec![], padding_written: 0 };
    let elements: u64 = request.logical_shape.iter().product();
    let range = ByteRange { address: request.address, bytes: elements * request.dtype.bytes() };
    let stored = match read(range) {
        Ok(bytes) => bytes,
        Err(EngineError::Refused { .. }) => return Ok(empty),
        Err(error) => return Err(error),
    };
    let content = Some(digest::content(&stored));
    if request.pieces.is_empty() {
        return Ok(ReadBack { content, ..empty });
    }
    let size = request.dtype.bytes() as usize;
    let (shape, order) = (&request.logical_shape, (&request.packing, request.permutation));
    let Some(logical) = in_logical_order(&stored, size, shape, order, read)? else {
        return Ok(ReadBack { content, ..empty });
    };
    let Some((pieces, shares)) = take_pieces(request, &logical, size) else {
        return Ok(ReadBack { content, ..empty });
    };
    let padding_written =
        if request.zero_fill { padding_written(request, &logical, size) } else { 0 };
    Ok(ReadBack { content, pieces, shares, padding_written })
}

/// The bytes of each piece, in source order, as digests. Nothing where a piece does not fit its
/// source or the slot.
fn take_pieces(
    request: &ReadBackRequest,
    logical: &[u8],
    size: usize,
) -> Option<(Vec<PieceContent>, Vec<digest::Piece>)> {
    let mut contents = Vec::with_capacity(request.pieces.len());
    let mut shares = Vec::with_capacity(request.pieces.len());
    for ReadBackPiece { source, source_shape, piece } in &request.pieces {
        let bytes = extract(logical, &request.logical_shape, &piece.slot_fragment, size);
        let key = SourceKey::new(source, request.dtype, source_shape).ok()?;
        shares.push(digest::digest_piece(&key, &piece.source_fragment, &bytes).ok()?);
        contents.push(PieceContent {
            source: source.clone(),
            source_fragment: piece.source_fragment.clone(),
            content: digest::content(&bytes),
        });
    }
    Some((contents, shares))
}

/// Elements outside every piece that are not all-zero bytes.
fn padding_written(request: &ReadBackRequest, logical: &[u8], size: usize) -> u64 {
    let elements = logical.len() / size.max(1);
    let mut covered = vec![false; elements];
    for wanted in &request.pieces {
        wanted.piece.slot_fragment.for_each_row(&request.logical_shape, |start, length| {
            let start = start as usize;
            if let Some(row) = covered.get_mut(start..start + length as usize) {
                row.fill(true);
            }
        });
    }
    logical
        .chunks_exact(size)
        .zip(covered)
        .filter(|(element, covered)| !covered && element.iter().any(|&byte| byte != 0))
        .count() as u64
}

/// The bytes of a box of a row-major tensor, in row-major order of the box.
#[must_use]
pub fn extract(bytes: &[u8], shape: &[u64], fragment: &Fragment, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(fragment.volume() as usize * size);
    fragment.for_each_row(shape, |start, length| {
        let (start, length) = (start as usize, length as usize);
        if let Some(row) = bytes.get(start * size..(start + length) * size) {
            out.extend_from_slice(row);
        }
    });
    out
}

/// A slot's bytes in logical order, whose permutation, if it has one, is read through `read`.
/// Nothing where the permutation cannot be read or is none, or where the packing is opaque.
///
/// # Errors
/// Whatever `read` says when the engine is gone.
pub fn in_logical_order(
    stored: &[u8],
    size: usize,
    logical_shape: &[u64],
    (packing, permutation): (&Packing, Option<ByteRange>),
    read: &mut dyn FnMut(ByteRange) -> Reply<Vec<u8>>,
) -> Reply<Option<Vec<u8>>> {
    let permutation = match permutation.map(read) {
        None => None,
        Some(Ok(bytes)) => Some(indices(&bytes)),
        Some(Err(EngineError::Refused { .. })) => return Ok(None),
        Some(Err(error)) => return Err(error),
    };
    Ok(unpack(stored, size, logical_shape, packing, permutation.as_deref()))
}

/// Storage order to logical order. Nothing where the packing is opaque or does not fit.
fn unpack(
    stored: &[u8],
    size: usize,
    logical_shape: &[u64],
    packing: &Packing,
    permutation: Option<&[u32]>,
) -> Option<Vec<u8>> {
    let columns = *logical_shape.last()? as usize;
    match packing {
        Packing::Plain => Some(stored.to_vec()),
        Packing::Opaque => None,
        Packing::Panels { width } => {
            let rows = *logical_shape.get(logical_shape.len().checked_sub(2)?)? as usize;
            unpack_panels(stored, size, rows, columns, *width as usize)
        }
        Packing::ColumnsPermuted { .. } => unpack_columns(stored, size, columns, permutation?),
    }
}

fn unpack_panels(
    stored: &[u8],
    size: usize,
    rows: usize,
    columns: usize,
    width: usize,
) -> Option<Vec<u8>> {
    let matrix = rows.checked_mul(columns)?.checked_mul(size)?;
    if matrix == 0 || width == 0 || !stored.len().is_multiple_of(matrix) {
        return None;
    }
    let mut logical = vec![0; stored.len()];
    for (packed, plain) in stored.chunks_exact(matrix).zip(logical.chunks_exact_mut(matrix)) {
        let mut taken = 0;
        for first in (0..columns).step_by(width) {
            let panel = width.min(columns - first) * size;
            for row in 0..rows {
                let at = (row * columns + first) * size;
                plain[at..at + panel].copy_from_slice(&packed[taken..taken + panel]);
                taken += panel;
            }
        }
    }
    Some(logical)
}

fn unpack_columns(
    stored: &[u8],
    size: usize,
    columns: usize,
    permutation: &[u32],
) -> Option<Vec<u8>> {
    let mut seen = vec![false; columns];
    for &column in permutation {
        let slot = seen.get_mut(column as usize)?;
        if std::mem::replace(slot, true) {
            return None;
        }
    }
    let row = columns * size;
    if permutation.len() != columns || row == 0 || !stored.len().is_multiple_of(row) {
        return None;
    }
    let mut logical = vec![0; stored.len()];
    for (packed, plain) in stored.chunks_exact(row).zip(logical.chunks_exact_mut(row)) {
        for (from, &to) in permutation.iter().enumerate() {
            let (from, to) = (from * size, to as usize * size);
            plain[to..to + size].copy_from_slice(&packed[from..from + size]);
        }
    }
    Some(logical)
}

/// Little-endian I32 indices; a negative one becomes too large to be a column.
#[must_use]
pub(crate) fn indices(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coldproof_contract::words::Span;

    #[test]
    fn panels_are_undone() {
        // 2 rows of 5 columns in panels of 2: 0 1 | 5 6, 2 3 | 7 8, 4 | 9.
        let stored = [0, 1, 5, 6, 2, 3, 7, 8, 4, 9];
        let logical = unpack(&stored, 1, &[1, 2, 5], &Packing::Panels { width: 2 }, None);
        assert_eq!(logical.as_deref(), Some(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][..]));
    }

    #[test]
    fn permuted_columns_are_undone_and_no_permutation_is_no_layout() {
        let packing = Packing::ColumnsPermuted { permutation: "perm".into() };
        let stored = [12, 10, 11, 22, 20, 21];
        let undone = unpack(&stored, 1, &[2, 3], &packing, Some(&[2, 0, 1]));
        assert_eq!(undone.as_deref(), Some(&[10, 11, 12, 20, 21, 22][..]));
        assert_eq!(unpack(&stored, 1, &[2, 3], &packing, Some(&[2, 0, 0])), None);
        assert_eq!(unpack(&stored, 1, &[2, 3], &packing, Some(&[3, 0, 1])), None);
    }

    #[test]
    fn a_box_is_taken_row_by_row() {
        let bytes: Vec<u8> = (0..24).collect();
        let fragment = Fragment(vec![Span::new(1, 2), Span::new(0, 3), Span::new(1, 3)]);
        assert_eq!(extract(&bytes, &[2, 3, 4], &fragment, 1), [13, 14, 17, 18, 21, 22]);
    }
}
