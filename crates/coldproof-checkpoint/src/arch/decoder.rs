//! The sources that all decoder families share.

use coldproof_contract::routing::{Half, HeadRole, Sharding, SourceRule, Stage};
use coldproof_contract::words::SlotName;

use super::{Group, ModelConfig};

/// Rows of the vocabulary are padded to a multiple of this for each rank.
const VOCABULARY_MULTIPLE: u64 = 64;

/// A rule whose slot has the source's own name.
fn same_name(config: &ModelConfig, name: &str, shape: &[u64], sharding: Sharding) -> SourceRule {
    rule(config, name.to_owned(), shape, name.to_owned(), sharding)
}

pub(super) fn rule(
    config: &ModelConfig,
    source: String,
    shape: &[u64],
    slot: String,
    sharding: Sharding,
) -> SourceRule {
    SourceRule {
        source,
        dtype: config.dtype,
        shape: shape.to_vec(),
        slot: SlotName(slot),
        sharding,
        stage: Stage::Everywhere,
    }
}

pub(super) fn embedding(config: &ModelConfig) -> SourceRule {
    vocabulary(config, "model.embed_tokens.weight")
}

pub(super) fn head(config: &ModelConfig) -> SourceRule {
    vocabulary(config, "lm_head.weight")
}

fn vocabulary(config: &ModelConfig, name: &str) -> SourceRule {
    let sharding = Sharding::Vocabulary { multiple: VOCABULARY_MULTIPLE };
    same_name(config, name, &[config.vocab_size, config.hidden_size], sharding)
}

pub(super) fn final_norm(config: &ModelConfig) -> SourceRule {
    same_name(config, "model.norm.weight", &[config.hidden_size], Sharding::Replicated)
}

/// A replicated vector or matrix of a layer.
pub(super) fn replicated(config: &ModelConfig, layer: u64, name: &str, shape: &[u64]) -> Group {
    let name = format!("model.layers.{layer}.{name}.weight");
    Group::plain(same_name(config, &name, shape, Sharding::Replicated))
}

/// q, k and v, fused, and the output projection.
pub(super) fn attention(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let owner = format!("model.layers.{layer}.self_attn");
    let ModelConfig { heads, head_dim, hidden_size, .. } = *config;
    let mut groups = fused_heads(config, &owner, "weight", &[hidden_size]);
    let output = format!("{owner}.o_proj.weight");
    let shape = [hidden_size, heads * head_dim];
    groups.push(Group::plain(same_name(config, &output, &shape, Sharding::Row)));
    groups
}

/// The biases of q, k and v, fused.
pub(super) fn qkv_biases(config: &ModelConfig, layer: u64) -> Vec<Group> {
    fused_heads(config, &format!("model.layers.{layer}.self_attn"), "bias", &[])
}

/// The parameter `kind` of q, k and v, fused by heads; rows have this shape.
fn fused_heads(config: &ModelConfig, owner: &str, kind: &str, row: &[u64]) -> Vec<Group> {
    let ModelConfig { heads, kv_heads, head_dim, .. } = *config;
    let parts = [
        ("q_proj", HeadRole::Q, heads),
        ("k_proj", HeadRole::K, kv_heads),
        ("v_proj", HeadRole::V, kv_heads),
    ];
    let group = |(name, role, own): (&str, HeadRole, u64)| {
        Group::plain(rule(
            config,
            format!("{owner}.{name}.{kind}"),
            &[&[own * head_dim], row].concat(),
            format!("{owner}.qkv_proj.{kind}"),
            Sharding::Heads { role, heads, kv_heads, head_dim },
        ))
    };
    parts.map(group).to_vec()
}

/// A dense gated MLP.
pub(super) fn dense_mlp(config: &ModelConfig, layer: u64) -> Vec<Group> {
    gated(config, &format!("model.layers.{layer}.mlp"), config.intermediate_size)
}

/// A gated projection of this many rows.
pub(super) fn gated(config: &ModelConfig, owner: &str, rows: u64) -> Vec<Group> {
    let hidden = config.hidden_size;
    let mut groups = Vec::new();
    for (name, half) in [("gate_proj", Half::Gate), ("up_proj", Half::Up)] {
        groups.push(Group::plain(rule(
            config,
            format!("{owner}.{name}.weight"),
            &[rows, hidden],
            format!("{owner}.gate_up_proj.weight"),
            Sharding::GateUp { half },
        )));
    }
    let down = format!("{owner}.down_proj.weight");
    groups.push(Group::plain(same_name(config, &down, &[hidden, rows], Sharding::Row)));
    groups
}

/// The norms before attention and before the MLP.
pub(super) fn norms(config: &ModelConfig, layer: u64) -> [Group; 2] {
    ["input_layernorm", "post_attention_layernorm"]
        .map(|name| replicated(config, layer, name, &[config.hidden_size]))
}

/// The norms of queries and keys, by head.
pub(super) fn qk_norms(config: &ModelConfig, layer: u64) -> [Group; 2] {
    ["self_attn.q_norm", "self_attn.k_norm"]
        .map(|name| replicated(config, layer, name, &[config.head_dim]))
}
