//! `nemotron_h`: one norm and one mixer a layer, which is a state space, attention without
//! rotation, or an MLP without a gate.

use coldproof_contract::routing::Sharding;
use serde_json::json;

use super::fields::Fields;
use super::{ConfigError, Family, Group, Mixer, ModelConfig, StateSpace, decoder, state_space};

/// Kinds of layers, in the spelling of transformers 5, in the one before, and as letters.
const KINDS: [(Mixer, [&str; 2], char); 3] = [
    (Mixer::StateSpace, ["linear_attention", "mamba"], 'M'),
    (Mixer::Attention, ["full_attention", "attention"], '*'),
    (Mixer::Mlp, ["mlp", "mlp"], '-'),
];

pub(super) fn read(fields: Fields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("mamba_hidden_act", &[json!("silu")])?;
    fields.only("mlp_hidden_act", &[json!("relu2")])?;
    for name in ["attention_bias", "mlp_bias", "mamba_proj_bias"] {
        fields.only(name, &[json!(false)])?;
    }
    fields.only("sliding_window", &[])?;
    fields.only("num_nextn_predict_layers", &[json!(0)])?;
    state_space::refuse(fields)?;
    let groups = fields.either_required_size(["n_groups", "mamba_n_groups"])?;
    let space = StateSpace {
        heads: fields.required_size("mamba_num_heads")?,
        head_dim: fields.required_size("mamba_head_dim")?,
        groups,
        state_size: fields.required_size("ssm_state_size")?,
        kernel: fields.either_required_size(["conv_kernel", "mamba_d_conv"])?,
        conv_bias: fields.flag("use_conv_bias")?.unwrap_or(true),
        norm_groups: groups,
    };
    space.check(["mamba_num_heads", "n_groups", "ssm_state_size"])?;
    let head_dim = fields.either_required_size(["head_dim", "attention_head_dim"])?;
    Ok(ModelConfig {
        intermediate_size: fields.required_size("intermediate_size")?,
        layers: mixers(fields)?.len() as u64,
        heads: fields.required_size("num_attention_heads")?,
        kv_heads: fields.required_size("num_key_value_heads")?,
        head_dim,
        max_positions: fields.required_size("max_position_embeddings")?,
        rms_norm_eps: fields.required_positive("layer_norm_epsilon")?,
        query_scalar: head_dim as f64,
        state_space: Some(space),
        ..ModelConfig::bare(Family::NemotronH, fields, fields)?
    })
}

/// What each layer is, by `layers_block_type` or by the older `hybrid_override_pattern`, of which
/// both may be there if they agree.
pub(super) fn mixers(fields: Fields<'_>) -> Result<Vec<Mixer>, ConfigError> {
    let named = fields.texts("layers_block_type")?.map(|kinds| {
        let one = |kind: &str| KINDS.iter().find(|(_, names, _)| names.contains(&kind));
        let kinds = kinds.into_iter();
        kinds.map(|kind| one(kind).map(|found| found.0).ok_or_else(|| kind.to_owned())).collect()
    });
    let lettered = fields.text("hybrid_override_pattern")?.map(|pattern| {
        let one = |letter: char| KINDS.iter().find(|(_, _, own)| *own == letter);
        let letters = pattern.chars();
        letters
            .map(|letter| one(letter).map(|found| found.0).ok_or_else(|| letter.to_string()))
            .collect()
    });
    let known = |field: &'static str, found: Option<Result<Vec<Mixer>, String>>, supported| {
        let unknown = |kind: String| ConfigError::Unsupported {
            field: fields.path(field),
            value: format!("`{kind}`"),
            supported,
        };
        found.map(|found| found.map_err(unknown)).transpose()
    };
    let names = "`linear_attention`, `full_attention`, `mlp`".to_owned();
    let named = known("layers_block_type", named, names)?;
    let lettered = known("hybrid_override_pattern", lettered, "`M`, `*`, `-`".to_owned())?;
    match (named, lettered) {
        (Some(named), Some(lettered)) if named != lettered => Err(ConfigError::Disagree {
            first: fields.path("layers_block_type"),
            first_value: spelled(&named),
            second: fields.path("hybrid_override_pattern"),
            second_value: spelled(&lettered),
        }),
        (Some(mixers), _) | (None, Some(mixers)) if !mixers.is_empty() => Ok(mixers),
        _ => Err(fields.missing("layers_block_type` or `hybrid_override_pattern")),
    }
}

fn spelled(mixers: &[Mixer]) -> String {
    let letter = |mixer: &Mixer| KINDS.iter().find(|(own, _, _)| own == mixer);
    mixers.iter().filter_map(letter).map(|(_, _, letter)| *letter).collect()
}

/// Sources are under `backbone`; vLLM keeps them under `model`.
pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let paths = ["backbone", "model"].map(|root| format!("{root}.layers.{layer}"));
    let paths = [paths[0].as_str(), paths[1].as_str()];
    let mut groups = vec![decoder::norm(config, paths)];
    let mixer = paths.map(|path| format!("{path}.mixer"));
    let mixer = [mixer[0].as_str(), mixer[1].as_str()];
    groups.extend(match config.mixer_of(layer) {
        Some(Mixer::StateSpace) => state_space::groups(config, paths),
        Some(Mixer::Attention) => decoder::attention_at(config, mixer),
        Some(Mixer::Mlp) => mlp(config, mixer),
        None => Vec::new(),
    });
    groups
}

