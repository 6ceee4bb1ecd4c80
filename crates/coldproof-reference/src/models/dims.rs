//! The numbers of a model that its layers need.

use std::sync::Arc;

use coldproof_checkpoint::arch::{
    Activation, AttentionBias, Family, Grouping, Mixer, Mla, ModelConfig, Rope, StateSpace, Swiglu,
    Vision,
};

use super::{
    Builder, Decoder, DraftModel, Drafter, deepseek_v3, gemma3, gpt_oss, llama, llava, mamba2,
    mixtral, nemotron_h, qwen2, qwen3, qwen3_moe,
};
use crate::loader::{Heads, Shard};

/// Blocks into which K is cut, whatever the number of ranks.
const K_BLOCKS: u64 = 8;

/// Experts of a sparse model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Experts {
    /// Experts of a layer.
    pub(crate) count: u64,
    /// Experts a token.
    pub(crate) top_k: u64,
    /// Inner width of an expert.
    pub(crate) intermediate: u64,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub(crate) renormalise: bool,
    /// Which layers have experts.
    pub(crate) layers: Vec<bool>,
    /// Of their gate, where it is clamped.
    pub(crate) swiglu: Option<Swiglu>,
    /// Inner width of those that every token takes; 0 where there are none.
    pub(crate) shared: u64,
    /// A choice by groups.
    pub(crate) grouping: Option<Grouping>,
}

/// What a rotary table is computed from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rotary {
    /// Angles a position, one for each pair of elements of a head.
    pub(crate) inverse_frequencies: Vec<f32>,
    /// Factor of cosines and sines.
    pub(crate) magnitude: f32,
}

impl Rotary {
    fn of(rope: &Rope, head_dim: u64) -> Self {
        let inverse_frequencies = rope.inverse_frequencies(head_dim);
        Self { inverse_frequencies, magnitude: rope.magnitude() }
    }
}

/// What drafts are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafts {
    /// Tokens alone: a model of its own drafts.
    FromTokens,
    /// Each token beside the model's hidden row before it: a layer behind the others drafts.
    FromHidden,
}

/// Dimensions of a decoder, before it is cut.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dims {
    /// Which family.
    pub(crate) family: Family,
    /// Width of the residual stream.
    pub(crate) hidden: u64,
    /// Inner width of a dense layer.
    pub(crate) intermediate: u64,
    /// Layers.
    pub(crate) layers: u64,
    /// Query heads.
    pub(crate) query_heads: u64,
    /// Key-value heads.
    pub(crate) kv_heads: u64,
    /// Width of a head, or of its rotary part where attention is latent.
    pub(crate) head_dim: u64,
    /// Which projections of attention have a bias.
    pub(crate) attention_bias: AttentionBias,
    /// Latent attention.
    pub(crate) mla: Option<Mla>,
    /// Tokens of the vocabulary.
    pub(crate) vocabulary: u64,
    /// Rows of the rotary table.
    pub(crate) max_positions: u64,
    /// Added to the mean of squares of a norm.
    pub(crate) eps: f32,
    /// Whether the weights of norms are stored less one.
    pub(crate) gemma_norms: bool,
    /// Factor of the embedding's rows.
    pub(crate) normalizer: Option<f32>,
    /// What a dense gate goes through.
    pub(crate) activation: Activation,
    /// Whether each query head has a sink.
    pub(crate) sinks: bool,
    /// Factor of attention's scores.
    pub(crate) score_scale: f32,
    /// Positions that each layer attends to; nothing where that is all of them.
    pub(crate) windows: Vec<Option<u64>>,
    /// Of the rotary table.
    pub(crate) rotary: Rotary,
    /// Of the table of layers that attend to all positions, where some do and have their own.
    pub(crate) global_rotary: Option<Rotary>,
    /// Whether the output projection is the embedding table.
    pub(crate) tied: bool,
    /// Experts, in a family that has them.
    pub(crate) experts: Option<Experts>,
    /// The tower that images go through, in a family that has one.
    pub(crate) vision: Option<Vision>,
    /// Whether positions are turned into rotations.
    pub(crate) rotates: bool,
    /// Whether any layer attends.
    pub(crate) attends: bool,
    /// State-space mixers, in a family that has them.
    pub(crate) state_space: Option<StateSpace>,
    /// What each layer is, where it is one mixer; else none.
    pub(crate) mixers: Vec<Mixer>,
    /// Layers behind the others that predict one token further each.
    pub(crate) mtp_layers: u64,
    /// The draft model beside this one.
    pub(crate) draft: Option<Arc<Self>>,
}

