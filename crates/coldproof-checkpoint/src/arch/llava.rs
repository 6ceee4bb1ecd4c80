//! `llava`: a llama behind a CLIP tower and a projector of two layers.
//!
//! Slots have vLLM's names. Sources have those of published checkpoints (`language_model.model.`,
//! `vision_tower.`) or, nested, those that transformers 5 has in memory (`model.language_model.`,
//! `model.vision_tower.`); a tower may also be spelled with its inner module `vision_model.`.
//! vLLM leaves out the tower's last norm and what stands behind the layer whose output is taken:
//! there this family is judged by what a cold load shows.

use coldproof_contract::routing::{HeadRole, Sharding, SourceRule, Stage};
use coldproof_contract::words::SlotName;
use serde_json::json;

use super::fields::Fields;
use super::{Catalogue, ConfigError, Group, ModelConfig, Spelling, SpellingName, Vision};

const TEXT: &str = "language_model.";
const TOWER: &str = "vision_tower.";
const INNER: &str = "vision_model.";
const NESTED: &str = "model.";

/// Only a llama without a tied head is known behind a tower.
pub(super) fn refuse(root: Fields<'_>, text: Fields<'_>) -> Result<(), ConfigError> {
    text.only("model_type", &[json!("llama")])?;
    text.only("tie_word_embeddings", &[json!(false)])?;
    root.only("tie_word_embeddings", &[json!(false)])?;
    root.only("quantization_config", &[])
}

/// The whole model: tower, projector, and the catalogue of its text part.
pub(super) fn catalogue(config: &ModelConfig, vision: &Vision, text: Catalogue) -> Catalogue {
    let mut groups = tower(config, vision);
    groups.extend(projector(config, vision));
    groups.extend(text.groups.into_iter().map(behind));
    Catalogue { groups, tied: Vec::new() }
}

/// A group of the text part under its names in the whole model.
fn behind(group: Group) -> Group {
    let rules: Vec<SourceRule> = group.spellings.into_iter().flat_map(|s| s.rules).collect();
    let named = |name: SpellingName, spell: fn(&str) -> String| Spelling {
        name,
        rules: rules
            .iter()
            .map(|rule| SourceRule {
                source: spell(&rule.source),
                slot: SlotName(format!("{TEXT}{}", rule.slot)),
                ..rule.clone()
            })
            .collect(),
    };
    let nested = |name: &str| match name.strip_prefix(NESTED) {
        Some(rest) => format!("{NESTED}{TEXT}{rest}"),
        None => name.to_owned(),
    };
    let plain = |name: &str| format!("{TEXT}{name}");
    Group {
        spellings: vec![named(SpellingName::Plain, plain), named(SpellingName::Nested, nested)],
    }
}

/// One source in each of its spellings.
fn group(names: &[(SpellingName, String)], rule: &SourceRule) -> Group {
    let spelled = |(name, source): &(SpellingName, String)| Spelling {
        name: *name,
        rules: vec![SourceRule { source: source.clone(), ..rule.clone() }],
    };
    Group { spellings: names.iter().map(spelled).collect() }
}

/// A source of the tower and its slot, both by their names within it.
fn tower_group(
    config: &ModelConfig,
    source: &str,
    shape: &[u64],
    slot: &str,
    sharding: Sharding,
) -> Group {
    let names = [
        (SpellingName::Plain, format!("{TOWER}{source}")),
        (SpellingName::Nested, format!("{NESTED}{TOWER}{source}")),
        (SpellingName::Inner, format!("{TOWER}{INNER}{source}")),
        (SpellingName::NestedInner, format!("{NESTED}{TOWER}{INNER}{source}")),
    ];
    let rule = SourceRule {
        source: String::new(),
        dtype: config.dtype,
        shape: shape.to_vec(),
        slot: SlotName(format!("{TOWER}{INNER}{slot}")),
        sharding,
        stage: Stage::First,
    };
    group(&names, &rule)
}

fn tower(config: &ModelConfig, vision: &Vision) -> Vec<Group> {
    let (hidden, patch) = (vision.hidden_size, vision.patch_size);
    let whole =
        |name: &str, shape: &[u64]| tower_group(config, name, shape, name, Sharding::Replicated);
    let norm =
        |name: &str| ["weight", "bias"].map(|kind| whole(&format!("{name}.{kind}"), &[hidden]));
    let mut groups = vec![
        whole("embeddings.class_embedding", &[hidden]),
        whole("embeddings.patch_embedding.weight", &[hidden, vision.channels, patch, patch]),
        whole("embeddings.position_embedding.weight", &[vision.positions(), hidden]),
    ];
    groups.extend(norm("pre_layrnorm"));
    for layer in 0..vision.layers {
        let path = format!("encoder.layers.{layer}");
        groups.extend(norm(&format!("{path}.layer_norm1")));
        groups.extend(attention(config, vision, &path));
        groups.extend(norm(&format!("{path}.layer_norm2")));
        groups.extend(mlp(config, vision, &path));
    }
    groups.extend(norm("post_layernorm"));
    groups
}

