//! The choice of experts by groups.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// Kept from zero, as in transformers.
const TINY: f32 = 1e-20;

/// Sigmoids of all experts in f32; a correction is added for the choice alone. The groups whose two
/// largest corrected scores add up to most are chosen, then the `top_k` largest in them; of equals
/// the lower index. Weights are scores without the correction.
#[derive(Clone, Debug)]
pub struct GroupedTopK {
    /// F32 `[m, experts]`.
    pub logits: Address,
    /// BF16 `[experts]`.
    pub correction: Address,
    /// I32 `[m, top_k]`: the chosen experts.
    pub ids: Address,
    /// F32 `[m, top_k]`: their weights.
    pub weights: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Experts to choose from.
    pub experts: usize,
    /// Experts a row; at most those of the chosen groups.
    pub top_k: usize,
    /// Groups; divides `experts`.
    pub groups: usize,
    /// Groups to choose; at most `groups`.
    pub chosen: usize,
    /// Whether the chosen weights are divided by their sum.
    pub renormalise: bool,
    /// Factor of the chosen weights.
    pub scale: f32,
}

impl Op for GroupedTopK {
    fn name(&self) -> &'static str {
        "grouped_top_k"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.logits, &[self.m, self.experts], WORD_BYTES)
            .read(self.correction, &[self.experts], BF16_BYTES)
            .write(self.ids, &[self.m, self.top_k], WORD_BYTES)
            .write(self.weights, &[self.m, self.top_k], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let Self { experts, groups, chosen, top_k, .. } = *self;
        let even = groups > 0 && experts.is_multiple_of(groups.max(1)) && chosen <= groups;
        context.assert(even && top_k <= experts / groups.max(1) * chosen, || {
            format!("{top_k} of {experts} experts cannot come from {chosen} of {groups} groups")
        })?;
        let logits = context.f32s(self.logits, &[self.m, experts])?;
        let correction = context.bf16s(self.correction, &[experts])?;
        let correction: Vec<f32> = correction.iter().map(|value| value.to_f32()).collect();
        let mut ids: Vec<i32> = Vec::with_capacity(self.m * top_k);
        let mut weights = Vec::with_capacity(self.m * top_k);
        for row in logits.chunks_exact(experts.max(1)) {
            let scores: Vec<f32> = row.iter().map(|&x| 1.0 / (1.0 + libm::expf(-x))).collect();
            let corrected: Vec<f32> = scores.iter().zip(&correction).map(|(s, c)| s + c).collect();
            let experts = self.choose(&corrected);
            let sum: f32 = experts.iter().map(|&expert| scores[expert]).sum();
            let divisor = if self.renormalise { sum + TINY } else { 1.0 };
            ids.extend(experts.iter().map(|&expert| expert as i32));
            weights.extend(experts.iter().map(|&e| scores[e] / divisor * self.scale));
        }
        context.put(self.ids, &ids)?;
        context.put(self.weights, &weights)
    }
}

impl GroupedTopK {
    /// The chosen experts of one row.
    fn choose(&self, corrected: &[f32]) -> Vec<usize> {
        let size = self.experts / self.groups;
        let two = |group: &[f32]| -> f32 {
            let order = descending(group, 0..group.len());
            order.iter().take(2).map(|&index| group[index]).sum()
        };
        let totals: Vec<f32> = corrected.chunks_exact(size.max(1)).map(two).collect();
        let groups = descending(&totals, 0..totals.len());
        let mut open: Vec<usize> = groups
            .iter()
            .take(self.chosen)
            .flat_map(|group| group * size..(group + 1) * size)
            .collect();
        open.sort_unstable();
        let mut chosen = descending(corrected, open.into_iter());
        chosen.truncate(self.top_k);
        chosen
    }
}

/// These indices by descending value. The sort is stable: of equals the lower index stays first.
fn descending(values: &[f32], indices: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut order: Vec<usize> = indices.collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order
}
