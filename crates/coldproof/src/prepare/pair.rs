//! The pair that `prove` makes when it is given none: a small model of the family that the faults
//! need, so that the first run needs nothing.

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::arch::{Catalogue, ModelConfig};
use coldproof_checkpoint::{
    Checkpoint, Factors, Layout, Lora, TensorSpec, perturb, write_checkpoint,
};
use coldproof_contract::words::Dtype;
use coldproof_reference::adapters::Module;

use super::failure;
use crate::error::Failure;

const LAYERS: u64 = 2;
/// Rank of an adapter.
const ADAPTER_RANK: u64 = 8;

/// Makes A and B, and says where they are.
pub(crate) fn make(
    family: &str,
    seed: u64,
    made: &Utf8Path,
) -> Result<(Utf8PathBuf, Utf8PathBuf), Failure> {
    let (a, b) = (made.join("A"), made.join("B"));
    let text = config(family);
    let model = parsed(family, &text)?;
    write(&model, &a, seed.wrapping_add(1)).map_err(failure)?;
    fs_err::write(a.join("config.json"), &text)
        .map_err(|error| Failure::output(a.as_str(), &error))?;
    let from = Checkpoint::open(&a).map_err(failure)?;
    perturb(&from, &[], &b, seed.wrapping_add(2)).map_err(failure)?;
    Ok((a, b))
}

/// Makes two draft models that fit a model, and says where they are.
pub(super) fn make_drafts(
    model: &ModelConfig,
    seed: u64,
    made: &Utf8Path,
) -> Result<(Utf8PathBuf, Utf8PathBuf), Failure> {
    let text = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": model.vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": 16,
        "max_position_embeddings": model.max_positions,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_parameters": { "rope_theta": 10000.0, "rope_type": "default" },
        "tie_word_embeddings": false,
    });
    let text = format!("{text:#}\n");
    let (a, b) = (made.join("draft-A"), made.join("draft-B"));
    for (folder, seed) in [(&a, seed.wrapping_add(5)), (&b, seed.wrapping_add(6))] {
        let own = parsed("draft", &text)?;
        write(&own, folder, seed).map_err(failure)?;
        fs_err::write(folder.join("config.json"), &text)
            .map_err(|error| Failure::output(folder.as_str(), &error))?;
    }
    Ok((a, b))
}

/// A configuration of our own.
fn parsed(object: &str, text: &str) -> Result<ModelConfig, Failure> {
    ModelConfig::parse(text.as_bytes()).map_err(|error| {
        Failure::new("config", object, error.to_string(), "report this: the pair is our own")
    })
}

fn config(family: &str) -> String {
    let mut config = serde_json::json!({
        "architectures": [match family {
            "deepseek_v3" => "DeepseekV3ForCausalLM",
            "llama" => "LlamaForCausalLM",
            "llava" => "LlavaForConditionalGeneration",
            "mamba2" => "Mamba2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            _ => "Qwen3MoeForCausalLM",
        }],
        "model_type": family,
        "dtype": "bfloat16",
        "vocab_size": 331,
        "hidden_size": 160,
        "intermediate_size": 272,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_parameters": { "rope_theta": 10000.0, "rope_type": "default" },
        "tie_word_embeddings": false,
    });
    if family == "mamba2" {
        config["num_heads"] = 10.into();
        config["n_groups"] = 2.into();
        config["state_size"] = 16.into();
        config["conv_kernel"] = 4.into();
        config["layer_norm_epsilon"] = 1e-5.into();
    }
    if family == "qwen3_moe" {
        config["num_local_experts"] = 6.into();
        config["num_experts_per_tok"] = 2.into();
        config["moe_intermediate_size"] = 64.into();
        config["norm_topk_prob"] = false.into();
        config["decoder_sparse_step"] = 1.into();
        config["mlp_only_layers"] = serde_json::json!([]);
    }
    if family == "llava" {
        config = behind_a_tower(config);
    }
    if family == "deepseek_v3" {
        latent(&mut config);
    }
    format!("{config:#}\n")
}

