//! `deepseek_v3`: latent attention, dense first layers, and experts that are chosen by groups, with
//! others that every token takes.

use coldproof_contract::routing::Sharding;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::decoder::{self, rule};
use super::experts::{self, ExpertNames};
use super::fields::Fields;
use super::{ConfigError, Group, Mla, ModelConfig, Moe, Rope, mla};

/// In both spellings.
const NAMES: ExpertNames =
    ExpertNames { module: "mlp", gate: "gate_proj", up: "up_proj", down: "down_proj", fused: true };

/// A choice of experts by groups: scores are sigmoids; a correction is added for the choice alone;
/// of every group the two largest count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grouping {
    /// Groups of the experts; divides them.
    pub groups: u64,
    /// Groups that a token may choose from; at most `groups`.
    pub chosen: u64,
    /// Factor of the chosen weights.
    pub scale: f64,
}

pub(super) fn moe(fields: Fields<'_>) -> Result<Moe, ConfigError> {
    let moe = Moe {
        experts: fields.either_required_size(["n_routed_experts", "num_local_experts"])?,
        experts_per_token: fields.required_size("num_experts_per_tok")?,
        intermediate_size: fields.required_size("moe_intermediate_size")?,
        norm_topk_prob: fields.flag("norm_topk_prob")?.unwrap_or(true),
        sparse_step: 1,
        mlp_only_layers: Vec::new(),
        first_sparse: fields.count("first_k_dense_replace")?.unwrap_or(3),
        shared_experts: fields.required_size("n_shared_experts")?,
        grouping: Some(Grouping {
            groups: fields.required_size("n_group")?,
            chosen: fields.required_size("topk_group")?,
            scale: fields.required_positive("routed_scaling_factor")?,
        }),
    };
    Ok(moe)
}

/// What a choice by groups needs of its sizes.
pub(super) fn check_grouping(moe: &Moe) -> Result<(), ConfigError> {
    let Some(Grouping { groups, chosen, .. }) = moe.grouping else { return Ok(()) };
    let size = |field: &str, value: u64, reason: String| {
        Err(ConfigError::Size { field: field.to_owned(), value: value.to_string(), reason })
    };
    if !moe.experts.is_multiple_of(groups) || moe.experts / groups < 2 {
        let reason = format!("it does not cut {} experts into groups of two or more", moe.experts);
        return size("n_group", groups, reason);
    }
    if chosen > groups {
        return size("topk_group", chosen, format!("there are {groups} groups"));
    }
    let reach = moe.experts / groups * chosen;
    if moe.experts_per_token > reach {
        let reason = format!("the chosen groups have {reach} experts");
        return size("num_experts_per_tok", moe.experts_per_token, reason);
    }
    Ok(())
}

/// What the scores are divided by the root of: yarn multiplies them by the square of its factor.
pub(super) fn query_scalar(mla: &Mla, rope: &Rope) -> f64 {
    let factor = rope.score_factor();
    mla.query_dim() as f64 / (factor * factor)
}

/// Every head has a key and a value of its own.
pub(super) fn kv_heads(fields: Fields<'_>, heads: u64) -> Result<u64, ConfigError> {
    match fields.size("num_key_value_heads")? {
        None => Ok(heads),
        Some(own) if own == heads => Ok(own),
        Some(other) => Err(ConfigError::Size {
            field: "num_key_value_heads".to_owned(),
            value: other.to_string(),
            reason: format!("latent attention has as many as num_attention_heads ({heads})"),
        }),
    }
}

pub(super) fn refuse(fields: Fields<'_>) -> Result<(), ConfigError> {
    fields.only("hidden_act", &[json!("silu")])?;
    fields.only("attention_bias", &[json!(false)])?;
    fields.only("scoring_func", &[json!("sigmoid")])?;
    fields.only("topk_method", &[json!("noaux_tc")])?;
    fields.only("moe_layer_freq", &[json!(1)])
}

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = decoder::norms(config, layer).to_vec();
    if let Some(mla) = &config.mla {
        groups.extend(mla::groups(config, mla, layer));
    }
    match config.moe_of(layer) {
        None => groups.extend(decoder::dense_mlp(config, layer)),
        Some(moe) => {
            let owner = format!("model.layers.{layer}.mlp");
            groups.extend(experts::groups(config, moe, layer, &NAMES));
            let bias = format!("{owner}.gate.e_score_correction_bias");
            let shape = [moe.experts];
            groups.push(Group::plain(rule(
                config,
                bias.clone(),
                &shape,
                bias,
                Sharding::Replicated,
            )));
            let rows = moe.shared_experts * moe.intermediate_size;
            groups.extend(decoder::gated(config, &format!("{owner}.shared_experts"), rows));
        }
    }
    groups
}
