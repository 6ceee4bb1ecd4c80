//! The two products of a LoRA adapter, and their addition to the base model's.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::context::element;
use super::experts::by_expert;
use super::matmul::{Plain, product};
use super::{Context, ExpertStage, Op};
use crate::device::DeviceError;

/// The chosen experts of a batch, each with factors of its own.
#[derive(Clone, Copy, Debug)]
pub struct ExpertPairs {
    /// Which of an expert's products is adapted, and so the rows of its input.
    pub stage: ExpertStage,
    /// I32 `[m, top_k]`: places in the stack, or -1 where the expert is on another rank.
    pub ids: Address,
    /// Experts a token.
    pub top_k: usize,
    /// Experts in the stack.
    pub experts: usize,
}

/// `t = A x`, to the few columns of a rank. Of pairs of token and expert, each with its expert's A;
/// zeros where that is on another rank.
#[derive(Clone, Debug)]
pub struct LoraShrink {
    /// F32 `[m, k]`, or what [`ExpertStage`] says.
    pub x: Address,
    /// BF16 `[rank, k]`, or `[experts, rank, k]`.
    pub a: Address,
    /// F32 `[m, rank]`, or `[m, top_k, rank]`.
    pub t: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Inputs on this rank.
    pub k: usize,
    /// Columns of the adapter.
    pub rank: usize,
    /// Blocks of `k` on this rank, as in the product of the base model.
    pub blocks: usize,
    /// Where experts are adapted.
    pub pairs: Option<ExpertPairs>,
}

/// `y += scale · B t` in `n` of the columns of `y`. Pairs whose expert is on another rank stay.
#[derive(Clone, Debug)]
pub struct LoraExpand {
    /// F32 `[m, rank]`, or `[m, top_k, rank]`: complete over the ranks.
    pub t: Address,
    /// BF16 `[n, rank]`, or `[experts, n, rank]`.
    pub b: Address,
    /// F32 `[1]`, read at each launch.
    pub scale: Address,
    /// F32 `[m, width]`, or `[m, top_k, width]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Columns of the adapter.
    pub rank: usize,
    /// Outputs of B on this rank.
    pub n: usize,
    /// The column of `y` that the first of them is added to.
    pub at: usize,
    /// Columns of `y`.
    pub width: usize,
    /// Where experts are adapted.
    pub pairs: Option<ExpertPairs>,
}

/// Rows of a batch, or of its pairs.
fn rows(m: usize, pairs: Option<ExpertPairs>) -> usize {
    pairs.map_or(m, |pairs| m.saturating_mul(pairs.top_k))
}

/// `args` with the chosen experts, where there are any.
fn with_ids(args: Args, m: usize, pairs: Option<ExpertPairs>) -> Vec<ArgFact> {
    match pairs {
        Some(pairs) => args.read(pairs.ids, &[m, pairs.top_k], WORD_BYTES).done(),
        None => args.done(),
    }
}

/// The shape of one factor, or of those of all experts.
fn stack(pairs: Option<ExpertPairs>, n: usize, k: usize) -> Vec<usize> {
    pairs.map(|pairs| pairs.experts).into_iter().chain([n, k]).collect()
}

/// Numbers of rows, and their values, row after row.
type Rows = (Vec<usize>, Vec<f32>);

/// A factor, `[n, k]`, one alone or one an expert.
struct Factor {
    w: Address,
    n: usize,
    k: usize,
    blocks: usize,
}

impl Factor {
    /// `x · wᵀ` of these rows of `x`, the expert's own where `expert` is one.
    fn of(
        &self,
        context: &Context<'_>,
        x: &[f32],
        expert: Option<i32>,
    ) -> Result<Vec<f32>, DeviceError> {
        let bytes = self.n.saturating_mul(self.k).saturating_mul(BF16_BYTES);
        let address = expert.map_or(self.w, |expert| element(self.w, i64::from(expert), bytes));
        let elements = context.bf16s(address, &[self.n, self.k])?;
        Ok(product(x, self.k, &Plain { elements, columns: self.k }, self.n, self.blocks))
    }

