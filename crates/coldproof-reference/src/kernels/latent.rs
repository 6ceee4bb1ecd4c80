//! The paged cache of latents: what all heads share of a position, and the kernels that rotate and
//! write it.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::context::element;
use super::kv::Paging;
use super::rope::rotate;
use super::{Context, Op};
use crate::device::DeviceError;

/// Widths of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentDims {
    /// Query heads on this rank.
    pub heads: usize,
    /// Width of a head's query without rotation.
    pub nope: usize,
    /// Width of its rotary part, and of the key that heads share; even.
    pub rope: usize,
    /// Width of the compressed keys and values.
    pub rank: usize,
}

impl LatentDims {
    pub(super) const fn queries(&self, m: usize) -> [usize; 3] {
        [m, self.heads, self.nope + self.rope]
    }

    pub(super) const fn latent(&self) -> usize {
        self.rank + self.rope
    }
}

/// F32 `[m, width]` of which columns `first..` hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The first row.
    pub base: Address,
    /// Width of a row.
    pub width: usize,
    /// The first column.
    pub first: usize,
}

/// Rotates the rotary part of every query head, and the key that heads share, in place. A row at
/// position -1 is padding and stays as it is.
#[derive(Clone, Debug)]
pub struct LatentRope {
    /// F32 `[m, heads, nope + rope]`.
    pub q: Address,
    /// The shared keys.
    pub keys: Columns,
    /// I32 `[m]`.
    pub positions: Address,
    /// F32 `[max_positions, rope]`: the cosines of a position, then its sines.
    pub table: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Widths.
    pub dims: LatentDims,
    /// Rows of the table.
    pub max_positions: usize,
    /// Whether neighbours are rotated together, or elements half the rotary part apart.
    pub interleaved: bool,
}

impl Op for LatentRope {
    fn name(&self) -> &'static str {
        "latent_rope"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .update(self.q, &self.dims.queries(self.m), WORD_BYTES)
            .update(self.keys.base, &[self.m, self.keys.width], WORD_BYTES)
            .read(self.positions, &[self.m], WORD_BYTES)
            .read(self.table, &[self.max_positions, self.dims.rope], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let LatentDims { heads, nope, rope, .. } = self.dims;
        let Columns { base, width, first } = self.keys;
        context.assert(rope.is_multiple_of(2) && first.saturating_add(rope) <= width, || {
            format!("a rotary part of {rope} is odd, or beyond column {width}")
        })?;
        let mut q = context.f32s(self.q, &self.dims.queries(self.m))?.to_vec();
        let mut keys = context.f32s(base, &[self.m, width])?.to_vec();
        let positions = context.i32s(self.positions, &[self.m])?;
        let rows = q.chunks_exact_mut((heads * (nope + rope)).max(1));
        for ((q, key), &position) in rows.zip(keys.chunks_exact_mut(width.max(1))).zip(positions) {
            if position == -1 {
                continue;
            }
            let angles = element(self.table, i64::from(position), rope * WORD_BYTES);
            let (cos, sin) = context.f32s(angles, &[rope])?.split_at(rope / 2);
            let own = q.chunks_exact_mut((nope + rope).max(1)).map(|head| &mut head[nope..]);
            for part in own.chain([&mut key[first..first + rope]]) {
                if self.interleaved {
                    rotate_pairs(part, cos, sin);
                } else {
                    rotate(part, cos, sin);
                }
            }
        }
        context.put(self.q, &q)?;
        context.put(base, &keys)
    }
}

fn rotate_pairs(part: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (pairs, _) = part.as_chunks_mut::<2>();
    for (([a, b], cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Writes each row's latent and shared key into its place in the cache, F32
/// `[blocks, block_size, rank + rope]`.
#[derive(Clone, Debug)]
pub struct LatentWrite {
    /// F32 `[m, rank]`, normed.
    pub latents: Address,
    /// The shared keys, rotated.
    pub keys: Columns,
    /// Where to: one head as wide as a latent with its key.
    pub paging: Paging,
    /// Rows (tokens).
    pub m: usize,
    /// Widths.
    pub dims: LatentDims,
}

impl Op for LatentWrite {
    fn name(&self) -> &'static str {
        "latent_write"
    }

    fn args(&self) -> Vec<ArgFact> {
        let paging = &self.paging;
        let args = Args::default()
            .read(self.latents, &[self.m, self.dims.rank], WORD_BYTES)
            .read(self.keys.base, &[self.m, self.keys.width], WORD_BYTES)
            .update(paging.cache, &paging.latent_shape(), WORD_BYTES);
        paging.pages.read_by(args, self.m).done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let LatentDims { rank, rope, .. } = self.dims;
        let Columns { base, width, first } = self.keys;
        let fits = first.saturating_add(rope) <= width;
        context.assert(fits && self.paging.width() == self.dims.latent(), || {
            format!("a latent of {rank} and a key of {rope} are no row of the cache")
        })?;
        let latents = context.f32s(self.latents, &[self.m, rank])?.to_vec();
        let keys = context.f32s(base, &[self.m, width])?.to_vec();
        let positions = self.paging.pages.positions(context, self.m)?;
        let rows = latents.chunks_exact(rank.max(1)).zip(keys.chunks_exact(width.max(1)));
        for (row, ((latent, key), position)) in rows.zip(positions).enumerate() {
            let Some(position) = position else { continue };
            let block = self.paging.pages.block(context, row, position)?;
            let within = (position % self.paging.pages.block_size * self.paging.width()) as i64;
            let to = element(self.paging.latent_block(block), within, WORD_BYTES);
            context.put(to, latent)?;
            context.put(element(to, rank as i64, WORD_BYTES), &key[first..first + rope])?;
        }
        Ok(())
    }
}
