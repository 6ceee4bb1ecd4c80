//! A clamped gate.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// `y = (up + 1) * gate * sigmoid(alpha * gate)`, the gate at most `limit` and up within
/// `-limit..limit`. Gate and up take turns in a row.
#[derive(Clone, Debug)]
pub struct ClampedSwiglu {
    /// F32 `[m, 2 * width]`: gate, up, gate, up.
    pub gate_up: Address,
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows (tokens times experts).
    pub m: usize,
    /// Pairs of a row.
    pub width: usize,
    /// Of the sigmoid.
    pub alpha: f32,
    /// Of both.
    pub limit: f32,
}

impl Op for ClampedSwiglu {
    fn name(&self) -> &'static str {
        "clamped_swiglu"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.gate_up, &[self.m, self.width, 2], WORD_BYTES)
            .write(self.y, &[self.m, self.width], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let gate_up = context.f32s(self.gate_up, &[self.m, self.width, 2])?;
        let (pairs, _) = gate_up.as_chunks::<2>();
        let y: Vec<f32> = pairs.iter().map(|&[gate, up]| self.gated(gate, up)).collect();
        context.put(self.y, &y)
    }
}

impl ClampedSwiglu {
    fn gated(&self, gate: f32, up: f32) -> f32 {
        // A NaN stays one in both.
        let gate = if gate > self.limit { self.limit } else { gate };
        let up = if up > self.limit {
            self.limit
        } else if up < -self.limit {
            -self.limit
        } else {
            up
        };
        (up + 1.0) * (gate / (1.0 + libm::expf(-self.alpha * gate)))
    }
}
