//! `qwen2`: llama's layer, with a bias of queries, keys and values.

use super::{Group, ModelConfig, decoder, llama};

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = llama::layer(config, layer);
    groups.extend(decoder::qkv_biases(config, layer));
    groups
}
