//! What a request's adapter adds to the products of the base model.

use coldproof_contract::words::Address;

use super::{Forward, LayerError};
use crate::kernels::{AllReduce, ExpertPairs, LoraExpand, LoraShrink};
use crate::slots::SlotId;

impl Forward<'_> {
    /// Adds the adapter to the product of `slot`: `x` is what the product read, `y` what it gave,
    /// F32 `[rows, outputs]`, complete over the ranks.
    pub(crate) fn adapt(
        &mut self,
        slot: SlotId,
        x: Address,
        y: Address,
        rows: usize,
    ) -> Result<(), LayerError> {
        self.add_adapter(slot, (x, y, rows), None)
    }

    /// The same for a product of experts, whose places are I32 `[rows, top_k]`: `y` is F32
    /// `[rows, top_k, outputs]`.
    pub(crate) fn adapt_pairs(
        &mut self,
        slot: SlotId,
        x: Address,
        y: Address,
        pairs: (Address, usize),
    ) -> Result<(), LayerError> {
        self.add_adapter(slot, (x, y, self.batch.rows), Some(pairs))
    }

    fn add_adapter(
        &mut self,
        slot: SlotId,
        (x, y, m): (Address, Address, usize),
        chosen: Option<(Address, usize)>,
    ) -> Result<(), LayerError> {
        let Some(adapter) = self.adapter else { return Ok(()) };
        let (rank, scale) = (adapter.rank(), adapter.scale());
        for (site, [a, b]) in adapter.at(slot) {
            let pairs = chosen.zip(site.stack).map(|((ids, top_k), stack)| ExpertPairs {
                stage: stack.stage,
                ids,
                top_k,
                experts: stack.experts,
            });
            let all = m * pairs.map_or(1, |pairs| pairs.top_k);
            let t = self.buffer(all, rank, "adapted")?;
            let (k, blocks) = (site.k, site.blocks);
            self.launch(LoraShrink { x, a, t, m, k, rank, blocks, pairs })?;
            if site.split && self.shard.ranks > 1 {
                self.launch(AllReduce { y: t, m: all, width: rank })?;
            }
            let (n, at, width) = (site.n, site.at, site.width);
            self.launch(LoraExpand { t, b, scale, y, m, rank, n, at, width, pairs })?;
        }
        Ok(())
    }
}
