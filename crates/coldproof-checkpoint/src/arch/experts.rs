//! The sources of a router and its experts.
//!
//! Experts are spelled in two ways: a source for each expert and projection (most published
//! models), or one source for all experts (transformers 5), gate rows before up rows, not
//! transposed, without the suffix `.weight`.

use coldproof_contract::routing::{Half, Sharding, SourceRule};

use super::decoder::{self, rule};
use super::{Group, ModelConfig, Moe, Spelling, SpellingName};

/// What a family calls its experts.
pub(super) struct ExpertNames {
    /// The module of router and experts in a layer.
    pub(super) module: &'static str,
    /// An expert's gate projection.
    pub(super) gate: &'static str,
    /// An expert's up projection.
    pub(super) up: &'static str,
    /// An expert's down projection.
    pub(super) down: &'static str,
    /// Whether checkpoints may have all experts in one source.
    pub(super) fused: bool,
}

/// The router and the experts of one layer.
pub(super) fn groups(
    config: &ModelConfig,
    moe: &Moe,
    layer: u64,
    names: &ExpertNames,
) -> [Group; 3] {
    let router = format!("{}.gate", names.module);
    let owner = format!("model.layers.{layer}.{}.experts", names.module);
    [
        decoder::replicated(config, layer, &router, &[moe.experts, config.hidden_size]),
        gate_up(config, moe, &owner, names),
        down(config, moe, &owner, names),
    ]
}

fn gate_up(config: &ModelConfig, moe: &Moe, owner: &str, names: &ExpertNames) -> Group {
    let slot = format!("{owner}.w13_weight");
    let (experts, rows, hidden) = (moe.experts, moe.intermediate_size, config.hidden_size);
    let one = |expert: u64, name: &str, half: Half| {
        let source = format!("{owner}.{expert}.{name}.weight");
        let sharding = Sharding::ExpertGateUp { expert, experts, half };
        rule(config, source, &[rows, hidden], slot.clone(), sharding)
    };
    let per_expert = (0..experts)
        .flat_map(|expert| [one(expert, names.gate, Half::Gate), one(expert, names.up, Half::Up)])
        .collect();
    let fused = rule(
        config,
        format!("{owner}.gate_up_proj"),
        &[experts, 2 * rows, hidden],
        slot.clone(),
        Sharding::FusedExpertsGateUp,
    );
    spelled(per_expert, names.fused.then_some(fused))
}

fn down(config: &ModelConfig, moe: &Moe, owner: &str, names: &ExpertNames) -> Group {
    let slot = format!("{owner}.w2_weight");
    let (experts, rows, hidden) = (moe.experts, moe.intermediate_size, config.hidden_size);
    let per_expert = (0..experts)
        .map(|expert| {
            let source = format!("{owner}.{expert}.{}.weight", names.down);
            let sharding = Sharding::ExpertRow { expert, experts };
            rule(config, source, &[hidden, rows], slot.clone(), sharding)
        })
        .collect();
    let fused = rule(
        config,
        format!("{owner}.down_proj"),
        &[experts, hidden, rows],
        slot.clone(),
        Sharding::FusedExpertsRow,
    );
    spelled(per_expert, names.fused.then_some(fused))
}

/// One source an expert and projection, or, where the family has it, one for all experts.
fn spelled(per_expert: Vec<SourceRule>, fused: Option<SourceRule>) -> Group {
    let fused = fused.map(|rule| Spelling { name: SpellingName::Fused, rules: vec![rule] });
    let per_expert = Spelling { name: SpellingName::PerExpert, rules: per_expert };
    Group { spellings: std::iter::once(per_expert).chain(fused).collect() }
}
