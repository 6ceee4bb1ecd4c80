//! One factor for all elements.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// `y *= factor` in place; the factor is read at each launch.
#[derive(Clone, Debug)]
pub struct Scale {
    /// F32 `[m, width]`.
    pub y: Address,
    /// F32 `[1]`.
    pub factor: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .update(self.y, &[self.m, self.width], WORD_BYTES)
            .read(self.factor, &[1], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let factor: f32 = context.f32s(self.factor, &[1])?.iter().sum();
        let mut y = context.f32s(self.y, &[self.m, self.width])?.to_vec();
        y.iter_mut().for_each(|value| *value *= factor);
        context.put(self.y, &y)
    }
}
