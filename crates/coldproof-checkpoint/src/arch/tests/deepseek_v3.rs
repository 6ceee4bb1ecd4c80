//! A deepseek: latents, groups, dense first layers, yarn with factors of its own.

use coldproof_contract::routing::{HeadRole, Sharding, Stage};
use serde_json::{Value, json};

use super::*;

/// A deepseek in the spelling of transformers 5, some fields replaced.
fn deepseek(fields: Value) -> Result<ModelConfig, ConfigError> {
    let mut all = json!({
        "num_key_value_heads": 4, "head_dim": 16, "q_lora_rank": 48, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24,
        "num_local_experts": null, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 2,
        "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
        "first_k_dense_replace": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 1,
    });
    let Value::Object(fields) = fields else { panic!("an object") };
    all.as_object_mut().unwrap().extend(fields);
    with("deepseek_v3", all)
}

#[test]
fn a_deepseek_has_latents_groups_and_dense_first_layers() {
    let config = deepseek(json!({})).unwrap();
    let mla = config.mla.unwrap();
    assert_eq!((mla.query_dim(), mla.latent_dim(), mla.interleaved), (48, 80, true));
    assert_eq!((config.kv_heads, config.head_dim, config.query_scalar), (4, 16, 48.0));
    assert_eq!(
        (0..3).map(|layer| config.moe_of(layer).is_some()).collect::<Vec<_>>(),
        [false, true, true]
    );
    let grouping = config.moe.as_ref().unwrap().grouping;
    assert_eq!(grouping, Some(Grouping { groups: 2, chosen: 1, scale: 2.5 }));
    let all = deepseek(json!({"first_k_dense_replace": 0})).unwrap();
    assert!(all.moe_of(0).is_some());
    let published = deepseek(json!({"head_dim": null, "num_key_value_heads": null})).unwrap();
    assert_eq!(published, config);
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<ModelConfig>(&text).unwrap(), config);
}

#[test]
fn a_deepseek_has_the_slots_of_vllm() {
    let catalogue = Catalogue::of(&deepseek(json!({})).unwrap());
    let rule = |name: &str| {
        let name = format!("model.layers.1.{name}");
        catalogue.all_rules().find(|rule| rule.source == name).unwrap()
    };
    let fused = "model.layers.1.self_attn.fused_qkv_a_proj.weight";
    for (name, rows, first) in [("q_a_proj", 48, 0), ("kv_a_proj_with_mqa", 80, 48)] {
        let rule = rule(&format!("self_attn.{name}.weight"));
        assert_eq!((rule.slot.0.as_str(), rule.shape.as_slice()), (fused, &[rows, 160][..]));
        assert_eq!(rule.sharding, Sharding::Stacked { first, rows: 128 });
    }
    let by_heads =
        |head_dim: u64| Sharding::Heads { role: HeadRole::Q, heads: 4, kv_heads: 0, head_dim };
    for (name, shape, head_dim) in [("q_b_proj", [192, 48], 48), ("kv_b_proj", [224, 64], 56)] {
        let rule = rule(&format!("self_attn.{name}.weight"));
        assert_eq!((rule.shape.as_slice(), &rule.sharding), (&shape[..], &by_heads(head_dim)));
    }
    let output = rule("self_attn.o_proj.weight");
    assert_eq!((output.shape.as_slice(), &output.sharding), (&[160, 96][..], &Sharding::Row));
    assert_eq!(rule("mlp.gate.e_score_correction_bias").shape, [8]);
    let shared = rule("mlp.shared_experts.up_proj.weight");
    assert_eq!(shared.slot.0, "model.layers.1.mlp.shared_experts.gate_up_proj.weight");
    assert_eq!(shared.shape, [128, 160], "both side by side");
    let first = catalogue.all_rules().filter(|rule| rule.source.starts_with("model.layers.0."));
    assert!(first.into_iter().all(|rule| !rule.source.contains("experts")));
    // One layer behind the four predicts further; it is where the head is.
    let further = catalogue.all_rules().filter(|rule| rule.source.starts_with("model.layers.4."));
    let further: Vec<_> = further.collect();
    assert!(further.iter().all(|rule| rule.stage == Stage::Last));
    let joined = further.iter().find(|rule| rule.source.ends_with("eh_proj.weight")).unwrap();
    assert_eq!(
        (joined.shape.as_slice(), &joined.sharding),
        (&[160, 320][..], &Sharding::Replicated)
    );
    assert!(further.iter().any(|rule| rule.source.ends_with("experts.7.up_proj.weight")));
    let none = Catalogue::of(&deepseek(json!({"num_nextn_predict_layers": 0})).unwrap());
    assert!(none.all_rules().all(|rule| !rule.source.starts_with("model.layers.4.")));

    let direct = Catalogue::of(&deepseek(json!({"q_lora_rank": null})).unwrap());
    let sources: Vec<&str> = (direct.all_rules())
        .filter(|rule| rule.source.starts_with("model.layers.0.self_attn."))
        .map(|rule| rule.slot.0.rsplit_once("self_attn.").unwrap().1)
        .collect();
    assert_eq!(
        sources,
        [
            "q_proj.weight",
            "kv_a_proj_with_mqa.weight",
            "kv_a_layernorm.weight",
            "kv_b_proj.weight",
            "o_proj.weight",
        ]
    );
}

