//! The recurrence of a state-space mixer.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::matmul::dot;
use super::{Context, Op, States};
use crate::device::DeviceError;

/// From here on `log(1 + exp(x))` is `x`, as in torch.
const SOFTPLUS_MAX: f32 = 20.0;

/// For every head: `step = softplus(dt + dt_bias)`, `state = exp(step · a) · state + step · x · b`,
/// `y = state · c + d · x`. Heads of a group share `b` and `c`.
#[derive(Clone, Debug)]
pub struct StateScan {
    /// F32 `[m, heads * head_dim + 2 * groups * state_size]`: x, b, c after the convolution.
    pub x: Address,
    /// F32 `[m, width]`: rows of the projection in, whose last `heads` elements are dt.
    pub projected: Address,
    /// F32 `[heads]`: negative rates of decay.
    pub a: Address,
    /// BF16 `[heads]`: what of x goes past the state.
    pub d: Address,
    /// BF16 `[heads]`.
    pub dt_bias: Address,
    /// States `[heads, head_dim, state_size]`.
    pub states: States,
    /// F32 `[m, heads * head_dim]`; zero for padding.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Elements of a row of `projected`.
    pub width: usize,
    /// Heads on this rank.
    pub heads: usize,
    /// Groups on this rank.
    pub groups: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Elements of a channel's state.
    pub state_size: usize,
}

impl StateScan {
    const fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    const fn convolved(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_size
    }
}

impl Op for StateScan {
    fn name(&self) -> &'static str {
        "state_scan"
    }

    fn args(&self) -> Vec<ArgFact> {
        let args = Args::default()
            .read(self.x, &[self.m, self.convolved()], WORD_BYTES)
            .read(self.projected, &[self.m, self.width], WORD_BYTES)
            .read(self.a, &[self.heads], WORD_BYTES)
            .read(self.d, &[self.heads], BF16_BYTES)
            .read(self.dt_bias, &[self.heads], BF16_BYTES);
        self.states
            .touched_by(args, self.m)
            .write(self.y, &[self.m, self.inner()], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let Self { heads, groups, head_dim, state_size, width, .. } = *self;
        let (inner, convolved) = (self.inner(), self.convolved());
        let fits = heads <= width
            && groups > 0
            && heads.is_multiple_of(groups)
            && self.states.width == inner * state_size;
        context.assert(fits, || format!("{heads} heads of {groups} groups do not fit"))?;
        let x = context.f32s(self.x, &[self.m, convolved])?.to_vec();
        let projected = context.f32s(self.projected, &[self.m, width])?.to_vec();
        let a = context.f32s(self.a, &[heads])?.to_vec();
        let narrow = |context: &Context<'_>, address| -> Result<Vec<f32>, DeviceError> {
            Ok(context.bf16s(address, &[heads])?.iter().map(|value| value.to_f32()).collect())
        };
        let (d, dt_bias) = (narrow(context, self.d)?, narrow(context, self.dt_bias)?);
        let mut y = vec![0.0; self.m * inner];
        self.states.walk(context, self.m, |row, state| {
            let (x, matrices) = x[row * convolved..][..convolved].split_at(inner);
            let (b, c) = matrices.split_at(groups * state_size);
            let dt = &projected[(row + 1) * width - heads..][..heads];
            for head in 0..heads {
                let step = softplus(dt[head] + dt_bias[head]);
                let decay = libm::expf(step * a[head]);
                let first = head / (heads / groups) * state_size;
                let (b, c) = (&b[first..][..state_size], &c[first..][..state_size]);
                for channel in head * head_dim..(head + 1) * head_dim {
                    let state = &mut state[channel * state_size..][..state_size];
                    let input = step * x[channel];
                    state.iter_mut().zip(b).for_each(|(s, b)| *s = *s * decay + input * b);
                    y[row * inner + channel] = dot(state, c) + d[head] * x[channel];
                }
            }
        })?;
        context.put(self.y, &y)
    }
}

fn softplus(value: f32) -> f32 {
    if value > SOFTPLUS_MAX { value } else { libm::log1pf(libm::expf(value)) }
}
