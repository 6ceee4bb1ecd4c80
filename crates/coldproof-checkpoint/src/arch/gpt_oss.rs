//! `gpt_oss`: every projection with a bias, a sink for each head, every other layer over a window,
//! and experts whose gate and up columns take turns, inputs before outputs.
//!
//! A slot of experts keeps the order of its source. vLLM turns it, at names of its own: there this
//! family is judged by what a cold load shows.

use coldproof_contract::routing::Sharding;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::decoder::{self, rule};
use super::fields::Fields;
use super::{ConfigError, Group, ModelConfig, Window};

/// A gate that is clamped: `(up + 1) * gate * sigmoid(alpha * gate)`, the gate at most `limit`, up
/// within `-limit..limit`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Swiglu {
    /// Of the sigmoid.
    pub alpha: f64,
    /// Of both halves.
    pub limit: f64,
}

impl Swiglu {
    /// What transformers takes where the configuration is silent.
    pub(super) fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        Ok(Self {
            alpha: fields.positive("swiglu_alpha")?.unwrap_or(1.702),
            limit: fields.positive("swiglu_limit")?.unwrap_or(7.0),
        })
    }
}

pub(super) fn window(fields: Fields<'_>, layers: u64) -> Result<Option<Window>, ConfigError> {
    Window::read(fields, layers, |layer| layer.is_multiple_of(2))
}

pub(super) fn refuse(fields: Fields<'_>) -> Result<(), ConfigError> {
    fields.only("hidden_act", &[json!("silu")])?;
    fields.only("attention_bias", &[json!(true)])
}

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = decoder::norms(config, layer).to_vec();
    groups.extend(decoder::attention(config, layer));
    groups.extend(decoder::qkv_biases(config, layer));
    groups.extend(attention_rest(config, layer));
    groups.extend(experts(config, layer));
    groups
}

fn attention_rest(config: &ModelConfig, layer: u64) -> [Group; 2] {
    let group = |name: &str, shape: u64, sharding| {
        let name = format!("model.layers.{layer}.self_attn.{name}");
        Group::plain(rule(config, name.clone(), &[shape], name, sharding))
    };
    [
        group("o_proj.bias", config.hidden_size, Sharding::Replicated),
        group("sinks", config.heads, Sharding::Column),
    ]
}

fn experts(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let Some(moe) = config.moe_of(layer) else { return Vec::new() };
    let owner = format!("model.layers.{layer}.mlp");
    let (experts, inner, hidden) = (moe.experts, moe.intermediate_size, config.hidden_size);
    let group = |source: &str, shape: &[u64], slot: &str, sharding| {
        let (source, slot) = (format!("{owner}.{source}"), format!("{owner}.{slot}"));
        Group::plain(rule(config, source, shape, slot, sharding))
    };
    let fused = |source: &str, shape: &[u64], slot: &str, sharding| {
        group(&format!("experts.{source}"), shape, &format!("experts.{slot}"), sharding)
    };
    let columns = 2 * inner;
    vec![
        group("router.weight", &[experts, hidden], "router.weight", Sharding::Replicated),
        group("router.bias", &[experts], "router.bias", Sharding::Replicated),
        fused("gate_up_proj", &[experts, hidden, columns], "w13_weight", Sharding::FusedExpertsRow),
        fused("gate_up_proj_bias", &[experts, columns], "w13_bias", Sharding::FusedExpertsRow),
        fused("down_proj", &[experts, inner, hidden], "w2_weight", Sharding::FusedExpertsInputs),
        fused("down_proj_bias", &[experts, hidden], "w2_bias", Sharding::FusedExperts),
    ]
}