fn cut(vision: &Vision, cut: Sharding) -> Sharding {
    Sharding::Encoder { heads: vision.heads, cut: Box::new(cut) }
}

fn attention(config: &ModelConfig, vision: &Vision, path: &str) -> Vec<Group> {
    let (hidden, heads) = (vision.hidden_size, vision.heads);
    let mut groups = Vec::new();
    for (name, role) in [("q", HeadRole::Q), ("k", HeadRole::K), ("v", HeadRole::V)] {
        for (kind, shape) in [("weight", [hidden, hidden].as_slice()), ("bias", &[hidden])] {
            let head_dim = vision.head_dim();
            let own = Sharding::Heads { role, heads, kv_heads: heads, head_dim };
            let source = format!("{path}.self_attn.{name}_proj.{kind}");
            let slot = format!("{path}.self_attn.qkv_proj.{kind}");
            groups.push(tower_group(config, &source, shape, &slot, cut(vision, own)));
        }
    }
    let output = format!("{path}.self_attn.out_proj");
    groups.extend(projection(config, &output, [hidden, hidden], cut(vision, Sharding::Row)));
    groups
}

fn mlp(config: &ModelConfig, vision: &Vision, path: &str) -> Vec<Group> {
    let (hidden, inner) = (vision.hidden_size, vision.intermediate_size);
    let first = cut(vision, Sharding::Column);
    let mut groups = Vec::new();
    for (kind, shape) in [("weight", [inner, hidden].as_slice()), ("bias", &[inner])] {
        let name = format!("{path}.mlp.fc1.{kind}");
        groups.push(tower_group(config, &name, shape, &name, first.clone()));
    }
    let second = format!("{path}.mlp.fc2");
    groups.extend(projection(config, &second, [hidden, inner], cut(vision, Sharding::Row)));
    groups
}

/// A row-parallel weight, and its bias, which every rank holds.
fn projection(config: &ModelConfig, path: &str, shape: [u64; 2], sharding: Sharding) -> [Group; 2] {
    let (weight, bias) = (format!("{path}.weight"), format!("{path}.bias"));
    [
        tower_group(config, &weight, &shape, &weight, sharding),
        tower_group(config, &bias, &shape[..1], &bias, Sharding::Replicated),
    ]
}

