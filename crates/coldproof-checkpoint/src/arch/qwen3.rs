//! `qwen3`: llama's layer, with queries and keys normalised by head.

use super::{Group, ModelConfig, decoder, llama};

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = llama::layer(config, layer);
    groups.extend(decoder::qk_norms(config, layer));
    groups
}
