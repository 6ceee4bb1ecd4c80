//! The choice of experts.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::attention::softmax;
use super::{Context, Op};
use crate::device::DeviceError;

/// Softmax over all experts in f32, then the `top_k` largest, largest first; of equals the lower
/// expert id.
#[derive(Clone, Debug)]
pub struct RouterTopK {
    /// F32 `[m, experts]`.
    pub logits: Address,
    /// I32 `[m, top_k]`: the chosen experts.
    pub ids: Address,
    /// F32 `[m, top_k]`: their weights.
    pub weights: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Experts to choose from.
    pub experts: usize,
    /// Experts a row; at most `experts`.
    pub top_k: usize,
    /// Whether the chosen weights are divided by their sum.
    pub renormalise: bool,
}

impl Op for RouterTopK {
    fn name(&self) -> &'static str {
        "router_top_k"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.logits, &[self.m, self.experts], WORD_BYTES)
            .write(self.ids, &[self.m, self.top_k], WORD_BYTES)
            .write(self.weights, &[self.m, self.top_k], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        context.assert(self.top_k <= self.experts, || {
            format!("top_k {} exceeds the {} experts", self.top_k, self.experts)
        })?;
        let mut logits = context.f32s(self.logits, &[self.m, self.experts])?.to_vec();
        let mut ids: Vec<i32> = Vec::with_capacity(self.m * self.top_k);
        let mut weights = Vec::with_capacity(self.m * self.top_k);
        for row in logits.chunks_exact_mut(self.experts.max(1)) {
            softmax(row);
            let mut order: Vec<usize> = (0..row.len()).collect();
            // The sort is stable: of equals the lower id stays first.
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            let chosen = &order[..self.top_k];
            let sum: f32 =
                if self.renormalise { chosen.iter().map(|&e| row[e]).sum() } else { 1.0 };
            ids.extend(chosen.iter().map(|&expert| expert as i32));
            weights.extend(chosen.iter().map(|&expert| row[expert] / sum));
        }
        context.put(self.ids, &ids)?;
        context.put(self.weights, &weights)
    }
}
