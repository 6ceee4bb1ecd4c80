//! Topologies that the checkpoints of the repository are not cut into: the bits of one rank.

use camino::Utf8Path;
use coldproof_checkpoint::TensorRef;
use coldproof_checkpoint::arch::{Catalogue, ModelConfig};
use coldproof_contract::words::Topology;
use coldproof_reference::engine::{Engine, EngineConfig, GenerateRequest, Mode};

use crate::fixtures::{Bits, bits, raw, update};

/// A small sparse model with these heads, of whose experts a token takes two.
fn model(heads: u64, kv_heads: u64, experts: u64) -> ModelConfig {
    model_of((heads, kv_heads), (experts, 2))
}

fn model_of((heads, kv_heads): (u64, u64), (experts, top_k): (u64, u64)) -> ModelConfig {
    let text = format!(
        r#"{{"model_type": "qwen3_moe", "dtype": "bfloat16", "hidden_act": "silu",
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": 8,
            "vocab_size": 203, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
            "num_experts": {experts}, "num_experts_per_tok": {top_k}, "moe_intermediate_size": 48,
            "mlp_only_layers": [1], "norm_topk_prob": true, "rope_theta": 10000.0}}"#
    );
    ModelConfig::parse(text.as_bytes()).unwrap()
}

/// Small weights that differ by seed, tensor and element.
fn weights(model: &ModelConfig, seed: u64, folder: &Utf8Path) -> Vec<TensorRef> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 40) as f32 / (1u64 << 24) as f32;
        half::bf16::from_f32(unit - 0.5).to_le_bytes()
    };
    let catalogue = Catalogue::of(model);
    let tensors = catalogue.usual_rules().map(|rule| {
        let elements = rule.shape.iter().product::<u64>();
        let bytes: Vec<u8> = (0..elements).flat_map(|_| next()).collect();
        raw(folder, &rule.source, rule.shape.clone(), &bytes)
    });
    tensors.collect()
}

fn serve(engine: &mut Engine, mode: Mode) -> Bits {
    let request = GenerateRequest {
        prompt: (0..21).map(|token| token * 9 + 1).collect(),
        forced: vec![200, 3, 77],
        mode,
        ..GenerateRequest::default()
    };
    bits(&engine.generate(&request).unwrap().rows)
}

fn loaded(model: &ModelConfig, topology: Topology, tensors: &[TensorRef]) -> Engine {
    let config = EngineConfig { topology, ..EngineConfig::new(model.clone()) };
    let mut engine = Engine::start(config).unwrap();
    engine.load(tensors).unwrap();
    engine
}

#[test]
fn eight_ranks_with_two_kv_heads_have_the_bits_of_one() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = model(8, 2, 5);
    let a = weights(&model, 1, Utf8Path::from_path(a.path()).unwrap());
    let b = weights(&model, 2, Utf8Path::from_path(b.path()).unwrap());
    let one = serve(&mut loaded(&model, Topology::SINGLE, &b), Mode::Eager);
    for tp in [2, 4, 8] {
        let mut engine = loaded(&model, Topology::tensor(tp), &a);
        engine.capture().unwrap();
        update(&mut engine, &b).unwrap();
        assert_eq!(serve(&mut engine, Mode::Graph), one, "tp {tp}");
    }
}

#[test]
fn three_ranks_have_the_bits_of_a_cold_load_on_three() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = model(9, 3, 4);
    let a = weights(&model, 1, Utf8Path::from_path(a.path()).unwrap());
    let b = weights(&model, 2, Utf8Path::from_path(b.path()).unwrap());
    let mut engine = loaded(&model, Topology::tensor(3), &a);
    engine.capture().unwrap();
    update(&mut engine, &b).unwrap();
    let mut cold = loaded(&model, Topology::tensor(3), &b);
    assert_eq!(serve(&mut engine, Mode::Graph), serve(&mut cold, Mode::Eager));
}

#[test]
fn stages_and_spread_experts_have_the_bits_of_one_rank() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = model(4, 2, 6);
    let a = weights(&model, 1, Utf8Path::from_path(a.path()).unwrap());
    let b = weights(&model, 2, Utf8Path::from_path(b.path()).unwrap());
    let one = serve(&mut loaded(&model, Topology::SINGLE, &b), Mode::Eager);
    // Two layers on four stages: the first and the last have none.
    for (tp, pp, ep) in [(1, 2, 1), (1, 4, 1), (1, 1, 3), (2, 2, 1), (2, 1, 2), (2, 2, 2)] {
        let mut engine = loaded(&model, Topology { tp, pp, ep, dp: 1 }, &a);
        engine.capture().unwrap();
        update(&mut engine, &b).unwrap();
        assert_eq!(serve(&mut engine, Mode::Graph), one, "tp {tp}, pp {pp}, ep {ep}");
    }
}

#[test]
fn experts_that_cannot_be_spread_are_refused() {
    let model = model(4, 2, 5);
    for (topology, text) in [
        (Topology { tp: 1, pp: 1, ep: 2, dp: 1 }, "ep 2 does not divide 5 experts"),
        (Topology { tp: 1, pp: 0, ep: 1, dp: 1 }, "pp is 0"),
        (Topology { tp: 8, pp: 9, ep: 1, dp: 1 }, "72 ranks"),
        (Topology { tp: 1, pp: 1, ep: 1, dp: 0 }, "dp is 0"),
        (Topology { tp: 2, pp: 1, ep: 1, dp: 33 }, "66 ranks; the most are 64"),
    ] {
        let config = EngineConfig { topology, ..EngineConfig::new(model.clone()) };
        let error = Engine::start(config).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn eight_of_sixteen_experts_have_the_bits_of_one_rank() {
    let b = tempfile::tempdir().unwrap();
    let model = model_of((4, 2), (16, 8));
    let b = weights(&model, 2, Utf8Path::from_path(b.path()).unwrap());
    let one = serve(&mut loaded(&model, Topology::SINGLE, &b), Mode::Eager);
    for (tp, ep) in [(2, 1), (1, 2), (1, 16), (2, 4)] {
        let found = serve(&mut loaded(&model, Topology { tp, pp: 1, ep, dp: 1 }, &b), Mode::Eager);
        assert_eq!(found, one, "tp {tp}, ep {ep}");
    }
}
