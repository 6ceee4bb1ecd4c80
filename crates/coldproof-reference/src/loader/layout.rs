//! Byte order of packed storages: column panels and permuted columns.

use std::ops::Range;

/// How a slot's matrices lie in its storage now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Row-major, as in the checkpoint.
    Plain,
    /// Column panels of this width, each row-major.
    Panels(usize),
}

/// Rows and columns of a slot's innermost matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Rows of one matrix.
    pub(crate) rows: usize,
    /// Columns.
    pub(crate) columns: usize,
    /// Bytes of an element.
    pub(crate) element: usize,
}

impl Matrix {
    /// Bytes of one matrix.
    pub(crate) const fn bytes(self) -> usize {
        self.rows * self.columns * self.element
    }

    /// Bytes of one row.
    pub(crate) const fn row_bytes(self) -> usize {
        self.columns * self.element
    }
}

/// Where columns `columns` of row `row` lie: runs of (first byte in the matrix, columns).
pub(crate) fn runs(
    layout: &Layout,
    matrix: Matrix,
    row: usize,
    columns: Range<usize>,
) -> Vec<(usize, Range<usize>)> {
    let Matrix { rows, columns: all, element } = matrix;
    match *layout {
        Layout::Plain => vec![((row * all + columns.start) * element, columns)],
        Layout::Panels(width) => {
            let mut found = Vec::new();
            let mut at = columns.start;
            while at < columns.end {
                let panel = at / width * width;
                let panel_width = width.min(all - panel);
                let end = columns.end.min(panel + panel_width);
                let first = panel * rows + row * panel_width + (at - panel);
                found.push((first * element, at..end));
                at = end;
            }
            found
        }
    }
}

/// Rewrites matrices from `from` to `to`.
pub(crate) fn convert(bytes: &[u8], matrix: Matrix, from: &Layout, to: &Layout) -> Vec<u8> {
    let mut converted = vec![0; bytes.len()];
    let size = matrix.bytes().max(1);
    let pairs = bytes.chunks_exact(size).zip(converted.chunks_exact_mut(size));
    for (old, new) in pairs {
        for row in 0..matrix.rows {
            convert_row(old, new, matrix, row, from, to);
        }
    }
    converted
}

/// One side of every conversion is plain, so the other side's runs cut both.
fn convert_row(old: &[u8], new: &mut [u8], matrix: Matrix, row: usize, from: &Layout, to: &Layout) {
    let packed = if *from == Layout::Plain { to } else { from };
    for (start, columns) in runs(packed, matrix, row, 0..matrix.columns) {
        let plain = (row * matrix.columns + columns.start) * matrix.element;
        let length = columns.len() * matrix.element;
        let (read, write) = if *from == Layout::Plain { (plain, start) } else { (start, plain) };
        new[write..write + length].copy_from_slice(&old[read..read + length]);
    }
}

/// Reorders columns: column `j` of the result is column `permutation[j]`.
pub(crate) fn permute(bytes: &[u8], matrix: Matrix, permutation: &[usize]) -> Vec<u8> {
    let mut permuted = Vec::with_capacity(bytes.len());
    for row in bytes.chunks_exact(matrix.row_bytes().max(1)) {
        for &column in permutation {
            let start = column * matrix.element;
            permuted.extend_from_slice(&row[start..start + matrix.element]);
        }
    }
    permuted
}

/// The permutation that undoes `permutation`, or nothing where it is none.
pub(crate) fn inverse(permutation: &[i32]) -> Option<Vec<usize>> {
    let mut inverse = vec![usize::MAX; permutation.len()];
    for (stored, &logical) in permutation.iter().enumerate() {
        let place = inverse.get_mut(usize::try_from(logical).ok()?)?;
        if *place != usize::MAX {
            return None;
        }
        *place = stored;
    }
    Some(inverse)
}

/// The order of columns within each of `blocks` equal blocks (the last may be shorter): descending
/// sum of magnitudes over all rows, ties by index. `weights` is row-major.
pub(crate) fn magnitude_order(weights: &[half::bf16], columns: usize, blocks: usize) -> Vec<i32> {
    let mut sums = vec![0.0_f64; columns];
    for row in weights.chunks_exact(columns.max(1)) {
        for (sum, weight) in sums.iter_mut().zip(row) {
            *sum += f64::from(weight.to_f32()).abs();
        }
    }
    let mut order: Vec<i32> = (0..).take(columns).collect();
    let width = columns.div_ceil(blocks.max(1)).max(1);
    for block in order.chunks_mut(width) {
        block.sort_by(|&a, &b| {
            // Columns come from `0..columns`, so both indices hold.
            sums[b as usize].total_cmp(&sums[a as usize]).then(a.cmp(&b))
        });
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    const MATRIX: Matrix = Matrix { rows: 2, columns: 5, element: 1 };

    #[test]
    fn panels_hold_all_rows_of_their_columns_and_the_last_is_narrower() {
        let plain = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14];
        let packed = convert(&plain, MATRIX, &Layout::Plain, &Layout::Panels(2));
        assert_eq!(packed, [0, 1, 10, 11, 2, 3, 12, 13, 4, 14]);
        assert_eq!(convert(&packed, MATRIX, &Layout::Panels(2), &Layout::Plain), plain);
    }

    #[test]
    fn runs_of_a_packed_row_follow_its_panels() {
        let found = runs(&Layout::Panels(2), MATRIX, 1, 1..5);
        assert_eq!(found, [(3, 1..2), (6, 2..4), (9, 4..5)]);
    }

    #[test]
    fn permuted_columns_come_back_by_the_inverse() {
        let plain = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14];
        let order = [2, 0, 1, 4, 3];
        let stored = permute(&plain, MATRIX, &[2, 0, 1, 4, 3]);
        assert_eq!(stored[..5], [2, 0, 1, 4, 3]);
        let back = inverse(&order).expect("a permutation");
        assert_eq!(permute(&stored, MATRIX, &back), plain);
        assert_eq!(inverse(&[0, 0]), None);
        assert_eq!(inverse(&[-1, 7]), None);
    }

    #[test]
    fn columns_are_ordered_within_their_block_only() {
        let weights = [1.0, 2.0, -9.0, 1.0, 0.5, 2.0, 0.0, 1.0].map(bf16::from_f32);
        assert_eq!(magnitude_order(&weights, 4, 2), [1, 0, 2, 3]);
        assert_eq!(magnitude_order(&weights, 4, 1), [2, 1, 3, 0]);
    }
}
