//! The paged cache of recurrent states: one state a block, that after the block's last position
//! that was computed.
//!
//! Blocks are those of keys and values, so one block table reaches both, and a full block of a
//! known prefix holds the state that the next position starts from.

use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::context::element;
use super::{Context, Pages, Tables};
use crate::device::DeviceError;

/// Where the states of one layer lie.
#[derive(Clone, Copy, Debug)]
pub struct States {
    /// F32 `[blocks, width]`.
    pub cache: Address,
    /// The blocks of the rows; padding changes no state.
    pub pages: Pages,
    /// Elements of a state.
    pub width: usize,
}

impl States {
    /// Adds the cache, its tables and positions to what a kernel touches.
    pub(super) fn touched_by(&self, args: Args, m: usize) -> Args {
        let args = args.update(self.cache, &[self.pages.blocks, self.width], WORD_BYTES);
        self.pages.read_by(args, m)
    }

    /// Steps through the rows in order: `step` gets each row that is no padding with the state
    /// before its position, zero before the first, and leaves the state after it.
    pub(super) fn walk(
        &self,
        context: &mut Context<'_>,
        m: usize,
        mut step: impl FnMut(usize, &mut [f32]),
    ) -> Result<(), DeviceError> {
        let positions = self.pages.positions(context, m)?;
        let mut state = vec![0.0; self.width];
        for (row, &position) in positions.iter().enumerate() {
            let Some(position) = position else { continue };
            let follows = |row: usize, position: usize| {
                self.pages.layout == Tables::Shared
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
            let within = (position + 1) % self.pages.block_size.max(1) != 0;
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
        let block = self.pages.block(context, row, position)?;
        Ok(element(self.cache, i64::from(block), self.width * WORD_BYTES))
    }
}
