//! Biases of experts.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::context::element;
use super::expert_ranks::ELSEWHERE;
use super::{Context, Op};
use crate::device::DeviceError;

/// The bias of each of a token's chosen experts. Like `ExpertLinear`, it gives zeros for -1
/// and does not check other ids.
#[derive(Clone, Debug)]
pub struct ExpertBias {
    /// I32 `[m, top_k]`.
    pub ids: Address,
    /// BF16 `[experts, n]`.
    pub bias: Address,
    /// F32 `[m, top_k, n]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Experts a token.
    pub top_k: usize,
    /// Experts in the stack.
    pub experts: usize,
    /// Width of a bias.
    pub n: usize,
}

impl Op for ExpertBias {
    fn name(&self) -> &'static str {
        "expert_bias"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.ids, &[self.m, self.top_k], WORD_BYTES)
            .read(self.bias, &[self.experts, self.n], BF16_BYTES)
            .write(self.y, &[self.m, self.top_k, self.n], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let mut y = Vec::with_capacity(self.m * self.top_k * self.n);
        for &expert in context.i32s(self.ids, &[self.m, self.top_k])? {
            if expert == ELSEWHERE {
                y.resize(y.len() + self.n, 0.0);
                continue;
            }
            let address = element(self.bias, i64::from(expert), self.n * BF16_BYTES);
            y.extend(context.bf16s(address, &[self.n])?.iter().map(|bias| bias.to_f32()));
        }
        context.put(self.y, &y)
    }
}
