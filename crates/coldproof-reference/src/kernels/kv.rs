//! The paged cache of keys and values, and the kernel that writes it.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::context::element;
use super::{Context, Op};
use crate::device::DeviceError;

/// Which block table a row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// All rows are of one sequence: one table.
    Shared,
    /// Each row is of a sequence of its own: a table a row.
    PerRow,
}

/// Where the keys and values of one layer lie.
///
/// A position's block is entry `position / block_size` of its sequence's table. Entries are not
/// checked, as on a device: a wrong one reaches whatever lies there. A row at position -1 is
/// padding: nothing is written for it, and its attention is zero.
#[derive(Clone, Copy, Debug)]
pub struct Paging {
    /// F32 `[blocks, 2, block_size, kv_heads, head_dim]`: keys, then values, of each block. Of
    /// latents, F32 `[blocks, block_size, kv_heads * head_dim]`.
    pub cache: Address,
    /// I32 `[1 or m, max_blocks]`.
    pub tables: Address,
    /// I32 `[m]`.
    pub positions: Address,
    /// Which table a row uses.
    pub layout: Tables,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Positions of a block.
    pub block_size: usize,
    /// Entries of a table.
    pub max_blocks: usize,
    /// Key (and value) heads on this rank.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Paging {
    /// Elements of one position's keys, or values.
    pub(super) const fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    pub(super) const fn cache_shape(&self) -> [usize; 5] {
        [self.blocks, 2, self.block_size, self.kv_heads, self.head_dim]
    }

    pub(super) const fn latent_shape(&self) -> [usize; 3] {
        [self.blocks, self.block_size, self.width()]
    }

    pub(super) const fn tables_shape(&self, m: usize) -> [usize; 2] {
        let tables = match self.layout {
            Tables::Shared => 1,
            Tables::PerRow => m,
        };
        [tables, self.max_blocks]
    }

    /// The block table of a row.
    pub(super) fn table<'a>(
        &self,
        context: &'a Context<'_>,
        row: usize,
    ) -> Result<&'a [i32], DeviceError> {
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

    /// The addresses of block `block`'s keys and values.
    pub(super) fn block(&self, block: i32) -> (Address, Address) {
        let half = self.block_size * self.width() * WORD_BYTES;
        let keys = element(self.cache, i64::from(block) * 2, half);
        (keys, element(keys, 1, half))
    }

    /// The address of block `block` of a cache of latents.
    pub(super) fn latent_block(&self, block: i32) -> Address {
        element(self.cache, i64::from(block), self.block_size * self.width() * WORD_BYTES)
    }
}

/// Writes each row's keys and values into its place in the cache.
#[derive(Clone, Debug)]
pub struct KvWrite {
    /// F32 `[m, (q_heads + 2 * kv_heads) * head_dim]`: q heads, k heads, v heads.
    pub qkv: Address,
    /// Where to.
    pub paging: Paging,
    /// Rows (tokens).
    pub m: usize,
    /// Query heads on this rank.
    pub q_heads: usize,
}

impl Op for KvWrite {
    fn name(&self) -> &'static str {
        "kv_write"
    }

    fn args(&self) -> Vec<ArgFact> {
        let paging = &self.paging;
        Args::default()
            .read(self.qkv, &[self.m, self.width()], WORD_BYTES)
            .update(paging.cache, &paging.cache_shape(), WORD_BYTES)
            .read(paging.tables, &paging.tables_shape(self.m), WORD_BYTES)
            .read(paging.positions, &[self.m], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let paging = &self.paging;
        let qkv = context.f32s(self.qkv, &[self.m, self.width()])?.to_vec();
        let positions = paging.positions(context, self.m)?;
        let rows = qkv.chunks_exact(self.width().max(1)).zip(positions).enumerate();
        for (row, (values, position)) in rows {
            let Some(position) = position else { continue };
            let table = paging.table(context, row)?;
            let block = table.get(position / paging.block_size).copied().unwrap_or(-1);
            let (keys_block, values_block) = paging.block(block);
            let within = (position % paging.block_size * paging.width()) as i64;
            let kv = &values[self.q_heads * paging.head_dim..];
            let (keys, values) = kv.split_at(paging.width());
            context.put(element(keys_block, within, WORD_BYTES), keys)?;
            context.put(element(values_block, within, WORD_BYTES), values)?;
        }
        Ok(())
    }
}

impl KvWrite {
    const fn width(&self) -> usize {
        self.q_heads * self.paging.head_dim + 2 * self.paging.width()
    }
}