impl From<&ModelConfig> for Dims {
    fn from(config: &ModelConfig) -> Self {
        let sparse = |layer| config.moe_of(layer).is_some();
        let experts = config.moe.as_ref().map(|moe| Experts {
            count: moe.experts,
            top_k: moe.experts_per_token,
            intermediate: moe.intermediate_size,
            renormalise: moe.norm_topk_prob,
            layers: (0..config.layers + config.mtp_layers).map(sparse).collect(),
            swiglu: config.swiglu,
            shared: moe.shared_experts * moe.intermediate_size,
            grouping: moe.grouping,
        });
        let windows: Vec<_> = (0..config.layers).map(|layer| config.window_of(layer)).collect();
        let global = config.global_rope.as_ref().filter(|_| windows.contains(&None));
        Self {
            family: config.family,
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            layers: config.layers,
            query_heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            attention_bias: config.attention_bias(),
            mla: config.mla,
            vocabulary: config.vocab_size,
            max_positions: config.max_positions,
            eps: config.rms_norm_eps as f32,
            gemma_norms: config.gemma_norms(),
            normalizer: config.gemma_norms().then(|| (config.hidden_size as f32).sqrt()),
            activation: config.activation(),
            sinks: config.sinks(),
            score_scale: (1.0 / config.query_scalar.sqrt()) as f32,
            windows,
            rotary: Rotary::of(&config.rope, config.head_dim),
            global_rotary: global.map(|rope| Rotary::of(rope, config.head_dim)),
            tied: config.tied,
            experts,
            vision: config.vision.clone(),
            rotates: config.rotates(),
            attends: config.attends(),
            state_space: config.state_space.clone(),
            mixers: config.mixers.clone(),
            mtp_layers: config.mtp_layers,
            draft: config.draft.as_deref().map(|draft| Arc::new(Self::from(draft))),
        }
    }
}

impl Dims {
    /// Declares the model of this family, with what drafts for it on the last pipeline stage.
    pub(crate) fn declare(&self, builder: &mut Builder<'_>) -> Decoder {
        let decoder = self.declare_alone(builder);
        match &self.draft {
            Some(draft) if builder.place.stage.is_last() => {
                let draft = DraftModel::declare(builder, draft);
                decoder.drafted_by(Drafter::Model(draft))
            }
            _ => decoder,
        }
    }

    fn declare_alone(&self, builder: &mut Builder<'_>) -> Decoder {
        match self.family {
            Family::DeepseekV3 => deepseek_v3::declare(builder),
            Family::Gemma3Text => gemma3::declare(builder),
            Family::GptOss => gpt_oss::declare(builder),
            Family::Llama => llama::declare(builder),
            Family::Llava => llava::declare(builder),
            Family::Mamba2 => mamba2::declare(builder),
            Family::Mixtral => mixtral::declare(builder),
            Family::NemotronH => nemotron_h::declare(builder),
            Family::Qwen2 => qwen2::declare(builder),
            Family::Qwen3 => qwen3::declare(builder),
            Family::Qwen3Moe => qwen3_moe::declare(builder),
        }
    }

    /// Positions that a row of layer `layer` attends to; nothing where that is all of them.
    pub(crate) fn window_of(&self, layer: u64) -> Option<u64> {
        self.windows.get(layer as usize).copied().flatten()
    }

    /// What layer `layer` is, where it is one mixer.
    pub(crate) fn mixer_of(&self, layer: u64) -> Option<Mixer> {
        self.mixers.get(layer as usize).copied()
    }

    /// The state space of layer `layer`, where it is one.
    pub(crate) fn state_space_of(&self, layer: u64) -> Option<&StateSpace> {
        let is_one = self.mixer_of(layer) == Some(Mixer::StateSpace);
        self.state_space.as_ref().filter(|_| is_one)
    }

