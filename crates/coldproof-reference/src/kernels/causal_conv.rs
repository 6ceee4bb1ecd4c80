//! The short causal convolution of a state-space mixer.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::elementwise::silu;
use super::{Context, Op, States};
use crate::device::DeviceError;

/// `y = silu(bias + Σ w[tap] · x[position - taps + 1 + tap])`, channel by channel, in the order of
/// taps. The state of a sequence is its last `taps - 1` inputs, the oldest first.
#[derive(Clone, Debug)]
pub struct CausalConv {
    /// F32 `[m, width]`: rows of the projection in.
    pub x: Address,
    /// BF16 `[channels, taps]`.
    pub weight: Address,
    /// BF16 `[channels]`.
    pub bias: Option<Address>,
    /// Last inputs; [`States::width`] is `channels * (taps - 1)`.
    pub states: States,
    /// F32 `[m, channels]`; zero for padding.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Elements of a row of `x`.
    pub width: usize,
    /// The first of them that is convolved.
    pub first: usize,
    /// Channels on this rank.
    pub channels: usize,
    /// Positions that an output sees.
    pub taps: usize,
}

impl Op for CausalConv {
    fn name(&self) -> &'static str {
        "causal_conv"
    }

    fn args(&self) -> Vec<ArgFact> {
        let args = Args::default().read(self.x, &[self.m, self.width], WORD_BYTES).read(
            self.weight,
            &[self.channels, self.taps],
            BF16_BYTES,
        );
        let args = match self.bias {
            Some(bias) => args.read(bias, &[self.channels], BF16_BYTES),
            None => args,
        };
        self.states
            .touched_by(args, self.m)
            .write(self.y, &[self.m, self.channels], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let Self { channels, taps, .. } = *self;
        let x = context.f32s(self.x, &[self.m, self.width])?.to_vec();
        let weight = context.bf16s(self.weight, &[channels, taps])?;
        let weight: Vec<f32> = weight.iter().map(|w| w.to_f32()).collect();
        let bias = match self.bias {
            Some(bias) => context.bf16s(bias, &[channels])?.iter().map(|b| b.to_f32()).collect(),
            None => vec![0.0; channels],
        };
        let mut y = vec![0.0; self.m * channels];
        let fits =
            self.first + channels <= self.width && self.states.width == channels * (taps - 1);
        context
            .assert(fits, || format!("{channels} channels do not fit rows of {}", self.width))?;
        self.states.walk(context, self.m, |row, state| {
            let x = &x[row * self.width + self.first..][..channels];
            let y = &mut y[row * channels..][..channels];
            for (channel, (x, y)) in x.iter().zip(y).enumerate() {
                let w = &weight[channel * taps..][..taps];
                let past = &mut state[channel * (taps - 1)..][..taps - 1];
                let mut sum = bias[channel];
                for (w, input) in w.iter().zip(past.iter().chain([x])) {
                    sum += w * input;
                }
                *y = silu(sum);
                past.rotate_left(usize::from(taps > 1));
                if let Some(last) = past.last_mut() {
                    *last = *x;
                }
            }
        })?;
        context.put(self.y, &y)
    }
}
