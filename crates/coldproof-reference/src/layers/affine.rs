//! A projection with a bias.

use coldproof_contract::words::Address;

use super::{Forward, LayerError};
use crate::kernels::{AddBias, AllReduce, Linear};
use crate::loader::{Shard, Target};
use crate::models::{Builder, Dims, Names};
use crate::slots::SlotId;

/// `y = x · wᵀ + b`, cut over ranks by its outputs or by its inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine {
    weight: SlotId,
    bias: SlotId,
    /// Inputs on this rank.
    k: usize,
    /// Outputs on this rank.
    n: usize,
    /// The ranks whose partial sums make up the outputs, where inputs are cut.
    summed: Option<Shard>,
}

impl Affine {
    /// A projection of `[outputs, inputs]` whose outputs are cut.
    pub(crate) fn column(
        builder: &mut Builder<'_>,
        names: Names,
        path: &str,
        [n, k]: [u64; 2],
        shard: Shard,
    ) -> Self {
        let local = n / shard.ranks;
        let mut declare = |kind: &str, full: &[u64], own: &[u64]| {
            let name = format!("{path}.{kind}");
            let slot = names.parameter(builder, &name, own);
            names.source(builder, (&name, full), slot, (Target::Column, shard));
            slot
        };
        let weight = declare("weight", &[n, k], &[local, k]);
        let bias = declare("bias", &[n], &[local]);
        Self { weight, bias, k: k as usize, n: local as usize, summed: None }
    }

    /// A projection of `[outputs, inputs]` whose inputs are cut.
    pub(crate) fn row(
        builder: &mut Builder<'_>,
        names: Names,
        path: &str,
        [n, k]: [u64; 2],
        shard: Shard,
    ) -> Self {
        let local = k / shard.ranks;
        let name = format!("{path}.weight");
        let weight = names.parameter(builder, &name, &[n, local]);
        names.source(builder, (&name, &[n, k]), weight, (Target::Row, shard));
        let bias = names.replicated(builder, &format!("{path}.bias"), &[n]);
        Self { weight, bias, k: local as usize, n: n as usize, summed: Some(shard) }
    }

    /// Projections of `[outputs, inputs]` each, one after the other in one slot: each one's outputs
    /// are cut.
    pub(crate) fn fused(
        builder: &mut Builder<'_>,
        names: Names,
        (path, parts): (&str, &[&str]),
        [n, k]: [u64; 2],
        shard: Shard,
    ) -> Self {
        let (owner, _) = path.rsplit_once('.').unwrap_or(("", path));
        let rows = parts.len() as u64 * (n / shard.ranks);
        let mut declare = |kind: &str, full: &[u64], own: &[u64]| {
            let slot = names.parameter(builder, &format!("{path}.{kind}"), own);
            for (part, source) in (0..).zip(parts) {
                let name = format!("{owner}.{source}.{kind}");
                names.source(builder, (&name, full), slot, (Target::Fused { part }, shard));
            }
            slot
        };
        let weight = declare("weight", &[n, k], &[rows, k]);
        let bias = declare("bias", &[n], &[rows]);
        Self { weight, bias, k: k as usize, n: rows as usize, summed: None }
    }

    /// Outputs on this rank.
    pub(crate) const fn outputs(&self) -> usize {
        self.n
    }

    /// `m` rows; where inputs are cut, complete over the ranks.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        m: usize,
    ) -> Result<Address, LayerError> {
        let Self { k, n, .. } = *self;
        let y = forward.buffer(m, n, "projected")?;
        let w = forward.slots.address(self.weight)?;
        let blocks = self.summed.map_or_else(Dims::full_blocks, Dims::row_blocks);
        forward.launch(Linear { x, w, y, m, k, n, blocks })?;
        if self.summed.is_some_and(|shard| shard.ranks > 1) {
            forward.launch(AllReduce { y, m, width: n })?;
        }
        let bias = forward.slots.address(self.bias)?;
        forward.launch(AddBias { y, bias, m, n })?;
        Ok(y)
    }
}
