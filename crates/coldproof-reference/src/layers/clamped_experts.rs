//! Experts with biases and a clamped gate, whose matrices have inputs before outputs.

use coldproof_contract::words::{Address, Packing};

use super::{ExpertRanks, Forward, LayerError, Router};
use crate::kernels::{
    Add, ClampedSwiglu, ExpertBias, ExpertLinear, ExpertOrder, ExpertStage, MoeCombine,
    PANEL_COLUMNS,
};
use crate::loader::{HookKind, Target};
use crate::models::{Builder, Dims, Experts};
use crate::slots::SlotId;

/// Weight and bias of one product of all experts.
#[derive(Clone, Debug)]
struct Product {
    weight: SlotId,
    bias: SlotId,
}

/// A router and its experts.
#[derive(Clone, Debug)]
pub(crate) struct ClampedExperts {
    router: Router,
    gate_up: Product,
    down: Product,
    experts: Experts,
    ranks: ExpertRanks,
}

/// The pairs of token and expert that a batch computes.
#[derive(Clone, Copy, Debug)]
struct Pairs {
    ids: Address,
    m: usize,
    top_k: usize,
    experts: usize,
}

impl ClampedExperts {
    /// Router and experts of the layer at `path`.
    pub(crate) fn declare(builder: &mut Builder<'_>, path: &str, experts: &Experts) -> Self {
        let (count, inner, hidden) = (experts.count, experts.intermediate, builder.dims.hidden);
        let local = inner / builder.shard.ranks;
        let router = Router::declare(builder, &format!("{path}.mlp.router"), experts, true);
        let layer = format!("{path}.mlp.experts");
        let (ranks, placed) = ExpertRanks::declare(builder, &layer, experts);
        let held = ranks.count();
        let panels = || Packing::Panels { width: PANEL_COLUMNS as u64 };
        let mut weight = |slot: &str, own: [u64; 3], source: &str, shape: [u64; 3], target| {
            let slot = builder.packed(&format!("{layer}.{slot}"), &own, panels());
            builder.stacked(format!("{layer}.{source}"), &shape, slot, (target, &placed));
            slot
        };
        let (own, shape) = ([held, hidden, 2 * local], [count, hidden, 2 * inner]);
        let w13 = weight("w13_weight", own, "gate_up_proj", shape, Target::FusedExpertsRow);
        let (own, shape) = ([held, local, hidden], [count, inner, hidden]);
        let w2 = weight("w2_weight", own, "down_proj", shape, Target::FusedExpertsInputs);
        let mut bias = |slot: &str, own: u64, source: &str, width: u64, target| {
            let slot = builder.parameter(&format!("{layer}.{slot}"), &[held, own]);
            builder.stacked(format!("{layer}.{source}"), &[count, width], slot, (target, &placed));
            slot
        };
        let b13 =
            bias("w13_bias", 2 * local, "gate_up_proj_bias", 2 * inner, Target::FusedExpertsRow);
        let b2 = bias("w2_bias", hidden, "down_proj_bias", hidden, Target::FusedExperts);
        builder.hook(&layer, HookKind::Experts { w13, w2 });
        Self {
            router,
            gate_up: Product { weight: w13, bias: b13 },
            down: Product { weight: w2, bias: b2 },
            experts: experts.clone(),
            ranks,
        }
    }

    /// The layer's output, complete over the ranks. Every expert's output is complete before its
    /// bias and then the experts are added.
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
        let pairs = Pairs { ids: places, m, top_k, experts };

        let (n, stage) = (2 * width, ExpertStage::GateUp);
        let gate_up = self.gate_up.product(forward, pairs, stage, (x, hidden), n)?;
        let bias = self.gate_up.bias(forward, pairs, n)?;
        forward.launch(Add { a: gate_up, b: bias, y: gate_up, m: m * top_k, width: n })?;
        let inner = forward.buffer(m * top_k, width, "expert_inner")?;
        let (alpha, limit) = self
            .experts
            .swiglu
            .map_or((1.0, f32::INFINITY), |swiglu| (swiglu.alpha as f32, swiglu.limit as f32));
        forward.launch(ClampedSwiglu { gate_up, y: inner, m: m * top_k, width, alpha, limit })?;

        let stage = ExpertStage::Down;
        let outputs = self.down.product(forward, pairs, stage, (inner, width), hidden)?;
        forward.all_reduce(outputs, m * top_k)?;
        let bias = self.down.bias(forward, pairs, hidden)?;
        forward.launch(Add { a: outputs, b: bias, y: outputs, m: m * top_k, width: hidden })?;
        self.ranks.select(forward, places, outputs, top_k)?;
        let y = forward.buffer(m, hidden, "fed")?;
        forward.launch(MoeCombine { x: outputs, ids, weights, y, m, top_k, hidden })?;
        Ok(y)
    }
}

impl Product {
    /// Of every pair, F32 `[m, top_k, n]`.
    fn product(
        &self,
        forward: &mut Forward<'_>,
        Pairs { ids, m, top_k, experts }: Pairs,
        stage: ExpertStage,
        (x, k): (Address, usize),
        n: usize,
    ) -> Result<Address, LayerError> {
        let w = forward.slots.address(self.weight)?;
        let (purpose, blocks) = match stage {
            ExpertStage::GateUp => ("expert_gate_up", Dims::full_blocks()),
            ExpertStage::Down => ("expert_outputs", Dims::row_blocks(forward.shard)),
        };
        let y = forward.buffer(m * top_k, n, purpose)?;
        let order = ExpertOrder::InputsFirst;
        forward.launch(ExpertLinear {
            stage,
            x,
            ids,
            w,
            order,
            y,
            m,
            top_k,
            experts,
            k,
            n,
            blocks,
        })?;
        Ok(y)
    }

    /// The bias of every pair, F32 `[m, top_k, n]`.
    fn bias(
        &self,
        forward: &mut Forward<'_>,
        Pairs { ids, m, top_k, experts }: Pairs,
        n: usize,
    ) -> Result<Address, LayerError> {
        let bias = forward.slots.address(self.bias)?;
        let y = forward.buffer(m * top_k, n, "expert_bias")?;
        forward.launch(ExpertBias { ids, bias, y, m, top_k, experts, n })?;
        Ok(y)
    }
}
