//! Root-mean-square norm.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::matmul::dot;
use super::{Context, Op};
use crate::device::DeviceError;

/// A norm's weight, by its element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormWeight {
    /// BF16 `[hidden]`.
    Bf16(Address),
    /// BF16 `[hidden]`, stored less one.
    LessOne(Address),
    /// F32 `[hidden]`.
    F32(Address),
}

/// `y = x / sqrt(mean(x²) + eps) * weight`, row by row. `y` may be `x`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// F32 `[m, hidden]`.
    pub x: Address,
    /// The weight.
    pub weight: NormWeight,
    /// F32 `[m, hidden]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of a row.
    pub hidden: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        match self.weight {
            NormWeight::Bf16(_) => "rms_norm",
            NormWeight::LessOne(_) => "rms_norm_less_one",
            NormWeight::F32(_) => "rms_norm_f32",
        }
    }

    fn args(&self) -> Vec<ArgFact> {
        let args = Args::default().read(self.x, &[self.m, self.hidden], WORD_BYTES);
        self.weight
            .read_by(args, self.hidden)
            .write(self.y, &[self.m, self.hidden], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let mut y = context.f32s(self.x, &[self.m, self.hidden])?.to_vec();
        let weight = self.weight.widened(context, self.hidden)?;
        for row in y.chunks_exact_mut(self.hidden.max(1)) {
            normalise(row, &weight, self.eps);
        }
        context.put(self.y, &y)
    }
}

impl NormWeight {
    /// Adds the weight to what a kernel reads.
    pub(super) fn read_by(self, args: Args, hidden: usize) -> Args {
        match self {
            Self::Bf16(address) | Self::LessOne(address) => {
                args.read(address, &[hidden], BF16_BYTES)
            }
            Self::F32(address) => args.read(address, &[hidden], WORD_BYTES),
        }
    }

    /// The weight in registers: one vector, not a matrix.
    pub(super) fn widened(
        self,
        context: &Context<'_>,
        hidden: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        Ok(match self {
            Self::Bf16(address) => {
                context.bf16s(address, &[hidden])?.iter().map(|w| w.to_f32()).collect()
            }
            Self::LessOne(address) => {
                context.bf16s(address, &[hidden])?.iter().map(|w| 1.0 + w.to_f32()).collect()
            }
            Self::F32(address) => context.f32s(address, &[hidden])?.to_vec(),
        })
    }
}

/// Norms one row in place.
pub(super) fn normalise(row: &mut [f32], weight: &[f32], eps: f32) {
    let mean = dot(row, row) / row.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    row.iter_mut().zip(weight).for_each(|(value, weight)| *value = *value * scale * weight);
}
