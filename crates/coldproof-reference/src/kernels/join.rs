//! Columns of two matrices side by side.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// `y = [a, b]`, row by row.
#[derive(Clone, Debug)]
pub struct Join {
    /// F32 `[m, width]`: the first columns.
    pub a: Address,
    /// F32 `[m, width]`: the last columns.
    pub b: Address,
    /// F32 `[m, 2 * width]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Columns of each.
    pub width: usize,
}

impl Op for Join {
    fn name(&self) -> &'static str {
        "join"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.a, &[self.m, self.width], WORD_BYTES)
            .read(self.b, &[self.m, self.width], WORD_BYTES)
            .write(self.y, &[self.m, 2 * self.width], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let shape = [self.m, self.width];
        let (a, b) = (context.f32s(self.a, &shape)?, context.f32s(self.b, &shape)?);
        let mut y = Vec::with_capacity(a.len() + b.len());
        let width = self.width.max(1);
        for (a, b) in a.chunks_exact(width).zip(b.chunks_exact(width)) {
            y.extend_from_slice(a);
            y.extend_from_slice(b);
        }
        context.put(self.y, &y)
    }
}
