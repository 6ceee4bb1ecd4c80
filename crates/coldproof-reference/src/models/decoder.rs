//! A decoder: what the families have in common.

use coldproof_checkpoint::arch::Mixer as Kind;
use coldproof_contract::words::{Address, Dtype, Policy, SlotKind};

use super::{Builder, Drafter, Vision};
use crate::layers::{
    Attention, ClampedExperts, Embedding, ExpertNames, FinalNorm, Forward, Head, HeadNorms,
    LatentAttention, LayerError, Mlp, Moe, Norm, SquaredMlp, StateMixer,
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
        rotary: Option<Address>,
    ) -> Result<Address, LayerError> {
        match (self, rotary) {
            (Self::Heads(attention), _) => attention.forward(forward, x, rotary),
            (Self::Latent(attention), Some(table)) => attention.forward(forward, x, table),
            (Self::Latent(_), None) => {
                Err(LayerError::Refused("latent attention needs a rotary table".to_owned()))
            }
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

/// What stands behind the one norm of a layer.
#[derive(Clone, Debug)]
pub(crate) enum Mixed {
    /// A recurrence over paged states.
    States(StateMixer),
    /// Attention over the paged cache, without rotation.
    Attention(Attention),
    /// A projection without a gate.
    Mlp(SquaredMlp),
}

/// A layer of one norm and one mixer.
#[derive(Clone, Debug)]
pub(crate) struct MixedLayer {
    norm: Norm,
    mixer: Mixed,
}

impl MixedLayer {
    /// The layer at this path, of the kind that the dimensions name.
    pub(crate) fn declare(builder: &mut Builder<'_>, layer: u64, path: &str) -> Self {
        let norm = Norm::declare(builder, &format!("{path}.norm"));
        let path = format!("{path}.mixer");
        let space = builder.dims.state_space_of(layer).cloned();
        let mixer = match (space, builder.dims.mixer_of(layer)) {
            (Some(space), _) => Mixed::States(StateMixer::declare(builder, &path, &space)),
            (None, Some(Kind::Mlp)) => Mixed::Mlp(SquaredMlp::declare(builder, &path)),
            (None, _) => {
                Mixed::Attention(Attention::declare_at(builder, layer, &path, HeadNorms::None))
            }
        };
        Self { norm, mixer }
    }

    /// Adds this layer to the residual stream in place.
    fn forward(&self, forward: &mut Forward<'_>, residual: Address) -> Result<(), LayerError> {
        let normed = self.norm.forward(forward, residual)?;
        let mixed = match &self.mixer {
            Mixed::States(mixer) => mixer.forward(forward, normed)?,
            Mixed::Attention(attention) => attention.forward(forward, normed, None)?,
            Mixed::Mlp(mlp) => mlp.forward(forward, normed)?,
        };
        forward.add(residual, mixed)
    }
}

/// One layer of a decoder.
#[derive(Clone, Debug)]
pub(crate) enum Layer {
    /// Attention, then a second half.
    Block(Box<Block>),
    /// One mixer.
    Mixed(MixedLayer),
}

impl From<Block> for Layer {
    fn from(block: Block) -> Self {
        Self::Block(Box::new(block))
    }
}

impl From<MixedLayer> for Layer {
    fn from(layer: MixedLayer) -> Self {
        Self::Mixed(layer)
    }
}

/// A decoder, or one pipeline stage of it.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    /// On the first stage, and where a tied head is.
    embedding: Option<Embedding>,
    rotary: Option<SlotId>,
    global_rotary: Option<SlotId>,
    /// Of this stage.
    layers: Vec<Layer>,
    /// On the last stage.
    head: Option<(FinalNorm, Head)>,
    stage: Shard,
    vision: Option<Vision>,
    drafter: Option<Drafter>,
}

/// What the last pipeline stage of a decoder computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outputs {
    /// F32 `[rows, vocabulary]`, of every row of the batch or of its last one alone.
    pub(crate) logits: Address,
    /// F32 `[rows, hidden]`: what the head reads, of every row, where drafts are computed from it.
    pub(crate) hidden: Option<Address>,
}

