//! Biases of products.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// `y += bias`, row by row, in place. After a row-parallel product it follows the all-reduce, so
/// that a bias is added once whatever the number of ranks.
#[derive(Clone, Debug)]
pub struct AddBias {
    /// F32 `[m, n]`.
    pub y: Address,
    /// BF16 `[n]`.
    pub bias: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of a row.
    pub n: usize,
}

impl Op for AddBias {
    fn name(&self) -> &'static str {
        "add_bias"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .update(self.y, &[self.m, self.n], WORD_BYTES)
            .read(self.bias, &[self.n], BF16_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let mut y = context.f32s(self.y, &[self.m, self.n])?.to_vec();
        let bias = context.bf16s(self.bias, &[self.n])?;
        for row in y.chunks_exact_mut(self.n.max(1)) {
            row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias.to_f32());
        }
        context.put(self.y, &y)
    }
}