    /// The experts of layer `layer`, where it has some.
    pub(crate) fn experts_of(&self, layer: u64) -> Option<Experts> {
        let experts = self.experts.clone();
        experts.filter(|experts| experts.layers.get(layer as usize) == Some(&true))
    }

    /// Of the table of one kind of layers.
    pub(crate) fn rotary(&self, global: bool) -> &Rotary {
        let own = self.global_rotary.as_ref().filter(|_| global);
        own.unwrap_or(&self.rotary)
    }

    /// Heads of an attention layer.
    pub(crate) const fn heads(&self) -> Heads {
        Heads { query: self.query_heads, key_value: self.kv_heads, dim: self.head_dim }
    }

    /// Blocks of a column-parallel product, at full K.
    pub(crate) const fn full_blocks() -> usize {
        K_BLOCKS as usize
    }

    /// Blocks of this rank's share of a row-parallel product: its part of the eight where the ranks
    /// divide them, else eight of its own.
    pub(crate) const fn row_blocks(shard: Shard) -> usize {
        if K_BLOCKS.is_multiple_of(shard.ranks) {
            (K_BLOCKS / shard.ranks) as usize
        } else {
            K_BLOCKS as usize
        }
    }

    /// Why the experts cannot be spread over `ep` ranks, if they cannot.
    pub(crate) fn spreads(&self, ep: u64) -> Result<(), String> {
        if let Some(draft) = self.draft.as_ref().filter(|draft| draft.experts.is_some()) {
            draft.spreads(ep).map_err(of_draft)?;
        }
        match &self.experts {
            _ if ep == 1 => Ok(()),
            None => Err(format!("ep {ep}: the model has no experts to spread")),
            Some(experts) if experts.count.is_multiple_of(ep) => Ok(()),
            Some(experts) => Err(format!("ep {ep} does not divide {} experts", experts.count)),
        }
    }

    /// Whether any layer has an MLP without experts.
    fn has_mlps(&self) -> bool {
        self.mixers.is_empty() || self.mixers.contains(&Mixer::Mlp)
    }

    /// Why `tp` ranks cannot hold this model, if they cannot.
    pub(crate) fn divides(&self, tp: u64) -> Result<(), String> {
        let mut cuts = Vec::new();
        if self.attends {
            cuts.push(("attention heads", self.query_heads));
        }
        if let Some(space) = &self.state_space {
            cuts.push(("state-space heads", space.heads));
            // A group that is alone is on every rank.
            if space.groups > 1 {
                cuts.push(("groups of state-space heads", space.groups));
            }
        }
        match &self.experts {
            Some(experts) => {
                cuts.push(("moe_intermediate_size", experts.intermediate));
                if experts.layers.contains(&false) {
                    cuts.push(("intermediate_size", self.intermediate));
                }
            }
            None if self.has_mlps() => cuts.push(("intermediate_size", self.intermediate)),
            None => {}
        }
        if let Some(vision) = &self.vision {
            cuts.push(("the projector's outputs", self.hidden));
            if vision.heads.is_multiple_of(tp) {
                cuts.push(("the tower's intermediate_size", vision.intermediate_size));
            }
        }
        for (what, extent) in cuts {
            if !extent.is_multiple_of(tp) {
                return Err(format!("tp {tp} does not divide {what} {extent}"));
            }
        }
        let fits = self.kv_heads.is_multiple_of(tp) || tp.is_multiple_of(self.kv_heads);
        if self.attends && !fits {
            let heads = self.kv_heads;
            return Err(format!(
                "tp {tp} neither divides {heads} key-value heads nor repeats them"
            ));
        }
        self.draft.as_ref().map_or(Ok(()), |draft| draft.divides(tp).map_err(of_draft))
    }

    /// Whether something drafts for this model, and whether it reads the model's hidden rows.
    pub(crate) fn drafts(&self) -> Option<Drafts> {
        if self.mtp_layers > 0 {
            return Some(Drafts::FromHidden);
        }
        self.draft.as_ref().map(|_| Drafts::FromTokens)
    }
}

fn of_draft(reason: String) -> String {
    format!("the draft model: {reason}")
}
