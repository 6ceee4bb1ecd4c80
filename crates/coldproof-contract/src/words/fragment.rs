//! Fragments: exact sets of logical elements of a source or a slot, as boxes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A half-open interval of indices along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Span {
    /// First index.
    pub start: u64,
    /// One past the last index.
    pub end: u64,
}

impl Span {
    /// `start..end`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// Number of indices; 0 where the span is reversed.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it holds no index.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The common part, possibly empty.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }
}

impl From<(u64, u64)> for Span {
    fn from((start, end): (u64, u64)) -> Self {
        Self { start, end }
    }
}

impl From<Span> for (u64, u64) {
    fn from(span: Span) -> Self {
        (span.start, span.end)
    }
}

/// A box: one span an axis. A scalar has no axes and one element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fragment(pub Vec<Span>);

/// A box that does not fit what it is a part of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FragmentError {
    /// Another number of axes.
    #[error("the fragment {fragment} has {found} axes where the shape has {expected}")]
    Axes {
        /// The fragment.
        fragment: Fragment,
        /// Axes of the shape.
        expected: usize,
        /// Axes of the fragment.
        found: usize,
    },
    /// Indices beyond the shape.
    #[error("the fragment {fragment} reaches beyond the shape {shape:?}")]
    Outside {
        /// The fragment.
        fragment: Fragment,
        /// The shape.
        shape: Vec<u64>,
    },
}

impl Fragment {
    /// All of a tensor of this shape.
    #[must_use]
    pub fn whole(shape: &[u64]) -> Self {
        Self(shape.iter().map(|&extent| Span::new(0, extent)).collect())
    }

    /// The same box with another span along `axis`.
    #[must_use]
    pub fn with(mut self, axis: usize, span: Span) -> Self {
        self.0[axis] = span;
        self
    }

    /// Number of elements.
    #[must_use]
    pub fn volume(&self) -> u64 {
        self.0.iter().map(|span| span.len()).product()
    }

    /// Extent along each axis.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        self.0.iter().map(|span| span.len()).collect()
    }

    /// The common part, or nothing. Boxes of different rank have nothing in common.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.0.len() != other.0.len() {
            return None;
        }
        let spans: Vec<Span> = self.0.iter().zip(&other.0).map(|(a, b)| a.intersect(*b)).collect();
        spans.iter().all(|span| !span.is_empty()).then_some(Self(spans))
    }

    /// Whether it fits a tensor of this shape.
    ///
    /// # Errors
    /// Another number of axes, or indices beyond the shape.
    pub fn fits(&self, shape: &[u64]) -> Result<(), FragmentError> {
        if self.0.len() != shape.len() {
            return Err(FragmentError::Axes {
                fragment: self.clone(),
                expected: shape.len(),
                found: self.0.len(),
            });
        }
        let inside = self
            .0
            .iter()
            .zip(shape)
            .all(|(span, &extent)| span.start <= span.end && span.end <= extent);
        if inside {
            Ok(())
        } else {
            Err(FragmentError::Outside { fragment: self.clone(), shape: shape.to_vec() })
        }
    }

    /// Calls `row(first element, elements)` for every innermost row of the box within a row-major
    /// tensor of `shape`, in row-major order. A box that does not fit has no rows.
    pub fn for_each_row(&self, shape: &[u64], mut row: impl FnMut(u64, u64)) {
        if self.fits(shape).is_err() || self.volume() == 0 {
            return;
        }
        let Some((inner, outer)) = self.0.split_last() else {
            row(0, 1);
            return;
        };
        let inner_extent = shape.last().copied().unwrap_or(1);
        let mut index: Vec<u64> = outer.iter().map(|span| span.start).collect();
        loop {
            let flat = index.iter().zip(shape).fold(0, |flat, (&i, &extent)| flat * extent + i);
            row(flat * inner_extent + inner.start, inner.len());
            let mut axis = outer.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                if index[axis] < outer[axis].end {
                    break;
                }
                index[axis] = outer[axis].start;
            }
        }
    }
}

impl fmt::Display for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, span) in self.0.iter().enumerate() {
            if axis > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{}..{}", span.start, span.end)?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_intersect_axis_by_axis() {
        let a = Fragment(vec![Span::new(0, 4), Span::new(2, 6)]);
        let b = Fragment(vec![Span::new(3, 9), Span::new(0, 3)]);
        assert_eq!(a.intersect(&b), Some(Fragment(vec![Span::new(3, 4), Span::new(2, 3)])));
        assert_eq!(a.intersect(&Fragment(vec![Span::new(4, 9), Span::new(0, 3)])), None);
    }

    #[test]
    fn rows_are_visited_in_row_major_order() {
        let fragment = Fragment(vec![Span::new(1, 2), Span::new(0, 2), Span::new(1, 3)]);
        let mut rows = Vec::new();
        fragment.for_each_row(&[2, 3, 4], |start, length| rows.push((start, length)));
        assert_eq!(rows, [(13, 2), (17, 2)]);
    }

    #[test]
    fn a_scalar_has_one_element() {
        assert_eq!(Fragment(vec![]).volume(), 1);
    }

    #[test]
    fn a_box_beyond_its_shape_is_refused() {
        assert!(Fragment(vec![Span::new(0, 5)]).fits(&[4]).is_err());
        assert!(Fragment(vec![Span::new(0, 4)]).fits(&[4]).is_ok());
    }
}