fn projector(config: &ModelConfig, vision: &Vision) -> Vec<Group> {
    let (narrow, wide) = (vision.hidden_size, config.hidden_size);
    let one = |name: &str, shape: &[u64], sharding: Sharding| {
        let slot = format!("multi_modal_projector.{name}");
        let names = [
            (SpellingName::Plain, slot.clone()),
            (SpellingName::Nested, format!("{NESTED}{slot}")),
        ];
        let rule = SourceRule {
            source: String::new(),
            dtype: config.dtype,
            shape: shape.to_vec(),
            slot: SlotName(slot),
            sharding,
            stage: Stage::First,
        };
        group(&names, &rule)
    };
    vec![
        one("linear_1.weight", &[wide, narrow], Sharding::Column),
        one("linear_1.bias", &[wide], Sharding::Column),
        one("linear_2.weight", &[wide, wide], Sharding::Row),
        one("linear_2.bias", &[wide], Sharding::Replicated),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::arch::EncoderActivation;

    fn config() -> Value {
        json!({
            "model_type": "llava", "dtype": "bfloat16", "image_token_index": 330,
            "image_seq_length": 16, "vision_feature_layer": -1, "tie_word_embeddings": false,
            "vision_feature_select_strategy": "default", "projector_hidden_act": "gelu",
            "text_config": {
                "model_type": "llama", "vocab_size": 331, "hidden_size": 160,
                "intermediate_size": 272, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
                "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
            },
            "vision_config": {
                "model_type": "clip_vision_model", "hidden_size": 96, "intermediate_size": 160,
                "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32,
                "patch_size": 8, "hidden_act": "quick_gelu",
            },
        })
    }

    /// The configuration with one field, found by its path, of another value.
    fn with(path: &str, value: Value) -> Result<ModelConfig, ConfigError> {
        let mut config = config();
        let mut at = &mut config;
        for name in path.split('.') {
            at = &mut at[name];
        }
        *at = value;
        ModelConfig::parse(config.to_string().as_bytes())
    }

    #[test]
    fn the_tower_has_its_sizes_and_the_text_part_its_own() {
        let model = with("image_seq_length", json!(16)).unwrap();
        let vision = model.vision.as_ref().unwrap();
        assert_eq!((model.layers, model.hidden_size), (2, 160));
        assert_eq!((vision.patches(), vision.image_tokens(), vision.pixels()), (16, 16, 3072));
        assert_eq!((vision.patch_pixels(), vision.head_dim()), (192, 32));
        assert_eq!((vision.layers, vision.computed_layers), (2, 2));
        assert_eq!(vision.activation, EncoderActivation::QuickGelu);
        let computed = |layer: i64| {
            let model = with("vision_feature_layer", json!(layer)).unwrap();
            model.vision.unwrap().computed_layers
        };
        assert_eq!([-3, -2, 0, 1, 2].map(computed), [0, 1, 0, 1, 2]);
        let mut whole = config();
        whole["vision_feature_select_strategy"] = json!("full");
        whole["image_seq_length"] = Value::Null;
        let whole = ModelConfig::parse(whole.to_string().as_bytes()).unwrap();
        assert_eq!(whole.vision.unwrap().image_tokens(), 17, "with the class token");
    }

    #[test]
    fn what_is_not_computed_is_refused_by_its_field() {
        for (path, value, part) in [
            ("text_config.model_type", json!("qwen2"), "`text_config.model_type` is `qwen2`"),
            (
                "vision_config.model_type",
                json!("siglip_vision_model"),
                "`vision_config.model_type`",
            ),
            ("vision_config.patch_size", json!(5), "it does not divide image_size (32)"),
            ("vision_config.num_attention_heads", json!(5), "it does not divide hidden_size (96)"),
            ("vision_config.hidden_act", json!("relu"), "`vision_config.hidden_act` is `relu`"),
            ("vision_config.image_size", json!(1 << 20), "an image could take"),
            ("vision_feature_layer", json!(3), "the tower has 2 layers"),
            ("vision_feature_layer", json!(-4), "the tower has 2 layers"),
            ("vision_feature_layer", json!([-2, -1]), "it must be a whole number"),
            ("image_seq_length", json!(17), "an image has 16 rows"),
            ("image_token_index", json!(331), "the vocabulary has 331 tokens"),
            ("tie_word_embeddings", json!(true), "`tie_word_embeddings` is true"),
            ("multimodal_projector_bias", json!(false), "`multimodal_projector_bias` is false"),
            ("vision_config", Value::Null, "the field `vision_config` is missing"),
            ("text_config", Value::Null, "the field `text_config` is missing"),
        ] {
            let message = with(path, value.clone()).unwrap_err().to_string();
            assert!(message.contains(part), "{path} {value}: {message}");
        }
    }

    #[test]
    fn every_source_has_its_slot_by_the_names_of_vllm_in_each_spelling() {
        let catalogue = Catalogue::of(&with("image_seq_length", json!(16)).unwrap());
        let slot = |source: &str| {
            let rule = catalogue.all_rules().find(|rule| rule.source == source);
            rule.unwrap_or_else(|| panic!("`{source}`")).slot.0.clone()
        };
        let qkv = "vision_tower.vision_model.encoder.layers.1.self_attn.qkv_proj.bias";
        for source in [
            "vision_tower.encoder.layers.1.self_attn.k_proj.bias",
            "model.vision_tower.encoder.layers.1.self_attn.k_proj.bias",
            "vision_tower.vision_model.encoder.layers.1.self_attn.k_proj.bias",
            "model.vision_tower.vision_model.encoder.layers.1.self_attn.k_proj.bias",
        ] {
            assert_eq!(slot(source), qkv);
        }
        for source in ["language_model.lm_head.weight", "lm_head.weight"] {
            assert_eq!(slot(source), "language_model.lm_head.weight");
        }
        let norm = "language_model.model.norm.weight";
        for source in [norm, "model.language_model.norm.weight"] {
            assert_eq!(slot(source), norm);
        }
        let first = "multi_modal_projector.linear_1.weight";
        for source in [first, "model.multi_modal_projector.linear_1.weight"] {
            assert_eq!(slot(source), first);
        }
        assert_eq!(catalogue.usual_rules().count(), 64);
        assert!(catalogue.tied.is_empty());
    }
}