fn mlp(config: &ModelConfig, [source, slot]: [&str; 2]) -> Vec<Group> {
    let (inner, hidden) = (config.intermediate_size, config.hidden_size);
    let group = |name: &str, shape: [u64; 2], sharding| {
        let (source, slot) = (format!("{source}.{name}.weight"), format!("{slot}.{name}.weight"));
        Group::plain(decoder::rule(config, source, &shape, slot, sharding))
    };
    vec![
        group("up_proj", [inner, hidden], Sharding::Column),
        group("down_proj", [hidden, inner], Sharding::Row),
    ]
}

#[cfg(test)]
mod tests {
    use coldproof_contract::routing::Section;
    use serde_json::Value;

    use super::*;
    use crate::arch::Catalogue;

    /// The configuration of a fixture, some fields replaced.
    fn with(family: &str, fields: &Value) -> Result<ModelConfig, ConfigError> {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/checkpoints");
        let text = std::fs::read(format!("{root}/{family}/A/config.json")).unwrap();
        let mut all: Value = serde_json::from_slice(&text).unwrap();
        let own = all.as_object_mut().unwrap();
        own.extend(fields.as_object().unwrap().clone());
        ModelConfig::parse(all.to_string().as_bytes())
    }

    fn refused(family: &str, fields: &Value) -> String {
        with(family, fields).unwrap_err().to_string()
    }

    #[test]
    fn layers_are_the_same_in_every_spelling() {
        let new = with("nemotron_h", &json!({})).unwrap();
        let (recurs, mlp) = (Mixer::StateSpace, Mixer::Mlp);
        assert_eq!(new.mixers, [recurs, mlp, recurs, Mixer::Attention]);
        assert_eq!(new.layers, 4);
        let none = json!(null);
        for spelled in [
            json!({"layers_block_type": none, "hybrid_override_pattern": "M-M*"}),
            json!({"hybrid_override_pattern": "M-M*"}),
            json!({"layers_block_type": ["mamba", "mlp", "mamba", "attention"]}),
            json!({"n_groups": none, "mamba_n_groups": 2, "conv_kernel": none, "mamba_d_conv": 4}),
            json!({"head_dim": none, "attention_head_dim": 32, "time_step_limit": none}),
            json!({"time_step_limit": [0.0, "Infinity"]}),
        ] {
            assert_eq!(with("nemotron_h", &spelled).as_ref(), Ok(&new), "{spelled}");
        }
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let cases = [
            (
                json!({"layers_block_type": ["linear_attention", "moe"]}),
                "`layers_block_type` is `moe`, which is not supported",
            ),
            (
                json!({"layers_block_type": null, "hybrid_override_pattern": "MEM*"}),
                "`hybrid_override_pattern` is `E`, which is not supported",
            ),
            (json!({"hybrid_override_pattern": "M-MM"}), "(M-M*) and `hybrid_override_pattern`"),
            (json!({"layers_block_type": []}), "`layers_block_type` or `hybrid_override_pattern`"),
            (json!({"mlp_hidden_act": "silu"}), "`mlp_hidden_act` is `silu`"),
            (json!({"num_nextn_predict_layers": 1}), "`num_nextn_predict_layers` is 1"),
            (json!({"sliding_window": 16}), "`sliding_window` is 16"),
            (json!({"use_bias": true}), "`use_bias` is true"),
            (json!({"time_step_limit": [0.001, 0.1]}), "`time_step_limit` is a list"),
            (json!({"ssm_state_size": 65_537}), "the state of a layer would take 67109888 bytes"),
            (json!({"n_groups": 3}), "`n_groups` is 3: it does not divide mamba_num_heads (8)"),
        ];
        for (fields, part) in cases {
            let message = refused("nemotron_h", &fields);
            assert!(message.contains(part), "{fields}: {message}");
        }
        let message = refused("mamba2", &json!({"expand": 3}));
        assert!(message.contains("is 320 and hidden_size x expand is 480"), "{message}");
        let message = refused("mamba2", &json!({"num_hidden_layers": 1_u64 << 28}));
        assert!(message.contains("sources, above 1048576"), "{message}");
    }

    #[test]
    fn sources_are_cut_by_heads_and_groups_and_kept_under_the_engines_names() {
        let catalogue = Catalogue::of(&with("nemotron_h", &json!({})).unwrap());
        let rule = |name: &str| catalogue.all_rules().find(|rule| rule.source == name).unwrap();
        let input = rule("backbone.layers.2.mixer.in_proj.weight");
        assert_eq!(input.slot.0, "model.layers.2.mixer.in_proj.weight");
        assert_eq!(input.shape, [584, 160]);
        let section = |(rows, units)| Section { rows, units };
        let sections = [(256, 8), (256, 8), (32, 2), (32, 2), (8, 8)].map(section).to_vec();
        assert_eq!(input.sharding, Sharding::Sections { sections });
        for (source, slot) in [
            ("backbone.embeddings.weight", "model.embed_tokens.weight"),
            ("backbone.norm_f.weight", "model.norm_f.weight"),
            ("backbone.layers.3.mixer.k_proj.weight", "model.layers.3.mixer.qkv_proj.weight"),
            ("backbone.layers.1.mixer.up_proj.weight", "model.layers.1.mixer.up_proj.weight"),
        ] {
            assert_eq!(rule(source).slot.0, slot);
        }
        let unbiased = json!({"use_conv_bias": false});
        let catalogue = Catalogue::of(&with("mamba2", &unbiased).unwrap());
        assert!(catalogue.all_rules().all(|rule| !rule.source.ends_with("conv1d.bias")));
        assert!(catalogue.all_rules().all(|rule| rule.source == rule.slot.0));
    }
}
