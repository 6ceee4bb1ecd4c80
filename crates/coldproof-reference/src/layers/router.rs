//! The choice of experts.

use coldproof_contract::words::Address;

use super::{Forward, LayerError};
use crate::kernels::{AddBias, GroupedTopK, RouterTopK};
use crate::models::{Builder, Experts};
use crate::slots::SlotId;

/// A router.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    weight: SlotId,
    bias: Option<SlotId>,
    correction: Option<SlotId>,
}

impl Router {
    /// The router at `path`.
    pub(crate) fn declare(
        builder: &mut Builder<'_>,
        path: &str,
        experts: &Experts,
        biased: bool,
    ) -> Self {
        let weight = [experts.count, builder.dims.hidden];
        let weight = builder.replicated(&format!("{path}.weight"), &weight);
        let name = format!("{path}.bias");
        let bias = biased.then(|| builder.replicated(&name, &[experts.count]));
        let name = format!("{path}.e_score_correction_bias");
        let grouped = experts.grouping.is_some();
        let correction = grouped.then(|| builder.replicated(&name, &[experts.count]));
        Self { weight, bias, correction }
    }

    /// Ids and weights of each token's experts.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        experts: &Experts,
    ) -> Result<(Address, Address), LayerError> {
        let (m, hidden) = (forward.batch.rows, forward.dims.hidden as usize);
        let (count, top_k) = (experts.count as usize, experts.top_k as usize);
        let logits =
            forward.column_parallel(self.weight, (x, hidden), (count, "router_logits"), m)?;
        if let Some(bias) = self.bias {
            let bias = forward.slots.address(bias)?;
            forward.launch(AddBias { y: logits, bias, m, n: count })?;
        }
        let ids = forward.buffer(m, top_k, "expert_ids")?;
        let weights = forward.buffer(m, top_k, "expert_weights")?;
        let renormalise = experts.renormalise;
        if let (Some(grouping), Some(correction)) = (experts.grouping, self.correction) {
            let correction = forward.slots.address(correction)?;
            forward.launch(GroupedTopK {
                logits,
                correction,
                ids,
                weights,
                m,
                experts: count,
                top_k,
                groups: grouping.groups as usize,
                chosen: grouping.chosen as usize,
                renormalise,
                scale: grouping.scale as f32,
            })?;
            return Ok((ids, weights));
        }
        let experts = count;
        forward.launch(RouterTopK { logits, ids, weights, m, experts, top_k, renormalise })?;
        Ok((ids, weights))
    }
}