impl Decoder {
    /// Declares a decoder whose layers `layer` declares.
    pub(crate) fn declare<L: Into<Layer>>(
        builder: &mut Builder<'_>,
        layer: impl Fn(&mut Builder<'_>, u64) -> L,
    ) -> Self {
        let stage = builder.place.stage;
        let (held, tied) = (stage.layers(builder.dims.layers), builder.dims.tied);
        let embeds = stage.is_first() || (tied && stage.is_last());
        let embedding = embeds.then(|| Embedding::declare(builder));
        let rotates = builder.dims.rotates;
        let rotary = rotates.then(|| declare_rotary(builder, "model.rotary_emb", false));
        let own = builder.dims.global_rotary.is_some();
        let global_rotary = own.then(|| declare_rotary(builder, "model.rotary_emb_global", true));
        let layers = (held.start..held.end).map(|at| layer(builder, at).into()).collect();
        let head = stage
            .is_last()
            .then(|| (FinalNorm::declare(builder), Head::declare(builder, embedding.as_ref())));
        Self { embedding, rotary, global_rotary, layers, head, stage, vision: None, drafter: None }
    }

    /// This decoder with what drafts for it.
    pub(crate) fn drafted_by(self, drafter: Drafter) -> Self {
        Self { drafter: Some(drafter), ..self }
    }

    /// What drafts for it; on the last stage.
    pub(crate) const fn drafter(&self) -> Option<&Drafter> {
        self.drafter.as_ref()
    }

    /// The rotary table of layers that have no other.
    pub(crate) const fn rotary(&self) -> Option<SlotId> {
        self.rotary
    }

    /// This decoder behind what images go through.
    pub(crate) fn behind(self, vision: Vision) -> Self {
        Self { vision: Some(vision), ..self }
    }

    /// What images go through, in a model that takes some.
    pub(crate) const fn vision(&self) -> Option<&Vision> {
        self.vision.as_ref()
    }

    /// Logits of every row of the batch or of its last one alone, on the last stage. The others
    /// give their residual stream to the next one.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        last_row_alone: bool,
    ) -> Result<Option<Outputs>, LayerError> {
        let residual = match &self.embedding {
            Some(embedding) if self.stage.is_first() => embedding.forward(forward)?,
            _ => forward.receive()?,
        };
        for layer in &self.layers {
            let kept = forward.mark();
            match layer {
                Layer::Block(block) => {
                    let global = self.global_rotary.filter(|_| block.mixer.is_global());
                    let rotary = global.or(self.rotary);
                    let rotary = rotary.map(|table| forward.slots.address(table)).transpose()?;
                    block.forward(forward, residual, rotary)?;
                }
                Layer::Mixed(mixed) => mixed.forward(forward, residual)?,
            }
            forward.release(kept)?;
        }
        let Some((norm, head)) = &self.head else {
            forward.send(residual)?;
            return Ok(None);
        };
        let rows = if last_row_alone { 1 } else { forward.batch.rows };
        let read = self.drafter.as_ref().is_some_and(Drafter::reads_hidden);
        let normed_rows = if read { forward.batch.rows } else { rows };
        let residual = forward.last_rows(residual, normed_rows);
        let normed = norm.forward(forward, residual, normed_rows)?;
        let wanted = if read { forward.last_rows(normed, rows) } else { normed };
        let logits = head.forward(forward, wanted, rows)?;
        Ok(Some(Outputs { logits, hidden: read.then_some(normed) }))
    }
}

impl Block {
    /// Adds this layer to the residual stream in place.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        residual: Address,
        rotary: Option<Address>,
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
    let rotary = builder.dims.rotary(global).clone();
    builder.hook(owner, HookKind::Rotary { table, rotary });
    table
}
