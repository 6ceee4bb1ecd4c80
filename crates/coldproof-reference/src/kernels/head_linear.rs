//! One matrix product a head.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::matmul::{InputRows, product};
use super::{Context, Op};
use crate::device::DeviceError;

/// `y[:, h] = x[:, h, ..k] · w[h]`: absorbed matrices, which lead queries into the latent space and
/// attended latents out of it. Every head has all of K.
#[derive(Clone, Debug)]
pub struct HeadLinear {
    /// F32 `[m, heads, width]`; the first `k` columns of each head are read.
    pub x: Address,
    /// BF16 `[heads, k, n]`: inputs before outputs.
    pub w: Address,
    /// F32 `[m, heads, n]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Heads on this rank.
    pub heads: usize,
    /// Width of a head in `x`.
    pub width: usize,
    /// Inputs of a head; at most `width`.
    pub k: usize,
    /// Outputs of a head.
    pub n: usize,
    /// Blocks of `k`.
    pub blocks: usize,
}

impl Op for HeadLinear {
    fn name(&self) -> &'static str {
        "head_linear"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.m, self.heads, self.width], WORD_BYTES)
            .read(self.w, &[self.heads, self.k, self.n], BF16_BYTES)
            .write(self.y, &[self.m, self.heads, self.n], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let Self { m, heads, width, k, n, blocks, .. } = *self;
        context.assert(k <= width, || format!("{k} inputs are beyond a head of {width}"))?;
        let x = context.f32s(self.x, &[m, heads, width])?;
        let w = context.bf16s(self.w, &[heads, k, n])?;
        let mut y = vec![0.0; m * heads * n];
        for (head, elements) in w.chunks_exact((k * n).max(1)).enumerate() {
            let of_head = x.chunks_exact(width.max(1)).skip(head).step_by(heads);
            let inputs: Vec<f32> = of_head.flat_map(|values| &values[..k]).copied().collect();
            let outputs = product(&inputs, k, &InputRows { elements, rows: n }, n, blocks);
            for (row, output) in outputs.chunks_exact(n.max(1)).enumerate() {
                y[(row * heads + head) * n..][..n].copy_from_slice(output);
            }
        }
        context.put(self.y, &y)
    }
}
