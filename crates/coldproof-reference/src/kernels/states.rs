//! The paged cache of recurrent states: one state a block, that after the block's last position
//! that was computed.
//!
//! Blocks are those of keys and values, so one block table reaches both, and a full block of a
//! known prefix holds the state that the next position starts from.

use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::context::element;
use super::{Context, Paging, Tables};
use crate::device::DeviceError;

/// Where the states of one layer lie.
#[derive(Clone, Copy, Debug)]
pub struct States {
    /// F32 `[blocks, width]`.
    pub cache: Address,
    /// I32 `[1 or m, max_blocks]`.
    pub tables: Address,
    /// I32 `[m]`; -1 for a row that is padding: it changes no state.
    pub positions: Address,
    /// Which table a row uses.
    pub layout: Tables,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Positions of a block.
    pub block_size: usize,
    /// Entries of a table.
    pub max_blocks: usize,
    /// Elements of a state.
    pub width: usize,
}

impl States {
    /// Adds the cache, its tables and positions to what a kernel touches.
    pub(super) fn touched_by(&self, args: Args, m: usize) -> Args {
        args.update(self.cache, &[self.blocks, self.width], WORD_BYTES)
            .read(self.tables, &self.tables().tables_shape(m), WORD_BYTES)
            .read(self.positions, &[m], WORD_BYTES)
    }

    /// Steps through the rows in order: `step` gets each row that is no padding with the state
    /// before its position, zero before the first, and leaves the state after it.
    pub(super) fn walk(
        &self,
        context: &mut Context<'_>,
        m: usize,
        mut step: impl FnMut(usize, &mut [f32]),
    ) -> Result<(), DeviceError> {
        let positions = self.tables().positions(context, m)?;
        let mut state = vec![0.0; self.width];
        for (row, &position) in positions.iter().enumerate() {
            let Some(position) = position else { continue };
            let follows = |row: usize, position: usize| {
                self.layout == Tables::Shared
                    && positions.get(row).copied().flatten() == Some(position)
            };
            // Rows of one sequence hand the state over without the detour through the cache.
            let handed = row.checked_sub(1).zip(position.checked_sub(1));
            match position.checked_sub(1) {
                None => state.fill(0.0),
                Some(_) if handed.is_some_and(|(row, position)| follows(row, position)) => {}
                Some(before) => {
                    let address = self.address(context, row, before)?;
                    state.copy_from_slice(context.f32s(address, &[self.width])?);
                }
            }
            step(row, &mut state);
            let within = (position + 1) % self.block_size.max(1) != 0;
            if !(within && follows(row + 1, position + 1)) {
                let address = self.address(context, row, position)?;
                context.put(address, &state)?;
            }
        }
        Ok(())
    }

    /// Where the state after a position of a row's sequence lies.
    fn address(
        &self,
        context: &Context<'_>,
        row: usize,
        position: usize,
    ) -> Result<Address, DeviceError> {
        let table = self.tables().table(context, row)?;
        let block = table.get(position / self.block_size.max(1)).copied().unwrap_or(-1);
        Ok(element(self.cache, i64::from(block), self.width * WORD_BYTES))
    }

    /// The same tables, as those of keys and values are read.
    const fn tables(&self) -> Paging {
        Paging {
            cache: self.cache,
            tables: self.tables,
            positions: self.positions,
            layout: self.layout,
            blocks: self.blocks,
            block_size: self.block_size,
            max_blocks: self.max_blocks,
            kv_heads: 0,
            head_dim: 0,
        }
    }
}
