//! The paged cache of keys and values, and the kernel that writes it.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::context::element;
use super::{Context, Op, Pages};
use crate::device::DeviceError;

/// Where the keys and values of one layer lie. A row that is padding has zero for its attention.
#[derive(Clone, Copy, Debug)]
pub struct Paging {
    /// F32 `[blocks, 2, block_size, kv_heads, head_dim]`: keys, then values, of each block. Of
    /// latents, F32 `[blocks, block_size, kv_heads * head_dim]`.
    pub cache: Address,
    /// The blocks of the rows.
    pub pages: Pages,
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
        [self.pages.blocks, 2, self.pages.block_size, self.kv_heads, self.head_dim]
    }

    pub(super) const fn latent_shape(&self) -> [usize; 3] {
        [self.pages.blocks, self.pages.block_size, self.width()]
    }

    /// The addresses of block `block`'s keys and values.
    pub(super) fn block(&self, block: i32) -> (Address, Address) {
        let half = self.pages.block_size * self.width() * WORD_BYTES;
        let keys = element(self.cache, i64::from(block) * 2, half);
        (keys, element(keys, 1, half))
    }

    /// The address of block `block` of a cache of latents.
    pub(super) fn latent_block(&self, block: i32) -> Address {
        element(self.cache, i64::from(block), self.pages.block_size * self.width() * WORD_BYTES)
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
        let args = Args::default().read(self.qkv, &[self.m, self.width()], WORD_BYTES).update(
            paging.cache,
            &paging.cache_shape(),
            WORD_BYTES,
        );
        paging.pages.read_by(args, self.m).done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let paging = &self.paging;
        let qkv = context.f32s(self.qkv, &[self.m, self.width()])?.to_vec();
        let positions = paging.pages.positions(context, self.m)?;
        let rows = qkv.chunks_exact(self.width().max(1)).zip(positions).enumerate();
        for (row, (values, position)) in rows {
            let Some(position) = position else { continue };
            let block = paging.pages.block(context, row, position)?;
            let (keys_block, values_block) = paging.block(block);
            let within = (position % paging.pages.block_size * paging.width()) as i64;
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
