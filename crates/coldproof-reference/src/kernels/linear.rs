//! Matrix product with row-major weights.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::matmul::{Plain, product};
use super::{Context, Op};
use crate::device::DeviceError;

/// `y = x · wᵀ`. Column-parallel layers have all of K and 8 blocks; row-parallel layers have a
/// rank's share of K and of the 8 blocks, and an all-reduce after them.
#[derive(Clone, Debug)]
pub struct Linear {
    /// F32 `[m, k]`.
    pub x: Address,
    /// BF16 `[n, k]`.
    pub w: Address,
    /// F32 `[m, n]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Inputs on this rank.
    pub k: usize,
    /// Outputs on this rank.
    pub n: usize,
    /// Blocks of `k` on this rank: 8, or 8 / tp where the layer is row-parallel.
    pub blocks: usize,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.m, self.k], WORD_BYTES)
            .read(self.w, &[self.n, self.k], BF16_BYTES)
            .write(self.y, &[self.m, self.n], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let x = context.f32s(self.x, &[self.m, self.k])?;
        let elements = context.bf16s(self.w, &[self.n, self.k])?;
        let weights = Plain { elements, columns: self.k };
        let y = product(x, self.k, &weights, self.n, self.blocks);
        context.put(self.y, &y)
    }
}