/// This model as the text part of one that takes images.
fn behind_a_tower(mut text: serde_json::Value) -> serde_json::Value {
    text["model_type"] = "llama".into();
    serde_json::json!({
        "architectures": text["architectures"].take(),
        "model_type": "llava",
        "dtype": text["dtype"],
        "tie_word_embeddings": false,
        "image_token_index": 330,
        "image_seq_length": 16,
        "multimodal_projector_bias": true,
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "text_config": text,
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 96,
            "intermediate_size": 160,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 3,
            "num_channels": 3,
            "image_size": 32,
            "patch_size": 8,
            "hidden_act": "quick_gelu",
            "layer_norm_eps": 1e-5,
        },
    })
}

/// What latent attention and a choice by groups are described by.
fn latent(config: &mut serde_json::Value) {
    for (field, value) in [
        ("num_key_value_heads", 4),
        ("q_lora_rank", 48),
        ("kv_lora_rank", 64),
        ("qk_nope_head_dim", 32),
        ("qk_rope_head_dim", 16),
        ("v_head_dim", 24),
        ("first_k_dense_replace", 1),
        ("n_routed_experts", 8),
        ("n_shared_experts", 1),
        ("num_experts_per_tok", 2),
        ("moe_intermediate_size", 64),
        ("n_group", 2),
        ("topk_group", 1),
        ("num_nextn_predict_layers", 1),
    ] {
        config[field] = value.into();
    }
    config["head_dim"] = 16.into();
    config["routed_scaling_factor"] = 2.5.into();
    config["scoring_func"] = "sigmoid".into();
    config["topk_method"] = "noaux_tc".into();
}

/// Deterministic weights of a sensible scale: norms about one, matrices about 0.7 / sqrt(columns).
fn write(
    model: &ModelConfig,
    out: &Utf8Path,
    seed: u64,
) -> Result<(), coldproof_checkpoint::CheckpointError> {
    let catalogue = Catalogue::of(model);
    let specs = catalogue.usual_rules().map(|rule| TensorSpec {
        name: rule.source.clone(),
        dtype: rule.dtype,
        shape: rule.shape.clone(),
    });
    write_checkpoint(out, &Layout::single(specs.collect()), |spec| {
        let mut state = name_seed(&spec.name, seed);
        let elements = spec.shape.iter().product::<u64>();
        let matrix = spec.shape.len() > 1;
        let columns = spec.shape.last().copied().unwrap_or(1) as f32;
        let scale = if matrix { 1.2 / columns.sqrt() } else { 0.3 };
        let values = (0..elements).flat_map(|_| {
            let uniform = uniform(&mut state);
            let value = if matrix { uniform * scale } else { uniform.abs() * scale + 0.9 };
            bytes(value, spec.dtype)
        });
        Ok(values.collect())
    })
}

/// An adapter of these modules and this `lora_alpha` that changes what each gives by about a fifth.
pub(super) fn write_adapter(
    modules: &[Module],
    folder: &Utf8Path,
    alpha: f64,
    seed: u64,
) -> Result<(), coldproof_checkpoint::CheckpointError> {
    let rank = ADAPTER_RANK;
    let factors = modules.iter().map(|Module { name, outputs, inputs }| {
        let mut state = name_seed(name, seed);
        let mut values = |count: u64, columns: u64| -> Vec<f32> {
            let scale = 1.0 / (columns as f32).sqrt();
            (0..count).map(|_| uniform(&mut state) * scale).collect()
        };
        let (a, b) = (values(rank * inputs, *inputs), values(outputs * rank, 8 * rank));
        (name.clone(), Factors::rounded((*outputs, *inputs), &a, &b))
    });
    Lora::write(folder, (rank, alpha), &factors.collect())
}

/// From -1 to 1.
fn uniform(state: &mut u64) -> f32 {
    (next(state) >> 40) as f32 / (1_u64 << 24) as f32 * 2.0 - 1.0
}

/// bf16 by truncation: any value near the one drawn will do.
fn bytes(value: f32, dtype: Dtype) -> Vec<u8> {
    let bytes = value.to_bits().to_le_bytes();
    if dtype == Dtype::Bf16 { bytes[2..].to_vec() } else { bytes.to_vec() }
}

fn name_seed(name: &str, seed: u64) -> u64 {
    name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
