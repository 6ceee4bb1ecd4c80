//! Kernels that treat each element alone.

use coldproof_checkpoint::arch::Activation;
use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// `sqrt(2 / pi)`, of GELU's approximation with a hyperbolic tangent.
const ROOT: f32 = 0.797_884_6;
/// Of the cube in it.
const CUBIC: f32 = 0.044_715;

/// `y = act(gate) * up` with gate and up side by side in each row.
#[derive(Clone, Debug)]
pub struct GatedMul {
    /// What the gate goes through.
    pub activation: Activation,
    /// F32 `[m, 2 * width]`: gate, then up.
    pub gate_up: Address,
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows (tokens, or tokens times experts).
    pub m: usize,
    /// Width of one half.
    pub width: usize,
}

impl Op for GatedMul {
    fn name(&self) -> &'static str {
        match self.activation {
            Activation::Silu => "silu_mul",
            Activation::GeluTanh => "gelu_mul",
        }
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
        let act = match self.activation {
            Activation::Silu => silu,
            Activation::GeluTanh => gelu,
        };
        let mut y = Vec::with_capacity(gate_up.len() / 2);
        for row in gate_up.chunks_exact((2 * self.width).max(1)) {
            let (gate, up) = row.split_at(self.width);
            y.extend(gate.iter().zip(up).map(|(&gate, &up)| act(gate) * up));
        }
        context.put(self.y, &y)
    }
}

pub(super) fn silu(value: f32) -> f32 {
    value / (1.0 + libm::expf(-value))
}

fn gelu(value: f32) -> f32 {
    let inner = ROOT * (value + CUBIC * value * value * value);
    0.5 * value * (1.0 + libm::tanhf(inner))
}

/// `y = max(x, 0)²`, in place.
#[derive(Clone, Debug)]
pub struct SquaredRelu {
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for SquaredRelu {
    fn name(&self) -> &'static str {
        "squared_relu"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default().update(self.y, &[self.m, self.width], WORD_BYTES).done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let mut y = context.f32s(self.y, &[self.m, self.width])?.to_vec();
        // A NaN stays one: `f32::max` would hide it.
        let squared = |value: f32| if value <= 0.0 { 0.0 } else { value * value };
        y.iter_mut().for_each(|value| *value = squared(*value));
        context.put(self.y, &y)
    }
}

/// `y = a + b`. `y` may be either.
#[derive(Clone, Debug)]
pub struct Add {
    /// F32 `[m, width]`.
    pub a: Address,
    /// F32 `[m, width]`.
    pub b: Address,
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn args(&self) -> Vec<ArgFact> {
        let shape = [self.m, self.width];
        Args::default()
            .read(self.a, &shape, WORD_BYTES)
            .read(self.b, &shape, WORD_BYTES)
            .write(self.y, &shape, WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let a = context.f32s(self.a, &[self.m, self.width])?;
        let b = context.f32s(self.b, &[self.m, self.width])?;
        let y: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
        context.put(self.y, &y)
    }
}

/// Copies bytes within the device.
#[derive(Clone, Debug)]
pub struct Copy {
    /// From here.
    pub source: Address,
    /// To here.
    pub target: Address,
    /// How many bytes.
    pub bytes: usize,
    /// Rows (tokens) that these bytes are of.
    pub rows: usize,
}

impl Op for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.source, &[self.bytes], 1)
            .write(self.target, &[self.bytes], 1)
            .done()
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let bytes = context.u8s(self.source, self.bytes)?.to_vec();
        context.put(self.target, &bytes)
    }
}
