//! One pass through a model: the batch, and the activations that it takes and gives back.

use coldproof_contract::words::Address;

use super::LayerError;
use crate::adapters::InUse;
use crate::arena::Allocation;
use crate::device::Device;
use crate::kernels::{
    Add, AllReduce, Copy, Kernel, Linear, Pages, Paging, StageReceive, StageSend, States, Tables,
};
use crate::loader::Shard;
use crate::models::{Dims, KvShape};
use crate::slots::{SlotId, Slots};

/// Bytes of an F32 or I32.
const WORD_BYTES: u64 = 4;

/// Where a batch's inputs lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// Tokens.
    pub(crate) rows: usize,
    /// I32 `[rows]`: token ids.
    pub(crate) ids: Address,
    /// I32 `[rows]`; -1 for a padding row.
    pub(crate) positions: Address,
    /// I32 `[1 or rows, max_blocks]`: block tables.
    pub(crate) tables: Address,
    /// Whether all rows share one table.
    pub(crate) layout: Tables,
    /// Entries of a table.
    pub(crate) max_blocks: usize,
}

/// Rows that stand in the place of embedded tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// F32 `[rows, hidden]`.
    pub(crate) source: Address,
    /// The first row of the batch that they take.
    pub(crate) row: usize,
    /// How many.
    pub(crate) rows: usize,
}

/// A pass through a model on one rank.
#[derive(Debug)]
pub(crate) struct Forward<'a> {
    /// Where kernels run or are recorded.
    pub(crate) device: &'a mut Device,
    /// Where weights lie.
    pub(crate) slots: &'a Slots,
    /// The model's dimensions.
    pub(crate) dims: &'a Dims,
    /// This rank among the ranks.
    pub(crate) shard: Shard,
    /// The KV cache.
    pub(crate) kv: KvShape,
    /// The inputs.
    pub(crate) batch: Batch,
    /// The adapter of the request.
    pub(crate) adapter: Option<InUse<'a>>,
    /// Rows of images.
    pub(crate) placed: Vec<Placed>,
    /// Activations taken and not given back.
    pub(crate) taken: Vec<Allocation>,
}

impl Forward<'_> {
    /// An activation, F32 or I32 `[rows, width]`.
    pub(crate) fn buffer(
        &mut self,
        rows: usize,
        width: usize,
        purpose: &str,
    ) -> Result<Address, LayerError> {
        let bytes = (rows as u64).saturating_mul(width as u64).saturating_mul(WORD_BYTES);
        let allocation = self.device.alloc_activation(bytes, purpose)?;
        self.taken.push(allocation);
        Ok(allocation.address)
    }

    /// What is taken now, for [`Forward::release`].
    pub(crate) const fn mark(&self) -> usize {
        self.taken.len()
    }

    /// Gives back what was taken since a mark.
    pub(crate) fn release(&mut self, mark: usize) -> Result<(), LayerError> {
        for allocation in self.taken.drain(mark..).rev() {
            self.device.free_activation(allocation)?;
        }
        Ok(())
    }

    /// Launches a kernel.
    pub(crate) fn launch(&mut self, kernel: impl Into<Kernel>) -> Result<(), LayerError> {
        Ok(self.device.launch(kernel.into())?)
    }

    /// `y = x · wᵀ` for all rows, at full K, with the adapter.
    pub(crate) fn column_parallel(
        &mut self,
        weight: SlotId,
        (x, k): (Address, usize),
        (n, purpose): (usize, &str),
        rows: usize,
    ) -> Result<Address, LayerError> {
        let y = self.buffer(rows, n, purpose)?;
        let w = self.slots.address(weight)?;
        self.launch(Linear { x, w, y, m: rows, k, n, blocks: Dims::full_blocks() })?;
        self.adapt(weight, x, y, rows)?;
        Ok(y)
    }

    /// `y = x · wᵀ` for all rows of the batch, of which this rank has `k` inputs: complete over the
    /// ranks, with the adapter.
    pub(crate) fn row_parallel(
        &mut self,
        weight: SlotId,
        (x, k): (Address, usize),
        purpose: &str,
    ) -> Result<Address, LayerError> {
        let (m, n) = (self.batch.rows, self.dims.hidden as usize);
        let w = self.slots.address(weight)?;
        let y = self.buffer(m, n, purpose)?;
        let blocks = Dims::row_blocks(self.shard);
        self.launch(Linear { x, w, y, m, k, n, blocks })?;
        self.all_reduce(y, m)?;
        self.adapt(weight, x, y, m)?;
        Ok(y)
    }

    /// Adds the ranks' partial sums of `rows` rows in place.
    pub(crate) fn all_reduce(&mut self, y: Address, rows: usize) -> Result<(), LayerError> {
        if self.shard.ranks == 1 {
            return Ok(());
        }
        let width = self.dims.hidden as usize;
        self.launch(AllReduce { y, m: rows, width })
    }

    /// A residual stream that the pipeline stage before computed.
    pub(crate) fn receive(&mut self) -> Result<Address, LayerError> {
        let (m, width) = (self.batch.rows, self.dims.hidden as usize);
        let y = self.buffer(m, width, "residual")?;
        self.launch(StageReceive { y, m, width })?;
        Ok(y)
    }

    /// Gives a residual stream to the next pipeline stage.
    pub(crate) fn send(&mut self, residual: Address) -> Result<(), LayerError> {
        let (m, width) = (self.batch.rows, self.dims.hidden as usize);
        self.launch(StageSend { x: residual, m, width })
    }

    /// `residual += y`.
    pub(crate) fn add(&mut self, residual: Address, y: Address) -> Result<(), LayerError> {
        let (m, width) = (self.batch.rows, self.dims.hidden as usize);
        self.launch(Add { a: residual, b: y, y: residual, m, width })
    }

    /// Puts the rows of images into a residual stream.
    pub(crate) fn place(&mut self, residual: Address) -> Result<(), LayerError> {
        let width = self.dims.hidden * WORD_BYTES;
        for Placed { source, row, rows } in self.placed.clone() {
            let target = residual.plus(row as u64 * width);
            self.launch(Copy { source, target, bytes: rows * width as usize, rows })?;
        }
        Ok(())
    }

    /// The last `rows` rows of a residual stream.
    pub(crate) const fn last_rows(&self, residual: Address, rows: usize) -> Address {
        let skipped = self.batch.rows.saturating_sub(rows) as u64;
        residual.plus(skipped * self.dims.hidden * WORD_BYTES)
    }

    /// The blocks of this batch.
    const fn pages(&self) -> Pages {
        Pages {
            tables: self.batch.tables,
            positions: self.batch.positions,
            layout: self.batch.layout,
            blocks: self.kv.blocks as usize,
            block_size: self.kv.block_size as usize,
            max_blocks: self.batch.max_blocks,
        }
    }

    /// How this batch reaches one layer's keys and values.
    pub(crate) fn paging(&self, cache: SlotId, kv_heads: u64) -> Result<Paging, LayerError> {
        Ok(Paging {
            cache: self.slots.address(cache)?,
            pages: self.pages(),
            kv_heads: kv_heads as usize,
            head_dim: self.dims.head_dim as usize,
        })
    }

    /// How this batch reaches one layer's states of `width` elements.
    pub(crate) fn states(&self, cache: SlotId, width: usize) -> Result<States, LayerError> {
        Ok(States { cache: self.slots.address(cache)?, pages: self.pages(), width })
    }
}
