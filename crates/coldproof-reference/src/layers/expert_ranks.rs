//! The experts of a layer on one rank, and how a batch reaches those of others.

use coldproof_contract::words::{Address, Dtype, Policy, SlotKind};

use super::{Forward, LayerError};
use crate::kernels::{LocalExperts, SelectExperts};
use crate::loader::{HeldExperts, HookKind};
use crate::models::{Builder, Experts};
use crate::slots::{SlotId, SlotSpec};

/// The experts of a layer that are on this rank.
#[derive(Clone, Debug)]
pub(crate) struct ExpertRanks {
    /// How many: as many on each rank.
    count: u64,
    /// Where each of the model's is in this rank's stack: state that no checkpoint holds. Absent
    /// where all are here.
    map: Option<SlotId>,
}

impl ExpertRanks {
    /// Those that are placed here, and which they are; `layer` is the module that holds the stack.
    pub(crate) fn declare(
        builder: &mut Builder<'_>,
        layer: &str,
        experts: &Experts,
    ) -> (Self, HeldExperts) {
        let held = builder.held(layer, experts.count);
        let spread = builder.place.experts.ranks > 1;
        let map = spread.then(|| {
            let (name, kind) = (format!("{layer}.expert_map"), SlotKind::Buffer);
            let shape = [experts.count];
            let spec = SlotSpec::unsourced(name, kind, Dtype::I32, &shape, Policy::Preserve);
            let map = builder.slots.declare(spec);
            builder.hook(
                &format!("{layer}.expert_map"),
                HookKind::ExpertMap { map, held: held.clone() },
            );
            map
        });
        (Self { count: held.count(), map }, held)
    }

    /// Experts in this rank's stack.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// I32 `[rows, top_k]`: places of the chosen experts in this rank's stack, or -1.
    pub(crate) fn places(
        &self,
        forward: &mut Forward<'_>,
        ids: Address,
        experts: &Experts,
    ) -> Result<Address, LayerError> {
        let Some(map) = self.map else { return Ok(ids) };
        let (m, top_k) = (forward.batch.rows, experts.top_k as usize);
        let map = forward.slots.address(map)?;
        let places = forward.buffer(m, top_k, "expert_places")?;
        let experts = experts.count as usize;
        forward.launch(LocalExperts { ids, map, places, m, top_k, experts })?;
        Ok(places)
    }

    /// Completes the outputs of all pairs, F32 `[rows, top_k, hidden]`, with those of other ranks'
    /// experts.
    pub(crate) fn select(
        &self,
        forward: &mut Forward<'_>,
        places: Address,
        y: Address,
        top_k: usize,
    ) -> Result<(), LayerError> {
        if self.map.is_none() {
            return Ok(());
        }
        let (m, width) = (forward.batch.rows, forward.dims.hidden as usize);
        forward.launch(SelectExperts { places, y, m, top_k, width })
    }
}
