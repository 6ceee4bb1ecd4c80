//! `qwen3_moe`: qwen3's attention, and experts behind a router in the sparse layers.

use super::experts::{self, ExpertNames};
use super::{Group, ModelConfig, decoder};

/// In both spellings.
const NAMES: ExpertNames =
    ExpertNames { module: "mlp", gate: "gate_proj", up: "up_proj", down: "down_proj", fused: true };

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = decoder::norms(config, layer).to_vec();
    groups.extend(decoder::attention(config, layer));
    groups.extend(decoder::qk_norms(config, layer));
    match config.moe_of(layer) {
        None => groups.extend(decoder::dense_mlp(config, layer)),
        Some(moe) => groups.extend(experts::groups(config, moe, layer, &NAMES)),
    }
    groups
}
