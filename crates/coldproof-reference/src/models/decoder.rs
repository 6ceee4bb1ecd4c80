//! A decoder: what the families have in common.

use coldproof_contract::words::{Address, Dtype, Policy, SlotKind};

use super::{Builder, Vision};
use crate::layers::{
    Attention, ClampedExperts, Embedding, ExpertNames, FinalNorm, Forward, Head, HeadNorms,
    LatentAttention, LayerError, Mlp, Moe, Norm,
};
use crate::loader::{HookKind, Shard};
use crate::slots::{SlotId, SlotSpec};

/// The first half of a decoder layer.
#[derive(Clone, Debug)]
pub(crate) enum Mixer {
    /// Attention over keys and values of heads.
    Heads(Attention),
    /// Attention over latents that heads share.
    Latent(LatentAttention),
}

impl Mixer {
    /// Latent attention where the model has it, else that of heads.
    pub(crate) fn declare(builder: &mut Builder<'_>, layer: u64) -> Self {
        match builder.dims.mla {
            Some(mla) => Self::Latent(LatentAttention::declare(builder, layer, mla)),
            None => Self::Heads(Attention::declare(builder, layer, HeadNorms::None)),
        }
    }

    /// Whether its rotary table is that of layers that attend to all positions.
    const fn is_global(&self) -> bool {
        match self {
            Self::Heads(attention) => attention.is_global(),
            Self::Latent(_) => false,
        }
    }

    fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        rotary: Address,
    ) -> Result<Address, LayerError> {
        match self {
            Self::Heads(attention) => attention.forward(forward, x, rotary),
            Self::Latent(attention) => attention.forward(forward, x, rotary),
        }
    }
}

/// The second half of a decoder layer.
#[derive(Clone, Debug)]
pub(crate) enum FeedForward {
    /// One gated projection.
    Dense(Mlp),
    /// Some of many.
    Experts(Moe),
    /// Some of many, with biases and a clamped gate.
    Clamped(ClampedExperts),
}

impl FeedForward {
    /// One gated projection.
    pub(crate) fn dense(builder: &mut Builder<'_>, layer: u64) -> Self {
        let inner = builder.dims.intermediate;
        Self::Dense(Mlp::declare(builder, &format!("model.layers.{layer}.mlp"), inner))
    }

    /// Experts with biases and a clamped gate, else one gated projection.
    pub(crate) fn clamped(builder: &mut Builder<'_>, layer: u64) -> Self {
        match builder.dims.experts_of(layer) {
            Some(experts) => {
                let path = format!("model.layers.{layer}");
                Self::Clamped(ClampedExperts::declare(builder, &path, &experts))
            }
            None => Self::dense(builder, layer),
        }
    }

    /// Experts where this layer has them, else one gated projection.
    pub(crate) fn experts(builder: &mut Builder<'_>, layer: u64, names: ExpertNames) -> Self {
        let path = format!("model.layers.{layer}");
        match builder.dims.experts_of(layer) {
            Some(experts) => Self::Experts(Moe::declare(builder, &path, &experts, names)),
            None => Self::dense(builder, layer),
        }
    }
}

/// One decoder layer.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Before attention.
    pub(crate) input_norm: Norm,
    /// After attention, before it is added.
    pub(crate) attended_norm: Option<Norm>,
    /// Attention over the paged cache.
    pub(crate) mixer: Mixer,
    /// Before the second half.
    pub(crate) post_norm: Norm,
    /// The second half.
    pub(crate) feed_forward: FeedForward,
    /// After the second half, before it is added.
    pub(crate) fed_norm: Option<Norm>,
}

impl Block {
    /// A layer that norms what goes into its halves alone.
    pub(crate) fn pre_norm(
        builder: &mut Builder<'_>,
        layer: u64,
        norms: HeadNorms,
        feed_forward: impl Fn(&mut Builder<'_>) -> FeedForward,
    ) -> Self {
        let path = format!("model.layers.{layer}");
        Self {
            input_norm: Norm::declare(builder, &format!("{path}.input_layernorm")),
            mixer: Mixer::Heads(Attention::declare(builder, layer, norms)),
            attended_norm: None,
            post_norm: Norm::declare(builder, &format!("{path}.post_attention_layernorm")),
            feed_forward: feed_forward(builder),
            fed_norm: None,
        }
    }
}

/// A decoder, or one pipeline stage of it.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    /// On the first stage, and where a tied head is.
    embedding: Option<Embedding>,
    rotary: SlotId,
    global_rotary: Option<SlotId>,
    /// Of this stage.
    blocks: Vec<Block>,
    /// On the last stage.
    head: Option<(FinalNorm, Head)>,
    stage: Shard,
    vision: Option<Vision>,
}

