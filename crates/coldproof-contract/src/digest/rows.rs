//! The rows of a box, and where the box cuts their blocks.

use std::ops::Range;

use crate::words::{Fragment, Span};

use super::{BLOCK_BYTES, SourceKey};

/// Where a box cuts a row. The same for every row of the box. Bytes within the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The end of a block whose start lies outside, or a part with neither end.
    pub(super) head: Range<u64>,
    /// Whole blocks; the last may be the row's short one.
    pub(super) full: Range<u64>,
    /// The start of a block whose end lies outside.
    pub(super) tail: Range<u64>,
}

impl Cut {
    /// The cut of a box that fits the key's shape.
    pub(super) fn of(key: &SourceKey, fragment: &Fragment) -> Self {
        let element = key.dtype.bytes();
        let span = fragment.0.last().copied().unwrap_or(Span::new(0, 1));
        let (start, end) = (span.start * element, span.end * element);
        let head = start.next_multiple_of(BLOCK_BYTES).min(key.row_bytes);
        let tail = if end == key.row_bytes { end } else { end - end % BLOCK_BYTES };
        if head > tail {
            // Inside one block.
            return Self { head: start..end, full: end..end, tail: end..end };
        }
        Self { head: start..head, full: head..tail, tail: tail..end }
    }

    /// The parts that hold a part of a block, without the empty ones.
    pub(super) fn partial(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        [self.head.clone(), self.tail.clone()].into_iter().filter(|part| !part.is_empty())
    }

    /// Bytes of the box in each row.
    pub(super) const fn bytes(&self) -> u64 {
        self.tail.end - self.head.start
    }
}

/// The row indices of a non-empty box that fits the shape, in row-major order.
pub(super) struct Rows {
    spans: Vec<Span>,
    strides: Vec<u64>,
    at: Vec<u64>,
    done: bool,
}

impl Rows {
    pub(super) fn of(shape: &[u64], fragment: &Fragment) -> Self {
        let axes = shape.len().saturating_sub(1);
        let mut strides = vec![1; axes];
        for axis in (1..axes).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let spans = fragment.0[..axes].to_vec();
        let at = spans.iter().map(|span| span.start).collect();
        Self { spans, strides, at, done: fragment.0.iter().any(|span| span.is_empty()) }
    }
}

impl Iterator for Rows {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.done {
            return None;
        }
        let row = self.at.iter().zip(&self.strides).map(|(index, stride)| index * stride).sum();
        self.done = true;
        for (index, span) in self.at.iter_mut().zip(&self.spans).rev() {
            *index += 1;
            if *index < span.end {
                self.done = false;
                break;
            }
            *index = span.start;
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Dtype;

    #[test]
    fn rows_of_a_box_are_counted_over_all_leading_axes() {
        let fragment = Fragment(vec![Span::new(1, 3), Span::new(0, 2), Span::new(4, 5)]);
        let rows: Vec<u64> = Rows::of(&[3, 4, 9], &fragment).collect();
        assert_eq!(rows, [4, 5, 8, 9]);
        assert_eq!(Rows::of(&[], &Fragment(vec![])).collect::<Vec<_>>(), [0]);
        let empty = Fragment(vec![Span::new(1, 1), Span::new(0, 2)]);
        assert_eq!(Rows::of(&[3, 2], &empty).count(), 0);
    }

    #[test]
    fn a_cut_tells_whole_blocks_from_parts() {
        let key = SourceKey::new("a", Dtype::U8, &[1, 100]).unwrap();
        let cut = |start, end| {
            let cut = Cut::of(&key, &Fragment(vec![Span::new(0, 1), Span::new(start, end)]));
            (cut.head, cut.full, cut.tail)
        };
        assert_eq!(cut(0, 100), (0..0, 0..100, 100..100));
        assert_eq!(cut(40, 50), (40..50, 50..50, 50..50));
        assert_eq!(cut(10, 64), (10..32, 32..64, 64..64));
        assert_eq!(cut(0, 10), (0..0, 0..0, 0..10));
        assert_eq!(cut(96, 100), (96..96, 96..100, 100..100));
        assert_eq!(cut(98, 100), (98..100, 100..100, 100..100));
        assert_eq!(cut(33, 99), (33..64, 64..96, 96..99));
    }
}
