//! Kernels that all ranks that cut a layer launch together.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::matmul::tree;
use super::{Context, Op};
use crate::device::DeviceError;

/// Adds the ranks' values in place: the top of the tree whose subtrees the ranks own.
#[derive(Clone, Debug)]
pub struct AllReduce {
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows (tokens, or tokens times experts).
    pub m: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default().update(self.y, &[self.m, self.width], WORD_BYTES).done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let own = context.f32s(self.y, &[self.m, self.width])?.to_vec();
        let all = context.exchange(own)?;
        let mut ranks = vec![0.0; all.len()];
        let sum = |index: usize| {
            ranks.iter_mut().zip(all.iter()).for_each(|(rank, values)| *rank = values[index]);
            tree(&ranks)
        };
        let y: Vec<f32> = (0..self.m * self.width).map(sum).collect();
        context.put(self.y, &y)
    }
}

/// Takes each token's row from the rank that holds its table row, in place: a choice and no sum,
/// so that bits do not depend on the number of ranks.
#[derive(Clone, Debug)]
pub struct SelectRows {
    /// I32 `[m]`: token ids.
    pub ids: Address,
    /// F32 `[m, hidden]`, as `Embed` left it.
    pub y: Address,
    /// Tokens.
    pub m: usize,
    /// Width of a row.
    pub hidden: usize,
    /// Rows of the padded table on each rank.
    pub shard_rows: usize,
}

impl Op for SelectRows {
    fn name(&self) -> &'static str {
        "select_rows"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.ids, &[self.m], WORD_BYTES)
            .update(self.y, &[self.m, self.hidden], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let mut y = context.f32s(self.y, &[self.m, self.hidden])?.to_vec();
        let all = context.exchange(y.clone())?;
        let ids = context.i32s(self.ids, &[self.m])?;
        let rows = y.chunks_exact_mut(self.hidden.max(1));
        for (row, (values, &id)) in rows.zip(ids).enumerate() {
            let owner = usize::try_from(id).ok().and_then(|id| id.checked_div(self.shard_rows));
            let owned = owner.and_then(|owner| all.get(owner));
            context.assert(owned.is_some(), || {
                format!("token {id} is outside the {} table rows", self.shard_rows * all.len())
            })?;
            if let Some(owned) = owned {
                values.copy_from_slice(&owned[row * self.hidden..(row + 1) * self.hidden]);
            }
        }
        context.put(self.y, &y)
    }
}

/// Puts the ranks' columns side by side and drops the padding: logits of a vocabulary.
#[derive(Clone, Debug)]
pub struct Gather {
    /// F32 `[m, shard]`.
    pub x: Address,
    /// F32 `[m, total]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Columns on each rank.
    pub shard: usize,
    /// Columns without padding; at most `shard` times the ranks.
    pub total: usize,
}

impl Op for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.m, self.shard], WORD_BYTES)
            .write(self.y, &[self.m, self.total], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let ranks = context.groups.tensor.ranks();
        context.assert(self.total <= self.shard.saturating_mul(ranks), || {
            format!("{} columns exceed {ranks} shards of {}", self.total, self.shard)
        })?;
        let all = context.exchange(context.f32s(self.x, &[self.m, self.shard])?.to_vec())?;
        let mut y = Vec::with_capacity(self.m * self.total);
        for row in 0..self.m {
            let columns = all.iter().flat_map(|x| &x[row * self.shard..(row + 1) * self.shard]);
            y.extend(columns.take(self.total).copied());
        }
        context.put(self.y, &y)
    }
}
