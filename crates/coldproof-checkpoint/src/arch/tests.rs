//! Tests of configurations in both spellings, and of the catalogue.

use coldproof_contract::routing::Sharding;
use coldproof_contract::words::Dtype;
use serde_json::{Value, json};

use super::*;

mod deepseek_v3;

/// A small model in the spelling of transformers 5.
fn new_spelling(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "dtype": "bfloat16", "vocab_size": 331, "hidden_size": 160,
        "intermediate_size": 272, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "attention_bias": false, "mlp_bias": false, "sliding_window": null,
        "use_sliding_window": false, "layer_types": ["full_attention", "full_attention"],
    })
}

/// The same model in the older spelling.
fn old_spelling(model_type: &str) -> Value {
    let mut config = new_spelling(model_type);
    let map = config.as_object_mut().unwrap();
    for (new, old) in [("dtype", "torch_dtype"), ("num_local_experts", "num_experts")] {
        let value = map.remove(new).unwrap();
        map.insert(old.to_owned(), value);
    }
    map.remove("rope_parameters");
    map.insert("rope_theta".to_owned(), json!(10000.0));
    map.insert("rope_scaling".to_owned(), Value::Null);
    config
}

fn parse(config: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::parse(config.to_string().as_bytes())
}

/// The new spelling with some fields replaced, or removed by null.
fn with(model_type: &str, fields: Value) -> Result<ModelConfig, ConfigError> {
    let mut config = new_spelling(model_type);
    let Value::Object(fields) = fields else { panic!("an object") };
    config.as_object_mut().unwrap().extend(fields);
    parse(&config)
}

fn refused(model_type: &str, fields: Value) -> String {
    with(model_type, fields).unwrap_err().to_string()
}

#[test]
fn both_spellings_are_one_model() {
    for model_type in ["llama", "mixtral", "qwen2", "qwen3", "qwen3_moe"] {
        let new = parse(&new_spelling(model_type)).unwrap();
        assert_eq!(new, parse(&old_spelling(model_type)).unwrap());
        assert_eq!(new.family.model_type(), model_type);
        assert_eq!(new.dtype, Dtype::Bf16);
        assert_eq!(new.moe.is_some(), ["mixtral", "qwen3_moe"].contains(&model_type));
        assert_eq!(new.qk_norm(), model_type.starts_with("qwen3"));
        assert_eq!(new.attention_bias() == AttentionBias::Qkv, model_type == "qwen2");
        let text = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&text).unwrap(), new);
    }
}

