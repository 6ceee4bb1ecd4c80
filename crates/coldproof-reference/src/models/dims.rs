//! The numbers of a model that its layers need.

use coldproof_checkpoint::arch::{Family, ModelConfig};

use super::{Builder, Decoder, llama, qwen3, qwen3_moe};
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
    /// Width of a head.
    pub(crate) head_dim: u64,
    /// Tokens of the vocabulary.
    pub(crate) vocabulary: u64,
    /// Rows of the rotary table.
    pub(crate) max_positions: u64,
    /// Added to the mean of squares of a norm.
    pub(crate) eps: f32,
    /// Angles a position, one for each pair of elements of a head.
    pub(crate) inverse_frequencies: Vec<f32>,
    /// Whether the output projection is the embedding table.
    pub(crate) tied: bool,
    /// Experts, in a family that has them.
    pub(crate) experts: Option<Experts>,
}

impl From<&ModelConfig> for Dims {
    fn from(config: &ModelConfig) -> Self {
        let sparse = |layer| config.moe_of(layer).is_some();
        let experts = config.moe.as_ref().map(|moe| Experts {
            count: moe.experts,
            top_k: moe.experts_per_token,
            intermediate: moe.intermediate_size,
            renormalise: moe.norm_topk_prob,
            layers: (0..config.layers).map(sparse).collect(),
        });
        Self {
            family: config.family,
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            layers: config.layers,
            query_heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            vocabulary: config.vocab_size,
            max_positions: config.max_positions,
            eps: config.rms_norm_eps as f32,
            inverse_frequencies: config.rope.inverse_frequencies(config.head_dim),
            tied: config.tied,
            experts,
        }
    }
}

impl Dims {
    /// Declares the model of this family.
    pub(crate) fn declare(&self, builder: &mut Builder<'_>) -> Decoder {
        match self.family {
            Family::Llama => llama::declare(builder),
            Family::Qwen3 => qwen3::declare(builder),
            Family::Qwen3Moe => qwen3_moe::declare(builder),
        }
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

    /// Why `tp` ranks cannot hold this model, if they cannot.
    pub(crate) fn divides(&self, tp: u64) -> Result<(), String> {
        let mut cuts = vec![("attention heads", self.query_heads)];
        match &self.experts {
            Some(experts) => {
                cuts.push(("moe_intermediate_size", experts.intermediate));
                if experts.layers.contains(&false) {
                    cuts.push(("intermediate_size", self.intermediate));
                }
            }
            None => cuts.push(("intermediate_size", self.intermediate)),
        }
        for (what, extent) in cuts {
            if !extent.is_multiple_of(tp) {
                return Err(format!("tp {tp} does not divide {what} {extent}"));
            }
        }
        if !self.kv_heads.is_multiple_of(tp) && !tp.is_multiple_of(self.kv_heads) {
            let heads = self.kv_heads;
            return Err(format!(
                "tp {tp} neither divides {heads} key-value heads nor repeats them"
            ));
        }
        Ok(())
    }
}
