//! Norms of q and k heads, where the family has them, and rotary embedding.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::context::element;
use super::norm::{NormWeight, normalise};
use super::{Context, Op};
use crate::device::DeviceError;

/// Rotates the q and k heads of a fused `qkv` in place. The rotation is Hugging Face's
/// `rotate_half`: element `i` pairs with `i + head_dim / 2`. A row at position -1 is padding and
/// stays as it is.
#[derive(Clone, Debug)]
pub struct Rope {
    /// F32 `[m, (q_heads + 2 * kv_heads) * head_dim]`: q heads, k heads, v heads.
    pub qkv: Address,
    /// I32 `[m]`.
    pub positions: Address,
    /// F32 `[max_positions, head_dim]`: the cosines of a position, then its sines.
    pub table: Address,
    /// `[head_dim]`, norm of each q head before the rotation.
    pub q_norm: Option<NormWeight>,
    /// `[head_dim]`, norm of each k head before the rotation.
    pub k_norm: Option<NormWeight>,
    /// Rows (tokens).
    pub m: usize,
    /// Query heads on this rank.
    pub q_heads: usize,
    /// Key (and value) heads on this rank.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Rows of the table.
    pub max_positions: usize,
    /// Of the norms.
    pub eps: f32,
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        if self.q_norm.is_some() { "qk_norm_rope" } else { "rope" }
    }

    fn args(&self) -> Vec<ArgFact> {
        let mut args = Args::default()
            .update(self.qkv, &[self.m, self.width()], WORD_BYTES)
            .read(self.positions, &[self.m], WORD_BYTES)
            .read(self.table, &[self.max_positions, self.head_dim], WORD_BYTES);
        for weight in [self.q_norm, self.k_norm].into_iter().flatten() {
            args = weight.read_by(args, self.head_dim);
        }
        args.done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let head_dim = self.head_dim.max(1);
        context.assert(self.head_dim.is_multiple_of(2), || {
            format!("head_dim {} is odd; rotary embedding pairs elements", self.head_dim)
        })?;
        let norm = |weight: Option<NormWeight>| {
            weight.map(|weight| weight.widened(context, self.head_dim)).transpose()
        };
        let (q_norm, k_norm) = (norm(self.q_norm)?, norm(self.k_norm)?);
        let mut qkv = context.f32s(self.qkv, &[self.m, self.width()])?.to_vec();
        let positions = context.i32s(self.positions, &[self.m])?;
        for (row, &position) in qkv.chunks_exact_mut(self.width().max(1)).zip(positions) {
            if position == -1 {
                continue;
            }
            let angles = element(self.table, i64::from(position), self.head_dim * WORD_BYTES);
            let (cos, sin) = context.f32s(angles, &[self.head_dim])?.split_at(self.head_dim / 2);
            for (head, values) in row.chunks_exact_mut(head_dim).enumerate() {
                let weight = if head < self.q_heads { &q_norm } else { &k_norm };
                if head >= self.q_heads + self.kv_heads {
                    break;
                }
                if let Some(weight) = weight {
                    normalise(values, weight, self.eps);
                }
                rotate(values, cos, sin);
            }
        }
        context.put(self.qkv, &qkv)
    }
}

impl Rope {
    const fn width(&self) -> usize {
        (self.q_heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// Element `i` with `i + head.len() / 2`.
pub(super) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let (a, b) = (*low, *high);
        *low = a * cos - b * sin;
        *high = b * cos + a * sin;
    }
}