#[test]
fn llama_has_the_defaults_of_early_configurations_and_others_have_none() {
    let fields = json!({"head_dim": null, "num_key_value_heads": null, "rope_parameters": null});
    let config = with("llama", fields.clone()).unwrap();
    assert_eq!((config.kv_heads, config.head_dim, config.rope.theta), (4, 40, 10_000.0));
    assert_eq!(refused("qwen3", fields), "the field `num_key_value_heads` is missing");
    assert_eq!(refused("qwen3", json!({"head_dim": null})), "the field `head_dim` is missing");
    assert_eq!(
        refused("llama", json!({"head_dim": null, "hidden_size": 162})),
        "the field `num_attention_heads` is 4: it does not divide hidden_size (162), and head_dim \
         is missing"
    );
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let longrope = json!({"rope_type": "longrope", "rope_theta": 1e6, "factor": 4.0});
    let mscale = json!({"rope_type": "yarn", "factor": 4.0, "mscale": 0.5});
    let cases = [
        (
            json!({"model_type": "gpt2"}),
            "the field `model_type` is `gpt2`, which is not supported (supported: \
             `deepseek_v3`, `gemma3_text`, `gpt_oss`, `llama`, `llava`, `mamba2`, `mixtral`, \
             `nemotron_h`, `qwen2`, \
             `qwen3`, `qwen3_moe`)",
        ),
        (
            json!({"rope_parameters": longrope}),
            "the field `rope_parameters.rope_type` is `longrope`, which is not supported \
             (supported: `default`, `linear`, `llama3`, `yarn`)",
        ),
        (
            json!({"rope_parameters": mscale}),
            "the field `rope_parameters.mscale` is 0.5, which is not supported (supported: none)",
        ),
        (
            json!({"rope_parameters": null, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "the field `rope_scaling.type` is `dynamic`, which is not supported (supported: \
             `default`, `linear`, `llama3`, `yarn`)",
        ),
        (
            json!({"attention_bias": true}),
            "the field `attention_bias` is true, which is not supported (supported: false)",
        ),
        (
            json!({"mlp_bias": true}),
            "the field `mlp_bias` is true, which is not supported (supported: false)",
        ),
        (
            json!({"hidden_act": "gelu"}),
            "the field `hidden_act` is `gelu`, which is not supported (supported: `silu`)",
        ),
        (
            json!({"quantization_config": {"quant_method": "fp8"}}),
            "the field `quantization_config` is an object, which is not supported (supported: \
             none)",
        ),
        (
            json!({"use_sliding_window": true}),
            "the field `use_sliding_window` is true, which is not supported (supported: false)",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "the field `layer_types` is `sliding_attention`, which is not supported (supported: \
             `full_attention`)",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "the field `partial_rotary_factor` is 0.5, which is not supported (supported: 1, 1.0)",
        ),
        (
            json!({"dtype": "int8"}),
            "the field `dtype` is `int8`, which is not supported (supported: `bfloat16`, \
             `float16`, `float32`)",
        ),
    ];
    for (fields, message) in cases {
        assert_eq!(refused("qwen3", fields), message);
    }
    assert!(refused("mixtral", json!({"sliding_window": 64})).contains("`sliding_window` is 64"));
}

#[test]
fn absurd_sizes_are_errors() {
    let big = 1_u64 << 28;
    let cases = [
        (json!({"hidden_size": 0}), "`hidden_size` is 0: a size is a whole number from 1 to"),
        (json!({"hidden_size": -1}), "`hidden_size` is -1: a size"),
        (json!({"hidden_size": 2.5}), "`hidden_size` is 2.5: a size"),
        (json!({"vocab_size": u64::MAX}), "`vocab_size` is 18446744073709551615: a size"),
        (json!({"hidden_size": "160"}), "`hidden_size` is a string; it must be a whole number"),
        (json!({"num_key_value_heads": 3}), "it does not divide num_attention_heads (4)"),
        (json!({"num_key_value_heads": 8}), "it does not divide num_attention_heads (4)"),
        (json!({"head_dim": 31}), "rotary embedding needs an even number of rows"),
        (json!({"rms_norm_eps": 0.0}), "`rms_norm_eps` is 0.0: it must be positive"),
        (json!({"num_experts_per_tok": 7}), "`num_experts_per_tok` is 7: there are 6 experts"),
        (json!({"decoder_sparse_step": 0}), "`decoder_sparse_step` is 0: a size"),
        (json!({"mlp_only_layers": [-1]}), "`mlp_only_layers` is a number; it must be a list of"),
        (json!({"num_hidden_layers": big}), "sources, above 1048576"),
        (json!({"num_local_experts": big}), "sources, above 1048576"),
        (json!({"hidden_size": big, "vocab_size": big}), "the sizes together give"),
        (json!({"num_attention_heads": big, "head_dim": big}), "the sizes together give"),
        (json!({"moe_intermediate_size": big, "hidden_size": big}), "the sizes together give"),
        (json!({"max_position_embeddings": big, "head_dim": 1 << 20}), "its rotary table would"),
    ];
    for (fields, part) in cases {
        let message = refused("qwen3_moe", fields.clone());
        assert!(message.contains(part), "{fields}: {message}");
    }
}

#[test]
fn a_rotary_table_of_a_gibibyte_is_the_largest() {
    let positions = |count: u64| json!({"max_position_embeddings": count});
    assert_eq!(
        refused("llama", positions(1 << 28)),
        "the field `max_position_embeddings` is 268435456: its rotary table would take \
         34359738368 bytes at a head_dim of 32, above 1073741824; a smaller \
         max_position_embeddings is needed"
    );
    // Of 32 F32 each.
    let most = (1 << 30) / 128;
    assert!(refused("llama", positions(most + 1)).contains("its rotary table"));
    assert_eq!(with("llama", positions(most)).unwrap().max_positions, most);
}

#[test]
fn missing_fields_are_named() {
    for field in [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "rms_norm_eps",
    ] {
        let message = refused("llama", json!({ field: null }));
        assert_eq!(message, format!("the field `{field}` is missing"));
    }
    assert_eq!(
        refused("llama", json!({"dtype": null})),
        "the field `dtype` or `torch_dtype` is missing"
    );
    assert_eq!(
        refused("qwen3_moe", json!({"num_local_experts": null})),
        "the field `num_experts` or `num_local_experts` is missing"
    );
}

#[test]
fn spellings_that_disagree_are_refused_and_equal_ones_are_not() {
    assert!(with("llama", json!({"torch_dtype": "bfloat16", "rope_theta": 10000})).is_ok());
    assert_eq!(
        refused("llama", json!({"torch_dtype": "float32"})),
        "the fields `dtype` (\"bfloat16\") and `torch_dtype` (\"float32\") disagree"
    );
    assert_eq!(
        refused("qwen3_moe", json!({"num_experts": 8})),
        "the fields `num_experts` (8) and `num_local_experts` (6) disagree"
    );
    assert_eq!(
        refused("llama", json!({"rope_theta": 500000})),
        "the fields `rope_theta` (500000) and `rope_parameters.rope_theta` (10000) disagree"
    );
    let linear = json!({"rope_scaling": {"type": "linear", "factor": 2.0}});
    assert!(refused("llama", linear).contains("`rope_scaling`"));
}

#[test]
fn a_key_twice_and_malformed_json_are_refused() {
    let twice = br#"{"model_type": "llama", "hidden_size": 1, "hidden_size": 2}"#;
    let message = ModelConfig::parse(twice).unwrap_err().to_string();
    assert_eq!(message, "the key `hidden_size` occurs twice in one object");
    assert!(matches!(ModelConfig::parse(b"{"), Err(ConfigError::Json(_))));
    assert!(matches!(ModelConfig::parse(b"[]"), Err(ConfigError::Kind { .. })));
}

#[test]
fn rotary_frequencies_are_those_of_transformers() {
    let default = Rope { theta: 10_000.0, scaling: RopeScaling::Default };
    assert_eq!(default.inverse_frequencies(4), [1.0, 0.01]);
    let linear = Rope { theta: 10_000.0, scaling: RopeScaling::Linear { factor: 4.0 } };
    assert_eq!(linear.inverse_frequencies(4), [0.25, 0.0025]);
    // Llama 3.1: high frequencies kept, low ones divided by 8, one in between interpolated.
    let fields = json!({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0,
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}});
    let llama3 = with("llama", fields).unwrap().rope;
    let plain = Rope { theta: 500_000.0, scaling: RopeScaling::Default };
    let (scaled, plain) = (llama3.inverse_frequencies(128), plain.inverse_frequencies(128));
    assert_eq!(scaled[0], plain[0]);
    assert_eq!(scaled[63], plain[63] / 8.0);
    let ratio: Vec<f32> = scaled.iter().zip(&plain).map(|(a, b)| a / b).collect();
    assert!(ratio.is_sorted_by(|a, b| a >= b), "{ratio:?}");
    // Pair 32 has the frequency 1 / sqrt(500000), so the wavelength 4442.88...: smooth is
    // (8192 / 4442.8829 - 1) / 3 = 0.281279, and the ratio 0.125 + 0.875 * 0.281279.
    assert!((ratio[32] - 0.371_119).abs() < 1e-5, "{}", ratio[32]);
    let crossed = json!({"rope_parameters": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 4.0, "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8192}});
    assert!(refused("llama", crossed).contains("must exceed low_freq_factor (4)"));
    let crossed = json!({"rope_parameters": {"rope_type": "yarn", "factor": 8.0,
        "beta_fast": 1.0, "beta_slow": 1.0, "original_max_position_embeddings": 8192}});
    assert!(refused("llama", crossed).contains("must exceed beta_slow (1)"));
    for flat in [json!({"rope_theta": 1.0}), json!({"rope_parameters": {"rope_theta": 0.5}})] {
        assert!(refused("llama", flat).contains("rope_theta` is"));
    }
}

/// A gemma in the spelling of transformers 5, some fields replaced.
fn gemma(fields: Value) -> Result<ModelConfig, ConfigError> {
    let mut all = json!({
        "hidden_activation": "gelu_pytorch_tanh", "hidden_act": null, "sliding_window": 16,
        "tie_word_embeddings": null, "query_pre_attn_scalar": 64,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
            "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    });
    let Value::Object(fields) = fields else { panic!("an object") };
    all.as_object_mut().unwrap().extend(fields);
    with("gemma3_text", all)
}

#[test]
fn a_gemma_is_the_same_in_both_spellings() {
    let new = gemma(json!({})).unwrap();
    assert!(new.tied && new.qk_norm() && new.gemma_norms());
    assert_eq!(
        (0..4).map(|layer| new.window_of(layer)).collect::<Vec<_>>(),
        [Some(16), None, Some(16), None]
    );
    assert_eq!(new.query_scalar, 64.0);
    assert_eq!((new.rope.theta, new.global_rope.as_ref().unwrap().theta), (1e4, 1e6));
    let old = gemma(json!({
        "layer_types": null, "sliding_window_pattern": 2, "rope_parameters": null,
        "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }));
    assert_eq!(old.unwrap(), new);
    let usual =
        json!({"layer_types": null, "rope_parameters": null, "query_pre_attn_scalar": null});
    let usual = gemma(usual).unwrap();
    assert_eq!((usual.query_scalar, usual.window_of(3)), (256.0, Some(16)));
    let full = json!({"sliding_window": null, "layer_types": vec!["full_attention"; 4]});
    assert_eq!(gemma(full).unwrap().window, None);
}

#[test]
fn what_a_gemma_does_not_say_right_is_refused() {
    let cases = [
        (json!({"sliding_window": null}), "the field `sliding_window` is missing"),
        (json!({"layer_types": ["full_attention"]}), "`layer_types` is 1 long: there are 4 layers"),
        (json!({"layer_types": vec!["chunked_attention"; 4]}), "`chunked_attention`, which is not"),
        (
            json!({"final_logit_softcapping": 30.0}),
            "`final_logit_softcapping` is 30.0, which is not",
        ),
        (
            json!({"rope_parameters": {"full_attention": {}}}),
            "the field `rope_parameters.sliding_attention` is missing",
        ),
        (json!({"hidden_activation": "silu"}), "`hidden_activation` is `silu`, which is not"),
        (
            json!({"rope_parameters": {"sliding_attention": {},
                "full_attention": {"rope_type": "x"}}}),
            "`rope_parameters.full_attention.rope_type` is `x`, which is not",
        ),
    ];
    for (fields, part) in cases {
        let message = gemma(fields.clone()).unwrap_err().to_string();
        assert!(message.contains(part), "{fields}: {message}");
    }
}

#[test]
fn yarn_is_that_of_transformers() {
    let yarn = |truncate: bool| {
        let fields = json!({"rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0,
            "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": truncate,
            "original_max_position_embeddings": 4096}});
        with("llama", fields).unwrap().rope
    };
    assert!((yarn(true).magnitude() - 1.3465736).abs() < 1e-6);
    for (truncate, expected) in [
        (false, [5.081_327e-2, 6.794_959e-3, 4.564_839e-4, 4.099_978e-6]),
        (true, [5.081_327e-2, 7.015_714e-3, 5.809_475e-4, 4.099_978e-6]),
    ] {
        let found = yarn(truncate).inverse_frequencies(64);
        for (pair, expected) in [8, 12, 16, 24].into_iter().zip(expected) {
            assert!((found[pair] / expected - 1.0).abs() < 1e-5, "{truncate} {pair}: {found:?}");
        }
    }
    assert_eq!(with("llama", json!({})).unwrap().rope.magnitude(), 1.0);
}

#[test]
fn a_gpt_oss_has_biases_sinks_and_turned_experts() {
    let fields = json!({"attention_bias": true, "sliding_window": 16, "layer_types": null});
    let config = with("gpt_oss", fields).unwrap();
    assert_eq!(config.swiglu, Some(Swiglu { alpha: 1.702, limit: 7.0 }));
    assert_eq!([0, 1].map(|layer| config.window_of(layer)), [Some(16), None]);
    let catalogue = Catalogue::of(&config);
    let rule = |name: &str| catalogue.all_rules().find(|rule| rule.source == name).unwrap();
    let slots = [
        ("model.layers.1.self_attn.k_proj.bias", "model.layers.1.self_attn.qkv_proj.bias"),
        ("model.layers.1.self_attn.o_proj.bias", "model.layers.1.self_attn.o_proj.bias"),
        ("model.layers.1.self_attn.sinks", "model.layers.1.self_attn.sinks"),
        ("model.layers.1.mlp.router.bias", "model.layers.1.mlp.router.bias"),
        ("model.layers.1.mlp.experts.gate_up_proj_bias", "model.layers.1.mlp.experts.w13_bias"),
    ];
    for (source, slot) in slots {
        assert_eq!(rule(source).slot.0, slot);
    }
    let down = rule("model.layers.1.mlp.experts.down_proj");
    assert_eq!(
        (down.shape.as_slice(), &down.sharding),
        ([6, 272, 160].as_slice(), &Sharding::FusedExpertsInputs)
    );
    assert!(
        refused("gpt_oss", json!({"sliding_window": 16, "layer_types": null}))
            .contains("attention_bias")
    );
}

#[test]
fn sparse_layers_follow_step_and_exceptions() {
    let sparse = |fields: Value| -> Vec<bool> {
        let config = with("qwen3_moe", fields).unwrap();
        (0..4).map(|layer| config.moe_of(layer).is_some()).collect()
    };
    assert_eq!(sparse(json!({})), [true; 4]);
    assert_eq!(sparse(json!({"decoder_sparse_step": 2})), [false, true, false, true]);
    assert_eq!(sparse(json!({"mlp_only_layers": [0, 3]})), [false, true, true, false]);
    let config = with("qwen3_moe", json!({"decoder_sparse_step": 2})).unwrap();
    let catalogue = Catalogue::of(&config);
    let has = |name: &str| catalogue.all_rules().any(|rule| rule.source == name);
    assert!(has("model.layers.0.mlp.gate_proj.weight"));
    assert!(!has("model.layers.0.mlp.gate.weight"));
    assert!(has("model.layers.1.mlp.gate.weight"));
    assert!(has("model.layers.1.mlp.experts.5.down_proj.weight"));
    assert!(!has("model.layers.1.mlp.gate_proj.weight"));
}

#[test]
fn rules_have_the_slots_and_cuts_of_the_table() {
    let catalogue = Catalogue::of(&parse(&new_spelling("qwen3_moe")).unwrap());
    let rule = |name: &str| catalogue.all_rules().find(|rule| rule.source == name).unwrap();
    let layer = |name: &str| rule(&format!("model.layers.1.{name}"));
    let embedding = rule("model.embed_tokens.weight");
    assert_eq!(embedding.shape, [331, 160]);
    assert_eq!(embedding.sharding, Sharding::Vocabulary { multiple: 64 });
    let k = layer("self_attn.k_proj.weight");
    assert_eq!(k.slot.0, "model.layers.1.self_attn.qkv_proj.weight");
    assert_eq!(k.shape, [64, 160]);
    let o = layer("self_attn.o_proj.weight");
    assert_eq!((o.shape.as_slice(), &o.sharding), ([160, 128].as_slice(), &Sharding::Row));
    assert_eq!(layer("self_attn.q_norm.weight").shape, [32]);
    assert_eq!(layer("mlp.gate.weight").sharding, Sharding::Replicated);
    let up = layer("mlp.experts.3.up_proj.weight");
    assert_eq!(
        (up.slot.0.as_str(), up.shape.as_slice()),
        ("model.layers.1.mlp.experts.w13_weight", [64, 160].as_slice())
    );
    let fused = layer("mlp.experts.gate_up_proj");
    assert_eq!((&fused.slot, fused.shape.as_slice()), (&up.slot, [6, 128, 160].as_slice()));
    let down = layer("mlp.experts.down_proj");
    assert_eq!(
        (down.slot.0.as_str(), down.shape.as_slice()),
        ("model.layers.1.mlp.experts.w2_weight", [6, 160, 64].as_slice())
    );
    let biased = Catalogue::of(&parse(&new_spelling("qwen2")).unwrap());
    let name = "model.layers.1.self_attn.v_proj.bias";
    let bias = biased.all_rules().find(|rule| rule.source == name).unwrap();
    assert_eq!(bias.slot.0, "model.layers.1.self_attn.qkv_proj.bias");
    assert_eq!(bias.shape, [64]);
    let mixtral = Catalogue::of(&parse(&new_spelling("mixtral")).unwrap());
    let name = "model.layers.1.block_sparse_moe.experts.3.w3.weight";
    let up = mixtral.all_rules().find(|rule| rule.source == name).unwrap();
    assert_eq!(up.slot.0, "model.layers.1.block_sparse_moe.experts.w13_weight");
    assert_eq!(up.shape, [272, 160], "an expert is as wide as the model says");
    assert!(mixtral.groups.iter().all(|group| group.spellings.len() == 1));
    let order: Vec<&str> = catalogue.usual_rules().map(|rule| rule.source.as_str()).collect();
    assert_eq!(order[0], "model.embed_tokens.weight");
    assert_eq!(order[order.len() - 2..], ["model.norm.weight", "lm_head.weight"]);
    assert!(catalogue.tied.is_empty());
    let tied = with("llama", json!({"tie_word_embeddings": true})).unwrap();
    let catalogue = Catalogue::of(&tied);
    assert!(catalogue.all_rules().all(|rule| rule.source != "lm_head.weight"));
    assert_eq!(catalogue.tied[0].target, "model.embed_tokens.weight");
}
