//! `qwen3_moe`: qwen3's attention, and experts behind a router in the sparse layers.
//!
//! Experts are spelled in two ways: a source for each expert and projection (most published
//! models), or one source for all experts (transformers 5), gate rows before up rows, not
//! transposed, without the suffix `.weight`.

use coldproof_contract::routing::{Half, Sharding, SourceRule};

use super::decoder::{self, rule};
use super::{Group, ModelConfig, Moe, Spelling, SpellingName};

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = decoder::norms(config, layer).to_vec();
    groups.extend(decoder::attention(config, layer));
    groups.extend(decoder::qk_norms(config, layer));
    match config.moe_of(layer) {
        None => groups.extend(decoder::dense_mlp(config, layer)),
        Some(moe) => {
            let shape = [moe.experts, config.hidden_size];
            groups.push(decoder::replicated(config, layer, "mlp.gate", &shape));
            groups.push(gate_up(config, moe, layer));
            groups.push(down(config, moe, layer));
        }
    }
    groups
}

fn gate_up(config: &ModelConfig, moe: &Moe, layer: u64) -> Group {
    let owner = format!("model.layers.{layer}.mlp.experts");
    let slot = format!("{owner}.w13_weight");
    let (experts, rows, hidden) = (moe.experts, moe.intermediate_size, config.hidden_size);
    let one = |expert: u64, name: &str, half: Half| {
        let source = format!("{owner}.{expert}.{name}.weight");
        let sharding = Sharding::ExpertGateUp { expert, experts, half };
        rule(config, source, &[rows, hidden], slot.clone(), sharding)
    };
    let per_expert = (0..experts)
        .flat_map(|expert| [one(expert, "gate_proj", Half::Gate), one(expert, "up_proj", Half::Up)])
        .collect();
    let fused = rule(
        config,
        format!("{owner}.gate_up_proj"),
        &[experts, 2 * rows, hidden],
        slot.clone(),
        Sharding::FusedExpertsGateUp,
    );
    two_ways(per_expert, fused)
}

fn down(config: &ModelConfig, moe: &Moe, layer: u64) -> Group {
    let owner = format!("model.layers.{layer}.mlp.experts");
    let slot = format!("{owner}.w2_weight");
    let (experts, rows, hidden) = (moe.experts, moe.intermediate_size, config.hidden_size);
    let per_expert = (0..experts)
        .map(|expert| {
            let source = format!("{owner}.{expert}.down_proj.weight");
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
    two_ways(per_expert, fused)
}

fn two_ways(per_expert: Vec<SourceRule>, fused: SourceRule) -> Group {
    Group {
        spellings: vec![
            Spelling { name: SpellingName::PerExpert, rules: per_expert },
            Spelling { name: SpellingName::Fused, rules: vec![fused] },
        ],
    }
}
