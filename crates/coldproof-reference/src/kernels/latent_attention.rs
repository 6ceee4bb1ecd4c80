//! Causal attention over the paged cache of latents.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::attention::{attend, softmax};
use super::kv::Paging;
use super::latent::LatentDims;
use super::matmul::dot;
use super::{Context, Op};
use crate::device::DeviceError;

/// Attention of each row over positions `0..=position` of its sequence, in ascending order, in the
/// latent space: a score is that of the absorbed query with the latent and that of the rotated one
/// with the shared key; what comes out is a sum of latents. At every position, prefilled or
/// decoded, it is the same.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    /// F32 `[m, heads, rank]`: absorbed queries.
    pub absorbed: Address,
    /// F32 `[m, heads, nope + rope]`; only the rotary parts are read.
    pub q: Address,
    /// Where latents and shared keys lie: one head as wide as both.
    pub paging: Paging,
    /// F32 `[m, heads, rank]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Widths.
    pub dims: LatentDims,
    /// Factor of the scores.
    pub scale: f32,
}

impl Op for LatentAttention {
    fn name(&self) -> &'static str {
        "latent_attention"
    }

    fn args(&self) -> Vec<ArgFact> {
        let paging = &self.paging;
        let args = Args::default()
            .read(self.absorbed, &self.absorbed_shape(), WORD_BYTES)
            .read(self.q, &self.dims.queries(self.m), WORD_BYTES)
            .read(paging.cache, &paging.latent_shape(), WORD_BYTES);
        paging.pages.read_by(args, self.m).write(self.y, &self.absorbed_shape(), WORD_BYTES).done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let LatentDims { heads, rank, .. } = self.dims;
        context.assert(self.paging.width() == self.dims.latent(), || {
            format!("a cache of {} holds no latents of {rank}", self.paging.width())
        })?;
        let y = (self.y, heads * rank);
        attend(context, (&self.paging.pages, self.m), y, |context, row, length, y| {
            self.row(context, row, length, y)
        })
    }
}

impl LatentAttention {
    const fn absorbed_shape(&self) -> [usize; 3] {
        [self.m, self.dims.heads, self.dims.rank]
    }

    /// One row over the first `length` positions.
    fn row(
        &self,
        context: &Context<'_>,
        row: usize,
        length: usize,
        y: &mut [f32],
    ) -> Result<(), DeviceError> {
        let LatentDims { heads, nope, rope, rank } = self.dims;
        let absorbed = context.f32s(self.absorbed, &self.absorbed_shape())?;
        let q = context.f32s(self.q, &self.dims.queries(self.m))?;
        let absorbed = absorbed[row * heads * rank..].chunks_exact(rank.max(1));
        let q = q[row * heads * (nope + rope)..].chunks_exact((nope + rope).max(1));
        let cached = self.cached(context, row, length)?;
        let mut scores = vec![0.0; length];
        for ((absorbed, q), y) in absorbed.zip(q).zip(y.chunks_exact_mut(rank.max(1))) {
            for (score, cached) in scores.iter_mut().zip(&cached) {
                let (latent, key) = cached.split_at(rank);
                *score = (dot(absorbed, latent) + dot(&q[nope..], key)) * self.scale;
            }
            softmax(&mut scores);
            for (&score, cached) in scores.iter().zip(&cached) {
                y.iter_mut().zip(*cached).for_each(|(y, latent)| *y += score * latent);
            }
        }
        Ok(())
    }

    /// The rows of the first `length` positions, in their order.
    fn cached<'a>(
        &self,
        context: &'a Context<'_>,
        row: usize,
        length: usize,
    ) -> Result<Vec<&'a [f32]>, DeviceError> {
        let paging = &self.paging;
        let mut cached = Vec::with_capacity(length);
        for &block in paging.pages.blocks(context, row, length)? {
            let shape = [paging.pages.block_size, paging.width()];
            let rows = context.f32s(paging.latent_block(block), &shape)?;
            cached.extend(rows.chunks_exact(paging.width().max(1)));
        }
        cached.truncate(length);
        Ok(cached)
    }
}
