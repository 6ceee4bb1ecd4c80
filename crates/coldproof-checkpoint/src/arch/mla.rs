//! Attention over latent keys and values (MLA): one compressed row a position, from which every
//! head's key and value are expanded by `kv_b_proj`, and one rotary key that all heads share.

use coldproof_contract::routing::{HeadRole, Sharding};
use serde::{Deserialize, Serialize};

use super::decoder::{self, rule};
use super::fields::Fields;
use super::{ConfigError, Group, ModelConfig};

/// Dimensions of latent attention. The width of a head's rotary part is the model's `head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mla {
    /// Width of the compressed queries; nothing where queries are projected at once.
    pub q_lora_rank: Option<u64>,
    /// Width of the compressed keys and values.
    pub kv_lora_rank: u64,
    /// Width of a head's key without rotation.
    pub nope_dim: u64,
    /// Width of a head's rotary part, and of the key that heads share; even.
    pub rope_dim: u64,
    /// Width of a head's value.
    pub value_dim: u64,
    /// Whether neighbours are rotated together, or elements half the rotary part apart.
    pub interleaved: bool,
}

impl Mla {
    pub(super) fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        Ok(Self {
            q_lora_rank: fields.size("q_lora_rank")?,
            kv_lora_rank: fields.required_size("kv_lora_rank")?,
            nope_dim: fields.required_size("qk_nope_head_dim")?,
            rope_dim: fields.required_size("qk_rope_head_dim")?,
            value_dim: fields.required_size("v_head_dim")?,
            interleaved: fields.flag("rope_interleave")?.unwrap_or(true),
        })
    }

    /// Width of a head's query.
    #[must_use]
    pub const fn query_dim(&self) -> u64 {
        self.nope_dim + self.rope_dim
    }

    /// Width of a position's row: the latent and the shared key.
    #[must_use]
    pub const fn latent_dim(&self) -> u64 {
        self.kv_lora_rank + self.rope_dim
    }

    /// Elements of one layer's projections. Each size is at most 2^28.
    pub(super) fn elements(&self, hidden: u64, heads: u64) -> u128 {
        let wide = |value: u64| u128::from(value);
        let down = wide(self.q_lora_rank.unwrap_or(0)) + wide(self.latent_dim());
        let query = wide(self.q_lora_rank.unwrap_or(hidden)) * wide(self.query_dim());
        let expand = wide(self.kv_lora_rank) * wide(self.nope_dim + self.value_dim);
        let output = wide(self.value_dim) * wide(hidden);
        wide(hidden) * down + wide(heads) * (query + expand + output)
    }
}

/// The projections of one layer, under vLLM's names: what compresses queries and what compresses
/// keys and values are one slot.
pub(super) fn groups(config: &ModelConfig, mla: &Mla, layer: u64) -> Vec<Group> {
    let owner = format!("model.layers.{layer}.self_attn");
    let (hidden, latent) = (config.hidden_size, mla.latent_dim());
    let plain = |source: &str, shape: &[u64], slot: &str, sharding| {
        let (source, slot) = (format!("{owner}.{source}.weight"), format!("{owner}.{slot}.weight"));
        Group::plain(rule(config, source, shape, slot, sharding))
    };
    let by_heads = |name: &str, head_dim: u64, inputs: u64| {
        let heads = config.heads;
        let sharding = Sharding::Heads { role: HeadRole::Q, heads, kv_heads: 0, head_dim };
        plain(name, &[heads * head_dim, inputs], name, sharding)
    };
    let replicated = |name: &str, shape: &[u64]| {
        decoder::replicated(config, layer, &format!("self_attn.{name}"), shape)
    };
    let mut groups = match mla.q_lora_rank {
        Some(rank) => {
            let stacked = |source: &str, own: u64, first: u64| {
                let sharding = Sharding::Stacked { first, rows: rank + latent };
                plain(source, &[own, hidden], "fused_qkv_a_proj", sharding)
            };
            vec![
                stacked("q_a_proj", rank, 0),
                stacked("kv_a_proj_with_mqa", latent, rank),
                replicated("q_a_layernorm", &[rank]),
                by_heads("q_b_proj", mla.query_dim(), rank),
            ]
        }
        None => vec![
            by_heads("q_proj", mla.query_dim(), hidden),
            replicated("kv_a_proj_with_mqa", &[latent, hidden]),
        ],
    };
    let columns = config.heads * mla.value_dim;
    groups.extend([
        replicated("kv_a_layernorm", &[mla.kv_lora_rank]),
        by_heads("kv_b_proj", mla.nope_dim + mla.value_dim, mla.kv_lora_rank),
        plain("o_proj", &[hidden, columns], "o_proj", Sharding::Row),
    ]);
    groups
}
