//! Attention of every row to every row, without a cache.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::attention::softmax;
use super::matmul::dot;
use super::{Context, Op};
use crate::device::DeviceError;

/// Each head of each row over all rows, in ascending order.
#[derive(Clone, Debug)]
pub struct EncoderAttention {
    /// F32 `[m, 3 * heads * head_dim]`: q heads, k heads, v heads.
    pub qkv: Address,
    /// F32 `[m, heads * head_dim]`.
    pub y: Address,
    /// Rows.
    pub m: usize,
    /// Heads on this rank.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
}

impl EncoderAttention {
    const fn width(&self) -> usize {
        self.heads * self.head_dim
    }
}

impl Op for EncoderAttention {
    fn name(&self) -> &'static str {
        "encoder_attention"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.qkv, &[self.m, 3, self.width()], WORD_BYTES)
            .write(self.y, &[self.m, self.width()], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let width = self.width();
        let qkv = context.f32s(self.qkv, &[self.m, 3, width])?;
        let vector = |row: usize, part: usize, head: usize| {
            &qkv[row * 3 * width + part * width + head * self.head_dim..][..self.head_dim]
        };
        let mut y = vec![0.0; self.m * width];
        let mut scores = vec![0.0; self.m];
        for (at, out) in y.chunks_exact_mut(self.head_dim.max(1)).enumerate() {
            let (row, head) = (at / self.heads, at % self.heads);
            for (other, score) in scores.iter_mut().enumerate() {
                *score = dot(vector(row, 0, head), vector(other, 1, head)) * self.scale;
            }
            softmax(&mut scores);
            for (other, &score) in scores.iter().enumerate() {
                let values = vector(other, 2, head);
                out.iter_mut().zip(values).for_each(|(out, value)| *out += score * value);
            }
        }
        context.put(self.y, &y)
    }
}
