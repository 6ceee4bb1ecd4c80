//! Some of many experts, stacked and packed by post-load.

use coldproof_checkpoint::arch::Activation;
use coldproof_contract::words::{Address, Packing};

use super::{ExpertRanks, Forward, LayerError, Mlp, Router};
use crate::kernels::{ExpertLinear, ExpertOrder, ExpertStage, GatedMul, MoeCombine, PANEL_COLUMNS};
use crate::loader::{Half, HeldExperts, HookKind, PartId, Source, Target};
use crate::models::{Builder, Dims, Experts};
use crate::slots::SlotId;

/// What a family calls its experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertNames {
    /// The module of router and experts in a layer.
    pub(crate) module: &'static str,
    /// Gate, up and down projection of one expert.
    pub(crate) parts: [&'static str; 3],
    /// Whether all experts may come in one source.
    pub(crate) fused: bool,
}

/// A router and its experts.
#[derive(Clone, Debug)]
pub(crate) struct Moe {
    router: Router,
    w13: SlotId,
    w2: SlotId,
    shared: Option<Mlp>,
    experts: Experts,
    ranks: ExpertRanks,
}

impl Moe {
    /// Router and experts of the layer at `path`.
    pub(crate) fn declare(
        builder: &mut Builder<'_>,
        path: &str,
        experts: &Experts,
        names: ExpertNames,
    ) -> Self {
        let path = format!("{path}.{}", names.module);
        let hidden = builder.dims.hidden;
        let local = experts.intermediate / builder.shard.ranks;
        let router = Router::declare(builder, &format!("{path}.gate"), experts, false);
        let layer = format!("{path}.experts");
        let panels = || Packing::Panels { width: PANEL_COLUMNS as u64 };
        let (ranks, held) = ExpertRanks::declare(builder, &layer, experts);
        let w13 = [ranks.count(), 2 * local, hidden];
        let w13 = builder.packed(&format!("{layer}.w13_weight"), &w13, panels());
        let w2 = [ranks.count(), hidden, local];
        let w2 = builder.packed(&format!("{layer}.w2_weight"), &w2, panels());
        declare_sources(builder, &layer, (experts, &held), names, (w13, w2));
        builder.hook(&layer, HookKind::Experts { w13, w2 });
        [w13, w2].into_iter().for_each(|weight| builder.adapts(weight));
        let wide = experts.shared;
        let shared = format!("{path}.shared_experts");
        let shared = (wide > 0).then(|| Mlp::declare(builder, &shared, wide));
        Self { router, w13, w2, shared, experts: experts.clone(), ranks }
    }

    /// The layer's output, complete over the ranks. Every expert's output is complete before
    /// experts are added, and those that every token takes come last.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
    ) -> Result<Address, LayerError> {
        let (m, hidden) = (forward.batch.rows, forward.dims.hidden as usize);
        let (experts, top_k) = (self.ranks.count() as usize, self.experts.top_k as usize);
        let width = (self.experts.intermediate / forward.shard.ranks) as usize;
        let (ids, weights) = self.router.forward(forward, x, &self.experts)?;
        let places = self.ranks.places(forward, ids, &self.experts)?;

        let w = forward.slots.address(self.w13)?;
        let gate_up = forward.buffer(m * top_k, 2 * width, "expert_gate_up")?;
        forward.launch(ExpertLinear {
            stage: ExpertStage::GateUp,
            x,
            ids: places,
            w,
            order: ExpertOrder::OutputsFirst,
            y: gate_up,
            m,
            top_k,
            experts,
            k: hidden,
            n: 2 * width,
            blocks: Dims::full_blocks(),
        })?;
        forward.adapt_pairs(self.w13, x, gate_up, (places, top_k))?;
        let inner = forward.buffer(m * top_k, width, "expert_inner")?;
        let activation = Activation::Silu;
        forward.launch(GatedMul { activation, gate_up, y: inner, m: m * top_k, width })?;

        let w = forward.slots.address(self.w2)?;
        let outputs = forward.buffer(m * top_k, hidden, "expert_outputs")?;
        forward.launch(ExpertLinear {
            stage: ExpertStage::Down,
            x: inner,
            ids: places,
            w,
            order: ExpertOrder::OutputsFirst,
            y: outputs,
            m,
            top_k,
            experts,
            k: width,
            n: hidden,
            blocks: Dims::row_blocks(forward.shard),
        })?;
        forward.all_reduce(outputs, m * top_k)?;
        forward.adapt_pairs(self.w2, inner, outputs, (places, top_k))?;
        self.ranks.select(forward, places, outputs, top_k)?;
        let y = forward.buffer(m, hidden, "fed")?;
        forward.launch(MoeCombine { x: outputs, ids, weights, y, m, top_k, hidden })?;
        if let Some(shared) = &self.shared {
            let every = shared.forward(forward, x)?;
            forward.add(y, every)?;
        }
        Ok(y)
    }
}

/// One source a projection and expert, and, where the family has it, one for all experts.
fn declare_sources(
    builder: &mut Builder<'_>,
    layer: &str,
    (experts, held): (&Experts, &HeldExperts),
    names: ExpertNames,
    (w13, w2): (SlotId, SlotId),
) {
    let (inner, hidden) = (experts.intermediate, builder.dims.hidden);
    let shard = builder.shard;
    let [gate, up, down_name] = names.parts;
    let catalogue = &mut builder.catalogue;
    let (mut gate_up, mut down): (Vec<PartId>, Vec<PartId>) = (Vec::new(), Vec::new());
    for (expert, id) in (0..).zip(held.experts()) {
        for (source, half) in [(gate, Half::Gate), (up, Half::Up)] {
            let name = format!("{layer}.{id}.{source}.weight");
            let target = Target::ExpertGateUp { expert, half };
            gate_up.push(catalogue.add(name, &[inner, hidden], w13, target, shard));
        }
        let name = format!("{layer}.{id}.{down_name}.weight");
        let target = Target::ExpertRow { expert };
        down.push(catalogue.add(name, &[hidden, inner], w2, target, shard));
    }
    if !names.fused {
        return;
    }
    let fused = |shape: [u64; 3], slot, target, parts| Source {
        shape: shape.to_vec(),
        slot,
        target,
        shard,
        held: Some(held.clone()),
        parts,
    };
    let shape = [experts.count, 2 * inner, hidden];
    let source = fused(shape, w13, Target::FusedExpertsGateUp, gate_up);
    catalogue.insert(format!("{layer}.gate_up_proj"), source);
    let source = fused([experts.count, hidden, inner], w2, Target::FusedExpertsRow, down);
    catalogue.insert(format!("{layer}.down_proj"), source);
}
