//! From shape and strides to rows: neighbouring axes merge, and rows that adjoin become one.

use coldproof_contract::digest::{BLOCK_BYTES, SourceKey};
use coldproof_contract::words::{Address, Dtype};

use super::record::{LayoutRecord, MAX_AXES, TensorRecord};

/// A tensor where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// Address of the first element.
    pub address: Address,
    /// Element type.
    pub dtype: Dtype,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// Elements between neighbours along each axis.
    pub stride: Vec<i64>,
}

/// A tensor that the kernel cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Shape and strides are of two tensors.
    #[error("`{name}` has {shape} axes and {stride} strides; pass one stride an axis")]
    Rank {
        /// The tensor.
        name: String,
        /// Axes.
        shape: usize,
        /// Strides.
        stride: usize,
    },
    /// Another shape or dtype than the source's.
    #[error("`{name}` spans {found} bytes and its source {expected}; key it by its own shape")]
    Size {
        /// The tensor.
        name: String,
        /// Bytes of the source.
        expected: u64,
        /// Bytes of the view.
        found: u64,
    },
    /// Elements of a strided tensor that do not lie on their own size.
    #[error(
        "`{name}` at {address} does not lie on {element} bytes, the size of an element; copy it"
    )]
    Misaligned {
        /// The tensor.
        name: String,
        /// Its first element.
        address: Address,
        /// Bytes of an element.
        element: u64,
    },
    /// Too many axes that do not merge.
    #[error("`{name}` has {axes} separate axes, at most {max} are read in place; copy it first")]
    Axes {
        /// The tensor.
        name: String,
        /// Outer axes left after merging.
        axes: usize,
        /// How many are read.
        max: usize,
    },
}

/// The rows of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Rows.
    pub count: u64,
    /// How they lie.
    pub layout: LayoutRecord,
    /// Largest unit that divides every place of a block.
    pub unit: u64,
    /// The same for the short block.
    pub tail_unit: u64,
    /// First byte below the first element, and one past the last, relative to the address.
    pub span: (i128, i128),
}

impl TensorView {
    /// A tensor whose elements adjoin, row-major.
    #[must_use]
    pub fn contiguous(address: Address, dtype: Dtype, shape: &[u64]) -> Self {
        let mut stride = vec![1_i64; shape.len()];
        for axis in (1..shape.len()).rev() {
            let extent = i64::try_from(shape[axis].max(1)).unwrap_or(i64::MAX);
            stride[axis - 1] = stride[axis].saturating_mul(extent);
        }
        Self { address, dtype, shape: shape.to_vec(), stride }
    }

    /// Arranges the tensor as rows of its source.
    pub(super) fn rows(&self, name: &str, key: &SourceKey) -> Result<Rows, LayoutError> {
        let (shape, stride) = (self.shape.len(), self.stride.len());
        if shape != stride {
            return Err(LayoutError::Rank { name: name.to_owned(), shape, stride });
        }
        let element = self.dtype.bytes();
        let elements = self.shape.iter().fold(1_u64, |all, extent| all.saturating_mul(*extent));
        let found = elements.saturating_mul(element);
        if found != key.bytes() {
            let expected = key.bytes();
            return Err(LayoutError::Size { name: name.to_owned(), expected, found });
        }
        if found == 0 {
            // Nothing is read, and the other axes may be of any extent.
            return Ok(self.one_row(0, (0, 0)));
        }
        let row = self.shape.last().copied().unwrap_or(1);
        let step = self.stride.last().copied().unwrap_or(1).saturating_mul(element as i64);
        let adjoin = row <= 1 || step == element as i64;
        let axes = merged(&self.shape, &self.stride, element as i64);
        if axes.len() > MAX_AXES {
            let axes = axes.len();
            return Err(LayoutError::Axes { name: name.to_owned(), axes, max: MAX_AXES });
        }
        if !adjoin && !self.address.0.is_multiple_of(element) {
            let (name, address) = (name.to_owned(), self.address);
            return Err(LayoutError::Misaligned { name, address, element });
        }
        let span = span(row, if adjoin { element as i64 } else { step }, element, &axes);
        let row_bytes = row * element;
        let whole = axes.len() == 1
            && axes[0].1 == i64::try_from(row_bytes).unwrap_or(i64::MAX)
            && row_bytes.is_multiple_of(BLOCK_BYTES);
        if adjoin && (axes.is_empty() || whole) {
            return Ok(self.one_row(found, span));
        }
        let count = axes.iter().map(|(extent, _)| *extent).product();
        Ok(self.many_rows(row_bytes, count, (!adjoin).then_some(step), &axes, span))
    }

