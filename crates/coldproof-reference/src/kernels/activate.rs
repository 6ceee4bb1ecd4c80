//! What the outputs of an encoder's projection go through.

use coldproof_checkpoint::arch::EncoderActivation;
use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// `y = act(y)` in place, element by element.
#[derive(Clone, Debug)]
pub struct Activate {
    /// Which.
    pub activation: EncoderActivation,
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows.
    pub m: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for Activate {
    fn name(&self) -> &'static str {
        match self.activation {
            EncoderActivation::QuickGelu => "quick_gelu",
            EncoderActivation::Gelu => "gelu",
        }
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default().update(self.y, &[self.m, self.width], WORD_BYTES).done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let act = match self.activation {
            EncoderActivation::QuickGelu => quick_gelu,
            EncoderActivation::Gelu => gelu,
        };
        let mut y = context.f32s(self.y, &[self.m, self.width])?.to_vec();
        y.iter_mut().for_each(|value| *value = act(*value));
        context.put(self.y, &y)
    }
}

fn quick_gelu(value: f32) -> f32 {
    value / (1.0 + libm::expf(-1.702 * value))
}

fn gelu(value: f32) -> f32 {
    0.5 * value * (1.0 + libm::erff(value * std::f32::consts::FRAC_1_SQRT_2))
}