impl Decoder {
    /// Declares a decoder whose layers `block` declares.
    pub(crate) fn declare(
        builder: &mut Builder<'_>,
        block: impl Fn(&mut Builder<'_>, u64) -> Block,
    ) -> Self {
        let stage = builder.place.stage;
        let (layers, tied) = (stage.layers(builder.dims.layers), builder.dims.tied);
        let embeds = stage.is_first() || (tied && stage.is_last());
        let embedding = embeds.then(|| Embedding::declare(builder));
        let rotary = declare_rotary(builder, "model.rotary_emb", false);
        let own = builder.dims.global_rotary.is_some();
        let global_rotary = own.then(|| declare_rotary(builder, "model.rotary_emb_global", true));
        let blocks = (layers.start..layers.end).map(|layer| block(builder, layer)).collect();
        let head = stage
            .is_last()
            .then(|| (FinalNorm::declare(builder), Head::declare(builder, embedding.as_ref())));
        Self { embedding, rotary, global_rotary, blocks, head, stage, vision: None }
    }

    /// This decoder behind what images go through.
    pub(crate) fn behind(self, vision: Vision) -> Self {
        Self { vision: Some(vision), ..self }
    }

    /// What images go through, in a model that takes some.
    pub(crate) const fn vision(&self) -> Option<&Vision> {
        self.vision.as_ref()
    }

    /// Logits, F32 `[rows, vocabulary]`, of every row of the batch or of its last one alone; on the
    /// last stage. The others give their residual stream to the next one.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        last_row_alone: bool,
    ) -> Result<Option<Address>, LayerError> {
        let residual = match &self.embedding {
            Some(embedding) if self.stage.is_first() => embedding.forward(forward)?,
            _ => forward.receive()?,
        };
        for block in &self.blocks {
            let kept = forward.mark();
            let global = self.global_rotary.filter(|_| block.mixer.is_global());
            let rotary = forward.slots.address(global.unwrap_or(self.rotary))?;
            block.forward(forward, residual, rotary)?;
            forward.release(kept)?;
        }
        let Some((norm, head)) = &self.head else {
            forward.send(residual)?;
            return Ok(None);
        };
        let rows = if last_row_alone { 1 } else { forward.batch.rows };
        let residual = forward.last_rows(residual, rows);
        let normed = norm.forward(forward, residual, rows)?;
        head.forward(forward, normed, rows).map(Some)
    }
}

impl Block {
    /// Adds this layer to the residual stream in place.
    fn forward(
        &self,
        forward: &mut Forward<'_>,
        residual: Address,
        rotary: Address,
    ) -> Result<(), LayerError> {
        let normed = self.input_norm.forward(forward, residual)?;
        let attended = self.mixer.forward(forward, normed, rotary)?;
        let attended = normed_by(self.attended_norm.as_ref(), forward, attended)?;
        forward.add(residual, attended)?;
        let normed = self.post_norm.forward(forward, residual)?;
        let fed = match &self.feed_forward {
            FeedForward::Dense(mlp) => mlp.forward(forward, normed)?,
            FeedForward::Experts(moe) => moe.forward(forward, normed)?,
            FeedForward::Clamped(experts) => experts.forward(forward, normed)?,
        };
        let fed = normed_by(self.fed_norm.as_ref(), forward, fed)?;
        forward.add(residual, fed)
    }
}

fn normed_by(
    norm: Option<&Norm>,
    forward: &mut Forward<'_>,
    x: Address,
) -> Result<Address, LayerError> {
    norm.map_or(Ok(x), |norm| norm.forward(forward, x))
}

fn declare_rotary(builder: &mut Builder<'_>, owner: &str, global: bool) -> SlotId {
    let shape = [builder.dims.max_positions, builder.dims.head_dim];
    let table = builder.slots.declare(SlotSpec::unsourced(
        format!("{owner}.cos_sin_cache"),
        SlotKind::Buffer,
        Dtype::F32,
        &shape,
        Policy::Preserve,
    ));
    builder.hook(owner, HookKind::Rotary { table, global });
    table
}
