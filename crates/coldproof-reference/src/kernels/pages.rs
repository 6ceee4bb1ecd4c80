//! Pages: how the positions of a sequence lie in the blocks of a paged cache.

use coldproof_contract::words::Address;

use super::Context;
use super::args::{Args, WORD_BYTES};
use super::context::element;
use crate::device::DeviceError;

/// Which block table a row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// All rows are of one sequence: one table.
    Shared,
    /// Each row is of a sequence of its own: a table a row.
    PerRow,
}

/// The blocks that the rows of a batch are in. One block table reaches the caches of all layers.
///
/// A position's block is entry `position / block_size` of its sequence's table. Entries are not
/// checked, as on a device: a wrong one reaches whatever lies there. A row at position -1 is
/// padding: nothing is written for it.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// I32 `[1 or m, max_blocks]`.
    pub tables: Address,
    /// I32 `[m]`.
    pub positions: Address,
    /// Which table a row uses.
    pub layout: Tables,
    /// Blocks of a cache.
    pub blocks: usize,
    /// Positions of a block.
    pub block_size: usize,
    /// Entries of a table.
    pub max_blocks: usize,
}

impl Pages {
    /// Adds the tables and positions of `m` rows to what a kernel touches.
    pub(super) fn read_by(&self, args: Args, m: usize) -> Args {
        let tables = match self.layout {
            Tables::Shared => 1,
            Tables::PerRow => m,
        };
        args.read(self.tables, &[tables, self.max_blocks], WORD_BYTES).read(
            self.positions,
            &[m],
            WORD_BYTES,
        )
    }

    /// The block of a position of a row's sequence.
    pub(super) fn block(
        &self,
        context: &Context<'_>,
        row: usize,
        position: usize,
    ) -> Result<i32, DeviceError> {
        let table = self.table(context, row)?;
        Ok(table.get(position / self.block_size.max(1)).copied().unwrap_or(-1))
    }

    /// The blocks of the first `length` positions of a row's sequence.
    pub(super) fn blocks<'a>(
        &self,
        context: &'a Context<'_>,
        row: usize,
        length: usize,
    ) -> Result<&'a [i32], DeviceError> {
        let table = self.table(context, row)?;
        let used = length.div_ceil(self.block_size.max(1));
        Ok(&table[..used.min(table.len())])
    }

    fn table<'a>(&self, context: &'a Context<'_>, row: usize) -> Result<&'a [i32], DeviceError> {
        let first = match self.layout {
            Tables::Shared => 0,
            Tables::PerRow => (row * self.max_blocks) as i64,
        };
        context.i32s(element(self.tables, first, WORD_BYTES), &[self.max_blocks])
    }

    /// The position of each row; nothing for padding.
    pub(super) fn positions(
        &self,
        context: &Context<'_>,
        m: usize,
    ) -> Result<Vec<Option<usize>>, DeviceError> {
        let capacity = self.block_size.saturating_mul(self.max_blocks);
        let checked = |&position: &i32| {
            let valid = usize::try_from(position).ok().filter(|&position| position < capacity);
            context.assert(position == -1 || valid.is_some(), || {
                format!("position {position} is outside a block table of {capacity} positions")
            })?;
            Ok(valid)
        };
        context.i32s(self.positions, &[m])?.iter().map(checked).collect()
    }
}
