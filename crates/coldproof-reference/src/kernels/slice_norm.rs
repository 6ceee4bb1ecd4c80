//! Root-mean-square norm of some columns of each row.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::norm::{NormWeight, normalise};
use super::{Context, Op};
use crate::device::DeviceError;

/// `y = c / sqrt(mean(c²) + eps) * weight` for columns `first..first + n` of each row: one of
/// several products that a fused projection left side by side.
#[derive(Clone, Debug)]
pub struct SliceNorm {
    /// F32 `[m, width]`.
    pub x: Address,
    /// BF16 `[n]`.
    pub weight: Address,
    /// F32 `[m, n]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of a row.
    pub width: usize,
    /// The first column.
    pub first: usize,
    /// Columns.
    pub n: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl Op for SliceNorm {
    fn name(&self) -> &'static str {
        "slice_rms_norm"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.m, self.width], WORD_BYTES)
            .read(self.weight, &[self.n], BF16_BYTES)
            .write(self.y, &[self.m, self.n], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let columns = self.first..self.first.saturating_add(self.n);
        context.assert(columns.end <= self.width, || {
            format!("columns {columns:?} are beyond a row of {}", self.width)
        })?;
        let x = context.f32s(self.x, &[self.m, self.width])?;
        let weight = NormWeight::Bf16(self.weight).widened(context, self.n)?;
        let mut y = Vec::with_capacity(self.m * self.n);
        for row in x.chunks_exact(self.width.max(1)) {
            let mut row = row[columns.clone()].to_vec();
            normalise(&mut row, &weight, self.eps);
            y.extend(row);
        }
        context.put(self.y, &y)
    }
}
