//! Stacked experts in packed order.

use std::collections::BTreeMap;

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::context::element;
use super::expert_ranks::ELSEWHERE;
use super::matmul::{InputPanels, Panels, product};
use super::{Context, Op};
use crate::device::DeviceError;

/// Which of an expert's two products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertStage {
    /// From the token to gate and up: `x` is F32 `[m, k]`.
    GateUp,
    /// From the expert's inner row back: `x` is F32 `[m, top_k, k]`.
    Down,
}

/// Which axis of an expert's matrix comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertOrder {
    /// `[n, k]` in panels of 16 inputs.
    OutputsFirst,
    /// `[k, n]` in panels of 16 outputs.
    InputsFirst,
}

/// The product of each token with each of its chosen experts, kept apart by expert: an expert's
/// output is completed over ranks before experts are added. An id of -1 is an expert of another
/// rank, and gives zeros. Other ids are not checked, as on a device: a wrong one reads whatever
/// lies there.
#[derive(Clone, Debug)]
pub struct ExpertLinear {
    /// Which product, and so the shape of `x`.
    pub stage: ExpertStage,
    /// F32, see [`ExpertStage`].
    pub x: Address,
    /// I32 `[m, top_k]`.
    pub ids: Address,
    /// BF16 `[experts, n, k]` or `[experts, k, n]`, see [`ExpertOrder`].
    pub w: Address,
    /// Which of them.
    pub order: ExpertOrder,
    /// F32 `[m, top_k, n]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Experts a token.
    pub top_k: usize,
    /// Experts in the stack.
    pub experts: usize,
    /// Inputs on this rank.
    pub k: usize,
    /// Outputs on this rank.
    pub n: usize,
    /// Blocks of `k` on this rank: 8, or 8 / tp in [`ExpertStage::Down`].
    pub blocks: usize,
}

/// The pairs of each expert on this rank.
pub(super) fn by_expert(ids: &[i32]) -> BTreeMap<i32, Vec<usize>> {
    let mut pairs: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (pair, &expert) in ids.iter().enumerate().filter(|(_, expert)| **expert != ELSEWHERE) {
        pairs.entry(expert).or_default().push(pair);
    }
    pairs
}

impl Op for ExpertLinear {
    fn name(&self) -> &'static str {
        match self.stage {
            ExpertStage::GateUp => "moe_gate_up",
            ExpertStage::Down => "moe_down",
        }
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.x_rows(), self.k], WORD_BYTES)
            .read(self.ids, &[self.m, self.top_k], WORD_BYTES)
            .read(self.w, &[self.experts, self.n, self.k], BF16_BYTES)
            .write(self.y, &[self.m, self.top_k, self.n], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let x = context.f32s(self.x, &[self.x_rows(), self.k])?;
        let pairs = by_expert(context.i32s(self.ids, &[self.m, self.top_k])?);
        let mut y = vec![0.0; self.m * self.top_k * self.n];
        for (expert, pairs) in pairs {
            let matrix = self.n.saturating_mul(self.k).saturating_mul(BF16_BYTES);
            let address = element(self.w, i64::from(expert), matrix);
            let elements = context.bf16s(address, &[self.n, self.k])?;
            let inputs: Vec<f32> =
                pairs.iter().flat_map(|&pair| self.input(x, pair)).copied().collect();
            let (rows, columns, blocks) = (self.n, self.k, self.blocks);
            let outputs = match self.order {
                ExpertOrder::OutputsFirst => {
                    product(&inputs, columns, &Panels { elements, rows, columns }, rows, blocks)
                }
                ExpertOrder::InputsFirst => {
                    let weights = InputPanels { elements, rows, columns };
                    product(&inputs, columns, &weights, rows, blocks)
                }
            };
            for (&pair, output) in pairs.iter().zip(outputs.chunks_exact(self.n.max(1))) {
                y[pair * self.n..(pair + 1) * self.n].copy_from_slice(output);
            }
        }
        context.put(self.y, &y)
    }
}

impl ExpertLinear {
    const fn x_rows(&self) -> usize {
        match self.stage {
            ExpertStage::GateUp => self.m,
            ExpertStage::Down => self.m.saturating_mul(self.top_k),
        }
    }

    fn input<'a>(&self, x: &'a [f32], pair: usize) -> &'a [f32] {
        let row = match self.stage {
            ExpertStage::GateUp => pair / self.top_k,
            ExpertStage::Down => pair,
        };
        &x[row * self.k..(row + 1) * self.k]
    }
}

/// `y = Σ weight · x` over a token's experts, in ascending expert id.
#[derive(Clone, Debug)]
pub struct MoeCombine {
    /// F32 `[m, top_k, hidden]`: complete outputs of the experts.
    pub x: Address,
    /// I32 `[m, top_k]`.
    pub ids: Address,
    /// F32 `[m, top_k]`.
    pub weights: Address,
    /// F32 `[m, hidden]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Experts a token.
    pub top_k: usize,
    /// Width of a row.
    pub hidden: usize,
}

impl Op for MoeCombine {
    fn name(&self) -> &'static str {
        "moe_combine"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.m, self.top_k, self.hidden], WORD_BYTES)
            .read(self.ids, &[self.m, self.top_k], WORD_BYTES)
            .read(self.weights, &[self.m, self.top_k], WORD_BYTES)
            .write(self.y, &[self.m, self.hidden], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let x = context.f32s(self.x, &[self.m, self.top_k, self.hidden])?;
        let ids = context.i32s(self.ids, &[self.m, self.top_k])?;
        let weights = context.f32s(self.weights, &[self.m, self.top_k])?;
        let mut y = vec![0.0; self.m * self.hidden];
        for (row, y) in y.chunks_exact_mut(self.hidden.max(1)).enumerate() {
            let first = row * self.top_k;
            let mut pairs: Vec<usize> = (first..first + self.top_k).collect();
            pairs.sort_by_key(|&pair| ids[pair]);
            for pair in pairs {
                let x = &x[pair * self.hidden..(pair + 1) * self.hidden];
                y.iter_mut().zip(x).for_each(|(y, x)| *y += weights[pair] * x);
            }
        }
        context.put(self.y, &y)
    }
}