    /// Rows that adjoin and end at blocks are one row: the indices of blocks run on.
    fn one_row(&self, bytes: u64, span: (i128, i128)) -> Rows {
        let unit = unit(self.address.0);
        let layout = LayoutRecord {
            inner: 0,
            axes: 0,
            by_column: 0,
            extent: [1; MAX_AXES],
            pitch: [0; MAX_AXES],
            is_strided: 0,
        };
        let tail_unit = unit.min(self::unit(bytes)).min(8);
        Rows { row_bytes: bytes, count: 1, layout, unit, tail_unit, span }
    }

    fn many_rows(
        &self,
        row_bytes: u64,
        count: u64,
        step: Option<i64>,
        axes: &[(u64, i64)],
        span: (i128, i128),
    ) -> Rows {
        let mut layout = LayoutRecord {
            inner: step.unwrap_or(0),
            axes: axes.len() as u32,
            by_column: 0,
            extent: [1; MAX_AXES],
            pitch: [0; MAX_AXES],
            is_strided: u64::from(step.is_some()),
        };
        for (index, (extent, pitch)) in axes.iter().enumerate() {
            (layout.extent[index], layout.pitch[index]) = (*extent, *pitch);
        }
        if let (Some(step), Some((_, pitch))) = (step, axes.last()) {
            layout.by_column = u32::from(pitch.unsigned_abs() < step.unsigned_abs());
        }
        let places = axes.iter().fold(self.address.0, |all, (_, pitch)| all | pitch.unsigned_abs());
        let mut unit = unit(places);
        if step.is_some() {
            // A strided row is read element by element.
            unit = self.dtype.bytes();
        }
        let tail_unit = unit.min(self::unit(row_bytes)).min(8);
        Rows { row_bytes, count, layout, unit, tail_unit, span }
    }
}

/// The largest power of two up to 16 that divides.
fn unit(places: u64) -> u64 {
    1 << places.trailing_zeros().min(4)
}

/// Outer axes of more than one row, neighbours that adjoin merged: (extent, pitch in bytes).
fn merged(shape: &[u64], stride: &[i64], element: i64) -> Vec<(u64, i64)> {
    let outer = shape.len().saturating_sub(1);
    let mut axes: Vec<(u64, i64)> = Vec::new();
    for (extent, stride) in shape[..outer].iter().zip(stride) {
        let pitch = stride.saturating_mul(element);
        if *extent == 1 {
            continue;
        }
        match axes.last_mut() {
            Some(last) if i128::from(last.1) == i128::from(pitch) * i128::from(*extent) => {
                *last = (last.0 * extent, pitch);
            }
            _ => axes.push((*extent, pitch)),
        }
    }
    axes
}

/// Lowest and highest byte that the tensor touches, relative to its first element.
fn span(row: u64, step: i64, element: u64, axes: &[(u64, i64)]) -> (i128, i128) {
    let (mut low, mut high) = (0_i128, i128::from(element));
    for (extent, pitch) in axes.iter().copied().chain([(row, step)]) {
        let reach = i128::from(extent.saturating_sub(1)) * i128::from(pitch);
        low += reach.min(0);
        high += reach.max(0);
    }
    (low, high)
}

impl Rows {
    /// The record of this tensor, with the key of its source.
    pub(super) fn record(&self, key: &SourceKey, base: u64, layout: u32) -> TensorRecord {
        let row_blocks = self.row_bytes.div_ceil(BLOCK_BYTES);
        let flat = self.count == 1 && self.layout.is_strided == 0 && self.unit == 16;
        TensorRecord {
            key: *key.words(),
            base,
            blocks: row_blocks * self.count,
            row_blocks,
            row_bytes: self.row_bytes,
            layout,
            unit: self.unit as u32,
            tail_unit: self.tail_unit as u32,
            is_flat: u32::from(flat),
        }
    }
}
