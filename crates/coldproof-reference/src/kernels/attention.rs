//! Causal attention over the paged cache.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;
use rayon::prelude::*;

use super::args::{Args, WORD_BYTES};
use super::kv::Paging;
use super::matmul::dot;
use super::{Context, Op, Pages};
use crate::device::DeviceError;

/// Multiplications from which rows are spread over threads.
const PARALLEL_WORK: usize = 1 << 18;

/// Attention of each row over positions `0..=position` of its sequence, or the last of them, in
/// ascending order. Query
/// head `h` reads key head `h / (q_heads / kv_heads)`.
#[derive(Clone, Debug)]
pub struct PagedAttention {
    /// F32 `[m, (q_heads + 2 * kv_heads) * head_dim]`; only the q heads are read.
    pub qkv: Address,
    /// Where keys and values lie.
    pub paging: Paging,
    /// F32 `[m, q_heads * head_dim]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Query heads on this rank; a multiple of the key heads.
    pub q_heads: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Positions that a row attends to, its own among them; nothing where that is all of them.
    pub window: Option<usize>,
    /// F32 `[q_heads]`: a score of each head that has no value.
    pub sinks: Option<Address>,
}

/// The keys and values of one sequence's blocks, in order of position.
struct Blocks<'a> {
    keys: Vec<&'a [f32]>,
    values: Vec<&'a [f32]>,
}

impl Op for PagedAttention {
    fn name(&self) -> &'static str {
        "paged_attention"
    }

    fn args(&self) -> Vec<ArgFact> {
        let paging = &self.paging;
        let args = Args::default().read(self.qkv, &[self.m, self.width()], WORD_BYTES).read(
            paging.cache,
            &paging.cache_shape(),
            WORD_BYTES,
        );
        let args = paging.pages.read_by(args, self.m).write(
            self.y,
            &[self.m, self.q_heads * paging.head_dim],
            WORD_BYTES,
        );
        match self.sinks {
            Some(sinks) => args.read(sinks, &[self.q_heads], WORD_BYTES).done(),
            None => args.done(),
        }
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let (q_heads, kv_heads) = (self.q_heads, self.paging.kv_heads);
        context.assert(kv_heads > 0 && q_heads.is_multiple_of(kv_heads.max(1)), || {
            format!("{q_heads} query heads cannot share {kv_heads} key heads evenly")
        })?;
        let y = (self.y, q_heads * self.paging.head_dim);
        attend(context, (&self.paging.pages, self.m), y, |context, row, length, y| {
            self.row(context, row, length, y)
        })
    }
}

impl PagedAttention {
    const fn width(&self) -> usize {
        self.q_heads * self.paging.head_dim + 2 * self.paging.width()
    }

    /// One row over the first `length` positions.
    fn row(
        &self,
        context: &Context<'_>,
        row: usize,
        length: usize,
        y: &mut [f32],
    ) -> Result<(), DeviceError> {
        let head_dim = self.paging.head_dim;
        let qkv = context.f32s(self.qkv, &[self.m, self.width()])?;
        let q = &qkv[row * self.width()..][..self.q_heads * head_dim];
        let blocks = self.blocks(context, row, length)?;
        let sinks = self.sinks.map(|sinks| context.f32s(sinks, &[self.q_heads])).transpose()?;
        let group = self.q_heads / self.paging.kv_heads;
        let heads = q.chunks_exact(head_dim).zip(y.chunks_exact_mut(head_dim)).enumerate();
        let first = self.window.map_or(0, |window| length.saturating_sub(window));
        let mut scores = vec![0.0; length - first];
        for (head, (q, y)) in heads {
            let kv_head = head / group;
            for (position, score) in (first..).zip(scores.iter_mut()) {
                let key = self.vector(&blocks.keys, position, kv_head);
                *score = dot(q, key) * self.scale;
            }
            softmax_with(&mut scores, sinks.and_then(|sinks| sinks.get(head).copied()));
            for (position, &score) in (first..).zip(&scores) {
                let value = self.vector(&blocks.values, position, kv_head);
                y.iter_mut().zip(value).for_each(|(y, value)| *y += score * value);
            }
        }
        Ok(())
    }

    fn blocks<'a>(
        &self,
        context: &'a Context<'_>,
        row: usize,
        length: usize,
    ) -> Result<Blocks<'a>, DeviceError> {
        let paging = &self.paging;
        let shape = [paging.pages.block_size, paging.kv_heads, paging.head_dim];
        let mut blocks = Blocks { keys: Vec::new(), values: Vec::new() };
        for &block in paging.pages.blocks(context, row, length)? {
            let (keys, values) = paging.block(block);
            blocks.keys.push(context.f32s(keys, &shape)?);
            blocks.values.push(context.f32s(values, &shape)?);
        }
        Ok(blocks)
    }

    fn vector<'a>(&self, blocks: &[&'a [f32]], position: usize, kv_head: usize) -> &'a [f32] {
        let Paging { pages: Pages { block_size, .. }, kv_heads, head_dim, .. } = self.paging;
        let first = (position % block_size * kv_heads + kv_head) * head_dim;
        &blocks[position / block_size][first..first + head_dim]
    }
}

/// Puts F32 `[m, width]` at `y`, a row at a time: `task` gets each row that is no padding, the
/// number of positions up to its own, and where its output goes. That of padding is zero.
pub(super) fn attend(
    context: &mut Context<'_>,
    (pages, m): (&Pages, usize),
    (y, width): (Address, usize),
    task: impl Fn(&Context<'_>, usize, usize, &mut [f32]) -> Result<(), DeviceError> + Sync,
) -> Result<(), DeviceError> {
    let positions = pages.positions(context, m)?;
    let longest = positions.iter().flatten().max().map_or(0, |position| position + 1);
    let mut rows = vec![0.0; m * width];
    let reader = &*context;
    let task = |(row, y): (usize, &mut [f32])| match positions[row] {
        Some(position) => task(reader, row, position + 1, y),
        None => Ok(()),
    };
    if rows.len().saturating_mul(longest) >= PARALLEL_WORK {
        rows.par_chunks_exact_mut(width).enumerate().try_for_each(task)?;
    } else {
        rows.chunks_exact_mut(width.max(1)).enumerate().try_for_each(task)?;
    }
    context.put(y, &rows)
}

/// In place, in f32, summed in ascending order.
pub(super) fn softmax(scores: &mut [f32]) {
    softmax_with(scores, None);
}

/// With one more score, whose share is left out.
fn softmax_with(scores: &mut [f32], sink: Option<f32>) {
    let first = sink.unwrap_or(f32::NEG_INFINITY);
    let largest = scores.iter().copied().fold(first, f32::max);
    let mut sum = sink.map_or(0.0, |sink| libm::expf(sink - largest));
    for score in scores.iter_mut() {
        *score = libm::expf(*score - largest);
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}
