//! Cold loads: against transformers, and against themselves at every topology and batch.

use coldproof_contract::words::Topology;
use coldproof_reference::engine::{Engine, EngineConfig, GenerateRequest, Mode};

use crate::fixtures::{
    MODELS, as_expected, bits, config, degrees, differences, directory, fused, loaded, memory,
    model_config, prompt, request, serve, tensors,
};

struct Expected {
    last_logits: Vec<f32>,
    greedy: Vec<u32>,
    /// Of a layer that predicts further tokens.
    draft_logits: Option<Vec<f32>>,
}

fn expected(model: &str, label: &str) -> Expected {
    let path = directory(model, "expected.json");
    let text = std::fs::read(path).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let list = |name: &str| value[label][name].as_array().expect("a list").clone();
    let logits = |name: &str| list(name).iter().map(|x| x.as_f64().unwrap() as f32).collect();
    Expected {
        last_logits: logits("last_logits"),
        draft_logits: value[label].get("draft_logits").map(|_| logits("draft_logits")),
        greedy: list("greedy").iter().map(|x| x.as_u64().unwrap() as u32).collect(),
    }
}

/// The largest difference against the largest expected magnitude.
fn relative(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

#[test]
fn logits_and_tokens_are_those_of_transformers() {
    for model in MODELS {
        for label in ["A", "B"] {
            let expected = expected(model, label);
            for &tp in degrees(model) {
                let mut engine = loaded(config(model, tp), model, label);
                let request = GenerateRequest {
                    prompt: prompt(),
                    greedy_tokens: expected.greedy.len(),
                    ..GenerateRequest::default()
                };
                let request = as_expected(model, request);
                let output = engine.generate(&request).unwrap();
                let [(at, last)] = output.rows.as_slice() else { panic!("one row") };
                assert_eq!(*at as usize, request.prompt.len() - 1);
                let difference = relative(last, &expected.last_logits);
                println!("{model} {label} tp {tp}: {difference:e}");
                assert!(difference <= 1e-3, "{model} {label} tp {tp}: {difference}");
                assert_eq!(output.greedy, expected.greedy, "{model} {label} tp {tp}");
                let drafted = output.draft_rows.first().map(|(_, row)| row);
                assert_eq!(drafted.is_some(), expected.draft_logits.is_some(), "{model}");
                if let (Some(row), Some(expected)) = (drafted, &expected.draft_logits) {
                    let difference = relative(row, expected);
                    println!("{model} {label} tp {tp}, drafted: {difference:e}");
                    assert!(difference <= 1e-3, "{model} {label} tp {tp}: {difference}");
                }
            }
        }
    }
}

#[test]
fn outputs_are_equal_in_every_bit_at_every_topology_and_mode() {
    for model in MODELS {
        let mut engine = loaded(config(model, 1), model, "A");
        let eager = serve(&mut engine, Mode::Eager).unwrap();
        assert_eq!(eager.len(), 6);
        for &tp in degrees(model) {
            let mut engine = loaded(config(model, tp), model, "A");
            engine.capture().unwrap();
            assert_eq!(serve(&mut engine, Mode::Eager).unwrap(), eager, "{model} tp {tp} eager");
            assert_eq!(serve(&mut engine, Mode::Graph).unwrap(), eager, "{model} tp {tp} graph");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch() {
    for model in ["llama", "mamba2", "nemotron_h", "qwen3_moe"] {
        for mode in [Mode::Eager, Mode::Graph] {
            let mut engine = loaded(config(model, 2), model, "A");
            engine.capture().unwrap();
            let mut requests = vec![request(mode); 4];
            for (index, request) in requests.iter_mut().enumerate() {
                request.name = format!("r{index}");
                request.prompt.truncate(24 - 5 * index);
                request.forced.truncate(5 - index);
            }
            let alone: Vec<_> = requests
                .iter()
                .map(|request| bits(&engine.generate(request).unwrap().rows))
                .collect();
            for size in 2..=4 {
                let together = engine.generate_batch(&requests[..size]).unwrap();
                let together: Vec<_> = together.iter().map(|output| bits(&output.rows)).collect();
                assert_eq!(together, alone[..size], "{model} {mode:?} batch of {size}");
            }
        }
    }
}

#[test]
fn decoding_has_the_bits_of_a_longer_prompt() {
    for model in ["llama", "mamba2", "nemotron_h"] {
        let mut engine = loaded(config(model, 1), model, "A");
        let stepped = serve(&mut engine, Mode::Eager).unwrap();
        let whole = GenerateRequest {
            prompt: [prompt(), request(Mode::Eager).forced].concat(),
            ..GenerateRequest::default()
        };
        let whole = engine.generate(&whole).unwrap();
        assert_eq!(bits(&whole.rows), stepped[5..], "{model}");
    }
}

#[test]
fn both_spellings_of_experts_load_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(folder.path()).unwrap();
    for tp in [1, 2] {
        let mut single = loaded(config("qwen3_moe", tp), "qwen3_moe", "A");
        let mut engine = Engine::start(config("qwen3_moe", tp)).unwrap();
        engine.load(&fused("qwen3_moe", "A", folder)).unwrap();
        assert!(differences(&memory(&mut engine), &memory(&mut single)).is_empty());
    }
}

#[test]
fn another_layout_of_memory_changes_no_bit() {
    let mut engine = loaded(config("qwen3_moe", 2), "qwen3_moe", "A");
    let other = EngineConfig {
        arena_base: 0x1000_0000_0000,
        reversed_allocation: true,
        seed: 77,
        ..config("qwen3_moe", 2)
    };
    let mut other = loaded(other, "qwen3_moe", "A");
    assert!(differences(&memory(&mut engine), &memory(&mut other)).is_empty());
    let (a, b) = (serve(&mut engine, Mode::Eager), serve(&mut other, Mode::Eager));
    assert_eq!(a.unwrap(), b.unwrap());
}

#[test]
fn the_same_seed_gives_the_same_allocator_log() {
    let run = || {
        let mut engine = loaded(config("llama", 2), "llama", "A");
        engine.capture().unwrap();
        serve(&mut engine, Mode::Graph).unwrap();
        (engine.allocator_log().unwrap(), engine.graph_nodes().unwrap(), engine.launches().unwrap())
    };
    let first = run();
    assert!(!first.0.is_empty() && !first.1.is_empty() && !first.2.is_empty());
    assert_eq!(first, run());
}

#[test]
fn a_topology_that_does_not_divide_names_those_that_do() {
    for (tp, text) in [(3, "attention heads 4; these do: 1, 2, 4"), (8, "these do: 1, 2, 4")] {
        let error = Engine::start(config("llama", tp)).expect_err("does not divide");
        assert!(error.to_string().contains(text), "{error}");
    }
    let spread = EngineConfig {
        topology: Topology { tp: 1, pp: 1, ep: 2, dp: 1 },
        ..EngineConfig::new(model_config("llama"))
    };
    let error = Engine::start(spread).expect_err("no experts");
    assert!(error.to_string().contains("ep 2: the model has no experts"), "{error}");
}

#[test]
fn a_tied_checkpoint_may_repeat_its_table_but_not_change_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(folder.path()).unwrap();
    let all = tensors("llama_tied", "A");
    let table = all.iter().find(|tensor| tensor.name == "model.embed_tokens.weight").unwrap();
    let mut bytes = table.read().unwrap();
    let repeat = crate::fixtures::raw(folder, "lm_head.weight", table.shape.clone(), &bytes);
    for order in [
        [all.as_slice(), std::slice::from_ref(&repeat)].concat(),
        [&[repeat], all.as_slice()].concat(),
    ] {
        let mut engine = Engine::start(config("llama_tied", 2)).unwrap();
        engine.load(&order).unwrap();
        let named = format!("{:?}", engine.drain_claims().unwrap());
        assert!(named.contains("redundant-alias"), "the repeat is named");
    }
    bytes[0] ^= 1;
    let other = crate::fixtures::raw(folder, "lm_head.weight", table.shape.clone(), &bytes);
    for order in [
        [all.as_slice(), std::slice::from_ref(&other)].concat(),
        [&[other], all.as_slice()].concat(),
    ] {
        let mut engine = Engine::start(config("llama_tied", 2)).unwrap();
        let error = engine.load(&order).expect_err("differs");
        assert!(error.to_string().contains("differs from `model.embed_tokens.weight`"), "{error}");
    }
}

/// Prints the bits of outputs; [`any_number_of_threads_gives_the_same_bits`] reads them.
#[test]
fn bits_are_printed() {
    let mut engine = loaded(config("qwen3_moe", 2), "qwen3_moe", "A");
    let rows = serve(&mut engine, Mode::Eager).unwrap();
    assert_eq!(rows.len(), 6);
    println!("\nbits: {rows:x?}");
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let run = |threads: &str| {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cold::bits_are_printed", "--nocapture"])
            .env("RAYON_NUM_THREADS", threads)
            .output()
            .unwrap();
        let printed = String::from_utf8(child.stdout).unwrap();
        let line = printed.lines().find(|line| line.starts_with("bits: "));
        line.expect("the child prints one line").to_owned()
    };
    let one = run("1");
    assert_eq!(run("2"), one);
    assert_eq!(run("5"), one);
}
