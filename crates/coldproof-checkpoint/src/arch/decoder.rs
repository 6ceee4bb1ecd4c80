//! The sources that all decoder families share.

use coldproof_contract::routing::{Half, HeadRole, Sharding, SourceRule, Stage};
use coldproof_contract::words::SlotName;

use super::{Family, Group, ModelConfig};

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
    vocabulary(
        config,
        match config.family {
            Family::Mamba2 => ["backbone.embeddings.weight"; 2],
            Family::NemotronH => ["backbone.embeddings.weight", "model.embed_tokens.weight"],
            _ => ["model.embed_tokens.weight"; 2],
        },
    )
}

pub(super) fn head(config: &ModelConfig) -> SourceRule {
    vocabulary(config, ["lm_head.weight"; 2])
}

pub(super) fn vocabulary(config: &ModelConfig, [source, slot]: [&str; 2]) -> SourceRule {
    let sharding = Sharding::Vocabulary { multiple: VOCABULARY_MULTIPLE };
    let shape = [config.vocab_size, config.hidden_size];
    rule(config, source.to_owned(), &shape, slot.to_owned(), sharding)
}

pub(super) fn final_norm(config: &ModelConfig) -> SourceRule {
    let [source, slot] = match config.family {
        Family::Mamba2 => ["backbone.norm_f.weight"; 2],
        Family::NemotronH => ["backbone.norm_f.weight", "model.norm_f.weight"],
        _ => ["model.norm.weight"; 2],
    };
    let shape = [config.hidden_size];
    rule(config, source.to_owned(), &shape, slot.to_owned(), Sharding::Replicated)
}

/// The one norm of a layer whose sources and slots are at these paths.
pub(super) fn norm(config: &ModelConfig, paths: [&str; 2]) -> Group {
    let [source, slot] = paths.map(|path| format!("{path}.norm.weight"));
    Group::plain(rule(config, source, &[config.hidden_size], slot, Sharding::Replicated))
}

/// A replicated vector or matrix of a layer.
pub(super) fn replicated(config: &ModelConfig, layer: u64, name: &str, shape: &[u64]) -> Group {
    let name = format!("model.layers.{layer}.{name}.weight");
    Group::plain(same_name(config, &name, shape, Sharding::Replicated))
}

/// q, k and v, fused, and the output projection.
pub(super) fn attention(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let owner = format!("model.layers.{layer}.self_attn");
    attention_at(config, [&owner, &owner])
}

/// The same where sources and slots are at these paths.
pub(super) fn attention_at(config: &ModelConfig, owners: [&str; 2]) -> Vec<Group> {
    let ModelConfig { heads, head_dim, hidden_size, .. } = *config;
    let mut groups = fused_heads(config, owners, "weight", &[hidden_size]);
    let [source, slot] = owners.map(|owner| format!("{owner}.o_proj.weight"));
    let shape = [hidden_size, heads * head_dim];
    groups.push(Group::plain(rule(config, source, &shape, slot, Sharding::Row)));
    groups
}

/// The biases of q, k and v, fused.
pub(super) fn qkv_biases(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let owner = format!("model.layers.{layer}.self_attn");
    fused_heads(config, [&owner, &owner], "bias", &[])
}

/// The parameter `kind` of q, k and v, fused by heads; rows have this shape.
fn fused_heads(
    config: &ModelConfig,
    [source, slot]: [&str; 2],
    kind: &str,
    row: &[u64],
) -> Vec<Group> {
    let ModelConfig { heads, kv_heads, head_dim, .. } = *config;
    let parts = [
        ("q_proj", HeadRole::Q, heads),
        ("k_proj", HeadRole::K, kv_heads),
        ("v_proj", HeadRole::V, kv_heads),
    ];
    let group = |(name, role, own): (&str, HeadRole, u64)| {
        Group::plain(rule(
            config,
            format!("{source}.{name}.{kind}"),
            &[&[own * head_dim], row].concat(),
            format!("{slot}.qkv_proj.{kind}"),
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
