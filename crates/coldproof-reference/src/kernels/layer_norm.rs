//! Norm to mean 0 and variance 1.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::matmul::dot;
use super::{Context, Op};
use crate::device::DeviceError;

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias`, row by row. `y` may be `x`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// F32 `[m, width]`.
    pub x: Address,
    /// BF16 `[width]`.
    pub weight: Address,
    /// BF16 `[width]`.
    pub bias: Address,
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows.
    pub m: usize,
    /// Width of a row.
    pub width: usize,
    /// Added to the variance.
    pub eps: f32,
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.m, self.width], WORD_BYTES)
            .read(self.weight, &[self.width], BF16_BYTES)
            .read(self.bias, &[self.width], BF16_BYTES)
            .write(self.y, &[self.m, self.width], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let mut y = context.f32s(self.x, &[self.m, self.width])?.to_vec();
        let weight = context.bf16s(self.weight, &[self.width])?;
        let bias = context.bf16s(self.bias, &[self.width])?;
        let ones = vec![1.0; self.width];
        for row in y.chunks_exact_mut(self.width.max(1)) {
            let mean = dot(row, &ones) / self.width as f32;
            row.iter_mut().for_each(|value| *value -= mean);
            let scale = 1.0 / (dot(row, row) / self.width as f32 + self.eps).sqrt();
            for ((value, weight), bias) in row.iter_mut().zip(weight).zip(bias) {
                *value = *value * scale * weight.to_f32() + bias.to_f32();
            }
        }
        context.put(self.y, &y)
    }
}
