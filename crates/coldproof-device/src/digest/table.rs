//! All tensors of one launch: their records, and the tiles into which their blocks are cut.

use coldproof_contract::digest::{KeyError, SourceKey};
use coldproof_contract::words::Address;

use super::layout::{LayoutError, TensorView};
use super::record::{LayoutRecord, TensorRecord, Tile};

/// Blocks of a tile where nobody says otherwise: 64 KiB. Tiles of 16 KiB cost a launch over one
/// tensor a third, since all warps add to one sum.
pub const DEFAULT_TILE_BLOCKS: u64 = 2048;

/// A tensor that has no place in a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Its source has no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It cannot be read where it lies.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// More tensors or tiles than an index of 32 bits tells apart.
    #[error("a table holds at most 2^32 tensors and tiles; split it at `{name}`")]
    Full {
        /// The tensor that did not fit.
        name: String,
    },
}

/// The memory that one tensor spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The tensor.
    pub name: String,
    /// Its lowest byte.
    pub address: Address,
    /// Bytes up to its highest.
    pub bytes: u64,
}

/// Tensors to be digested together.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) tensors: Vec<TensorRecord>,
    pub(crate) layouts: Vec<LayoutRecord>,
    pub(crate) tiles: Vec<Tile>,
    pub(crate) tile_blocks: u64,
    spans: Vec<Span>,
    bytes: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(DEFAULT_TILE_BLOCKS)
    }
}

impl Table {
    /// A table without tensors, cut into tiles of this many blocks (at least one).
    #[must_use]
    pub const fn new(tile_blocks: u64) -> Self {
        Self {
            tensors: Vec::new(),
            layouts: Vec::new(),
            tiles: Vec::new(),
            tile_blocks: if tile_blocks == 0 { 1 } else { tile_blocks },
            spans: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds the source `name`, which lies as `view` says; returns its index.
    ///
    /// # Errors
    /// A source without a key, or a layout that cannot be read in place.
    pub fn push(&mut self, name: &str, view: &TensorView) -> Result<usize, TableError> {
        let key = SourceKey::new(name, view.dtype, &view.shape)?;
        let rows = view.rows(name, &key)?;
        let full = || TableError::Full { name: name.to_owned() };
        let tensor = u32::try_from(self.tensors.len()).map_err(|_| full())?;
        let record = rows.record(&key, view.address.0, self.layout(rows.layout));
        let tiles = record.blocks.div_ceil(self.tile_blocks);
        let tiles = u32::try_from(tiles).map_err(|_| full())?;
        self.tiles.extend((0..tiles).map(|ordinal| Tile { tensor, ordinal }));
        self.tensors.push(record);
        let (low, high) = rows.span;
        let address = i128::from(view.address.0) + low;
        self.spans.push(Span {
            name: name.to_owned(),
            address: Address(u64::try_from(address).unwrap_or(u64::MAX)),
            bytes: u64::try_from(high - low).unwrap_or(u64::MAX),
        });
        self.bytes += key.bytes();
        Ok(tensor as usize)
    }

    /// Most tensors share the layout of a plain row, which is found again in the last one.
    fn layout(&mut self, layout: LayoutRecord) -> u32 {
        if self.layouts.last() != Some(&layout) {
            self.layouts.push(layout);
        }
        (self.layouts.len() - 1) as u32
    }

    /// How many tensors.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Bytes of all tensors, each element once.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory that each tensor spans, in the order in which they were added.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }
}