#[test]
fn yarn_of_a_deepseek_scales_rotations_and_scores() {
    let yarn = |more: Value| {
        let mut parameters = json!({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
            "original_max_position_embeddings": 64});
        let Value::Object(more) = more else { panic!("an object") };
        parameters.as_object_mut().unwrap().extend(more);
        deepseek(json!({"rope_parameters": parameters}))
    };
    // What transformers has for these: `attention_scaling`, and `scaling` times the root of 48.
    let both = yarn(json!({"mscale": 0.8, "mscale_all_dim": 1.2})).unwrap();
    assert!((both.rope.magnitude() - 0.952_457_2).abs() < 1e-6);
    assert!(((48.0 / both.query_scalar).sqrt() - 1.360_384_7).abs() < 1e-6);
    let none = yarn(json!({})).unwrap();
    assert!((none.rope.magnitude() - 1.138_629_4).abs() < 1e-6);
    assert_eq!(none.query_scalar, 48.0);
    let one = yarn(json!({"mscale": 0.8})).unwrap_err().to_string();
    assert_eq!(one, "the field `rope_parameters.mscale_all_dim` is missing");
    let one = yarn(json!({"mscale_all_dim": 0.8})).unwrap_err().to_string();
    assert_eq!(one, "the field `rope_parameters.mscale` is missing");
    let factor = yarn(json!({"attention_factor": 1.0})).unwrap_err().to_string();
    assert!(factor.contains("`rope_parameters.attention_factor` is 1.0"), "{factor}");
}

#[test]
fn what_a_deepseek_does_not_say_right_is_refused() {
    let big = 1_u64 << 28;
    let cases = [
        (json!({"num_key_value_heads": 2}), "latent attention has as many as num_attention_heads"),
        (json!({"n_group": 3}), "`n_group` is 3: it does not cut 8 experts into groups"),
        (json!({"n_group": 8}), "`n_group` is 8: it does not cut 8 experts into groups of two"),
        (json!({"topk_group": 3}), "`topk_group` is 3: there are 2 groups"),
        (json!({"num_experts_per_tok": 5}), "`num_experts_per_tok` is 5: the chosen groups have 4"),
        (json!({"first_k_dense_replace": -1}), "a count is a whole number from 0 to"),
        (json!({"n_shared_experts": null}), "the field `n_shared_experts` is missing"),
        (json!({"kv_lora_rank": null}), "the field `kv_lora_rank` is missing"),
        (json!({"qk_rope_head_dim": 15}), "rotary embedding needs an even number of rows"),
        (json!({"scoring_func": "softmax"}), "`scoring_func` is `softmax`, which is not"),
        (json!({"topk_method": "greedy"}), "`topk_method` is `greedy`, which is not"),
        (json!({"moe_layer_freq": 2}), "`moe_layer_freq` is 2, which is not"),
        (json!({"attention_bias": true}), "`attention_bias` is true, which is not"),
        (json!({"kv_lora_rank": big, "v_head_dim": big}), "the sizes together give"),
        (json!({"q_lora_rank": big, "qk_nope_head_dim": big}), "the sizes together give"),
        (json!({"n_shared_experts": big, "moe_intermediate_size": big}), "the sizes together give"),
    ];
    for (fields, part) in cases {
        let message = deepseek(fields.clone()).unwrap_err().to_string();
        assert!(message.contains(part), "{fields}: {message}");
    }
}
