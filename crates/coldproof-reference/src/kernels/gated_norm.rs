//! The norm at the end of a state-space mixer.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::elementwise::silu;
use super::matmul::{dot, tree};
use super::{Context, Op};
use crate::device::DeviceError;

/// `g = x · silu(gate)`, `y = g / sqrt(mean(g²) + eps) · weight`, the mean over each group alone.
///
/// A mean is a sum over eight equal blocks along a balanced tree, so that ranks which share one
/// group own subtrees of it.
#[derive(Clone, Debug)]
pub struct GatedNorm {
    /// F32 `[m, width]`.
    pub x: Address,
    /// F32 `[m, gate_width]`: rows of the projection in, whose first `width` elements are the gate.
    pub gate: Address,
    /// BF16 `[width]`.
    pub weight: Address,
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Channels on this rank.
    pub width: usize,
    /// Elements of a row of `gate`.
    pub gate_width: usize,
    /// Groups on this rank; 1 where the ranks share the only one.
    pub groups: usize,
    /// Blocks of each group on this rank: 8, or 8 / tp where the ranks share it.
    pub blocks: usize,
    /// Ranks that share a group.
    pub sharing: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl Op for GatedNorm {
    fn name(&self) -> &'static str {
        "gated_norm"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.m, self.width], WORD_BYTES)
            .read(self.gate, &[self.m, self.gate_width], WORD_BYTES)
            .read(self.weight, &[self.width], BF16_BYTES)
            .write(self.y, &[self.m, self.width], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let Self { width, gate_width, groups, blocks, .. } = *self;
        let fits = width <= gate_width && groups > 0 && width.is_multiple_of(groups) && blocks > 0;
        context.assert(fits, || format!("{width} channels are not {groups} equal groups"))?;
        let mut y = context.f32s(self.x, &[self.m, width])?.to_vec();
        let gate = context.f32s(self.gate, &[self.m, gate_width])?;
        let gates = gate.chunks_exact(gate_width.max(1));
        for (row, gate) in y.chunks_exact_mut(width.max(1)).zip(gates) {
            row.iter_mut().zip(gate).for_each(|(value, gate)| *value *= silu(*gate));
        }
        let per_group = width / groups;
        let block = per_group.div_ceil(blocks).max(1);
        let squares = |group: &[f32]| {
            let partials: Vec<f32> = group.chunks(block).map(|block| dot(block, block)).collect();
            tree(&partials)
        };
        let mut sums: Vec<f32> = y.chunks_exact(per_group.max(1)).map(squares).collect();
        if self.sharing > 1 {
            let all = context.exchange(sums.clone())?;
            for (index, sum) in sums.iter_mut().enumerate() {
                let ranks: Vec<f32> = all.iter().map(|sums| sums[index]).collect();
                *sum = tree(&ranks);
            }
        }
        let weight = context.bf16s(self.weight, &[width])?;
        let count = (per_group * self.sharing) as f32;
        for (group, (values, sum)) in y.chunks_exact_mut(per_group.max(1)).zip(sums).enumerate() {
            let scale = 1.0 / (sum / count + self.eps).sqrt();
            let weight = &weight[group % groups * per_group..][..per_group];
            values
                .iter_mut()
                .zip(weight)
                .for_each(|(value, w)| *value = *value * scale * w.to_f32());
        }
        context.put(self.y, &y)
    }
}
