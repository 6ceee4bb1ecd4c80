//! `mixtral`: llama's attention, and experts behind a router in every layer.

use super::experts::{self, ExpertNames};
use super::fields::Fields;
use super::{ConfigError, Group, ModelConfig, Moe, decoder};

/// Checkpoints have one source an expert and projection, whatever wrote them.
const NAMES: ExpertNames =
    ExpertNames { module: "block_sparse_moe", gate: "w1", up: "w3", down: "w2", fused: false };

/// Every layer is sparse, and the chosen weights are renormalised.
pub(super) fn moe(fields: Fields<'_>) -> Result<Moe, ConfigError> {
    Ok(Moe {
        experts: fields.either_required_size(["num_local_experts", "num_experts"])?,
        experts_per_token: fields.required_size("num_experts_per_tok")?,
        intermediate_size: fields.required_size("intermediate_size")?,
        norm_topk_prob: true,
        sparse_step: 1,
        mlp_only_layers: Vec::new(),
        first_sparse: 0,
        shared_experts: 0,
        grouping: None,
    })
}

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = decoder::norms(config, layer).to_vec();
    groups.extend(decoder::attention(config, layer));
    if let Some(moe) = config.moe_of(layer) {
        groups.extend(experts::groups(config, moe, layer, &NAMES));
    }
    groups
}
