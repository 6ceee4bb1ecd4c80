//! Layers that predict further tokens (multi-token prediction), under the names of DeepSeek-V3's
//! checkpoints: `model.layers.{num_hidden_layers}` and on.
//!
//! Beside a decoder layer each has a table of embeddings and a head of its own, and a projection of
//! an embedded token beside the model's hidden row before it. As in vLLM, they are on the last
//! pipeline stage.

use coldproof_contract::routing::{Sharding, Stage};

use super::decoder::{self, rule, vocabulary};
use super::{Group, ModelConfig};

/// The sources of all such layers of a model.
pub(super) fn groups(config: &ModelConfig) -> Vec<Group> {
    let layers = config.layers..config.layers.saturating_add(config.mtp_layers);
    let groups = layers.flat_map(|layer| of_layer(config, layer));
    groups.map(|group| group.on(Stage::Last)).collect()
}

fn of_layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let owner = format!("model.layers.{layer}");
    let hidden = config.hidden_size;
    let table = |name: &str| {
        let name = format!("{owner}.{name}.weight");
        Group::plain(vocabulary(config, [&name, &name]))
    };
    let norm = |name: &str| decoder::replicated(config, layer, name, &[hidden]);
    let name = format!("{owner}.eh_proj.weight");
    let shape = [hidden, 2 * hidden];
    let joined = rule(config, name.clone(), &shape, name, Sharding::Replicated);
    let mut groups =
        vec![table("embed_tokens"), norm("enorm"), norm("hnorm"), Group::plain(joined)];
    groups.extend(config.family.layer(config, layer));
    groups.extend([norm("shared_head.norm"), table("shared_head.head")]);
    groups
}