    /// The rows of `y` that it gives. A row of `y` is that row of `x`, or its token's where
    /// `of_tokens` is set.
    fn rows(
        &self,
        context: &Context<'_>,
        x: &[f32],
        (m, pairs): (usize, Option<ExpertPairs>),
        of_tokens: bool,
    ) -> Result<Vec<Rows>, DeviceError> {
        let Some(pairs) = pairs else {
            return Ok(vec![((0..m).collect(), self.of(context, x, None)?)]);
        };
        let chosen = by_expert(context.i32s(pairs.ids, &[m, pairs.top_k])?);
        let of = |(expert, of_expert): (i32, Vec<usize>)| {
            let row = |pair: usize| if of_tokens { pair / pairs.top_k } else { pair };
            let inputs: Vec<f32> = of_expert
                .iter()
                .flat_map(|&pair| &x[row(pair) * self.k..(row(pair) + 1) * self.k])
                .copied()
                .collect();
            let values = self.of(context, &inputs, Some(expert))?;
            Ok((of_expert, values))
        };
        chosen.into_iter().map(of).collect()
    }
}

impl Op for LoraShrink {
    fn name(&self) -> &'static str {
        if self.pairs.is_some() { "moe_lora_shrink" } else { "lora_shrink" }
    }

    fn args(&self) -> Vec<ArgFact> {
        let args = Args::default()
            .read(self.x, &[self.x_rows(), self.k], WORD_BYTES)
            .read(self.a, &stack(self.pairs, self.rank, self.k), BF16_BYTES)
            .write(self.t, &[rows(self.m, self.pairs), self.rank], WORD_BYTES);
        with_ids(args, self.m, self.pairs)
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let x = context.f32s(self.x, &[self.x_rows(), self.k])?;
        let factor = Factor { w: self.a, n: self.rank, k: self.k, blocks: self.blocks };
        let found = factor.rows(context, x, (self.m, self.pairs), self.of_tokens())?;
        let mut t = vec![0.0; rows(self.m, self.pairs) * self.rank];
        for (rows, values) in found {
            for (row, values) in rows.into_iter().zip(values.chunks_exact(self.rank.max(1))) {
                t[row * self.rank..(row + 1) * self.rank].copy_from_slice(values);
            }
        }
        context.put(self.t, &t)
    }
}

impl LoraShrink {
    fn of_tokens(&self) -> bool {
        self.pairs.is_some_and(|pairs| pairs.stage == ExpertStage::GateUp)
    }

    fn x_rows(&self) -> usize {
        if self.of_tokens() { self.m } else { rows(self.m, self.pairs) }
    }
}

impl Op for LoraExpand {
    fn name(&self) -> &'static str {
        if self.pairs.is_some() { "moe_lora_expand" } else { "lora_expand" }
    }

    fn args(&self) -> Vec<ArgFact> {
        let rows = rows(self.m, self.pairs);
        let args = Args::default()
            .read(self.t, &[rows, self.rank], WORD_BYTES)
            .read(self.b, &stack(self.pairs, self.n, self.rank), BF16_BYTES)
            .read(self.scale, &[1], WORD_BYTES)
            .update(self.y, &[rows, self.width], WORD_BYTES);
        with_ids(args, self.m, self.pairs)
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let all = rows(self.m, self.pairs);
        let end = self.at.saturating_add(self.n);
        context.assert(end <= self.width, || {
            format!("columns {}..{end} are outside the {} of y", self.at, self.width)
        })?;
        let t = context.f32s(self.t, &[all, self.rank])?;
        let scale: f32 = context.f32s(self.scale, &[1])?.iter().sum();
        let factor = Factor { w: self.b, n: self.n, k: self.rank, blocks: 1 };
        let found = factor.rows(context, t, (self.m, self.pairs), false)?;
        let mut y = context.f32s(self.y, &[all, self.width])?.to_vec();
        for (rows, values) in found {
            for (row, values) in rows.into_iter().zip(values.chunks_exact(self.n.max(1))) {
                let first = row * self.width + self.at;
                let columns = &mut y[first..first + self.n];
                columns.iter_mut().zip(values).for_each(|(y, value)| *y += scale * value);
            }
        }
        context.put(self.y, &y)
    }
}
