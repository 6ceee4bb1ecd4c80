//! The gate of a projection through GELU.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// `sqrt(2 / pi)`.
const ROOT: f32 = 0.797_884_6;
/// Of the cube.
const CUBIC: f32 = 0.044_715;

/// `y = gelu(gate) * up` with gate and up side by side in each row, and GELU by its approximation
/// with a hyperbolic tangent.
#[derive(Clone, Debug)]
pub struct GeluMul {
    /// F32 `[m, 2 * width]`: gate, then up.
    pub gate_up: Address,
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of one half.
    pub width: usize,
}

impl Op for GeluMul {
    fn name(&self) -> &'static str {
        "gelu_mul"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.gate_up, &[self.m, 2, self.width], WORD_BYTES)
            .write(self.y, &[self.m, self.width], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let gate_up = context.f32s(self.gate_up, &[self.m, 2, self.width])?;
        let mut y = Vec::with_capacity(gate_up.len() / 2);
        for row in gate_up.chunks_exact((2 * self.width).max(1)) {
            let (gate, up) = row.split_at(self.width);
            y.extend(gate.iter().zip(up).map(|(&gate, &up)| gelu(gate) * up));
        }
        context.put(self.y, &y)
    }
}

fn gelu(value: f32) -> f32 {
    let inner = ROOT * (value + CUBIC * value * value * value);
    0.5 * value * (1.0 + libm::tanhf(inner))
}
