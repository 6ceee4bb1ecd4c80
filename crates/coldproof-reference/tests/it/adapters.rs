//! Adapters: a model with one is the model whose weights it was added to.

use std::collections::BTreeMap;

use camino::Utf8Path;
use coldproof_checkpoint::{Factors, Lora, TensorRef};
use coldproof_contract::evidence::Fact;
use coldproof_contract::words::Topology;
use coldproof_reference::adapters::{Module, modules};
use coldproof_reference::engine::{Engine, EngineConfig, GenerateRequest, Mode};
use coldproof_reference::faults::{FaultId, Variant};
use half::bf16;

use crate::fixtures::{
    Bits, MODELS, bits, config, loaded, model_config, raw, request, tensors, update, with_fault,
};

const RANK: u64 = 4;
/// `alpha / r` is 1/2.
const ALPHA: f64 = 2.0;
/// The name that adapters are loaded under.
const NAME: &str = "adapter";

/// A folder of its own for everything that a test writes.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn folder(scratch: &tempfile::TempDir) -> &Utf8Path {
    Utf8Path::from_path(scratch.path()).unwrap()
}

/// Factors of -1/8, 0 and 1/8: with weights in steps of 1/128 all that follows is exact.
fn factors(module: &Module, seed: u64) -> Factors {
    factors_of(module, RANK, seed)
}

/// The same of any rank.
pub(crate) fn factors_of(module: &Module, rank: u64, seed: u64) -> Factors {
    let mut state = module
        .name
        .bytes()
        .fold(seed, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut values = |count: u64| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 40) % 3) as f32 / 8.0 - 0.125
        };
        (0..count).map(|_| next()).collect()
    };
    let (a, b) = (values(rank * module.inputs), values(rank * module.outputs));
    Factors::rounded((module.outputs, module.inputs), &a, &b)
}

/// Of every module of the model.
fn all_factors(model: &str, seed: u64) -> BTreeMap<String, Factors> {
    let modules = modules(&model_config(model));
    modules.iter().map(|module| (module.name.clone(), factors(module, seed))).collect()
}

fn write(at: &Utf8Path, factors: &BTreeMap<String, Factors>) {
    Lora::write(at, (RANK, ALPHA), factors).unwrap();
}

/// The checkpoint with weights in steps of 1/128, and with these factors added to them.
fn with_merged(
    model: &str,
    factors: &BTreeMap<String, Factors>,
    at: &Utf8Path,
) -> [Vec<TensorRef>; 2] {
    std::fs::create_dir_all(at.join("base")).unwrap();
    std::fs::create_dir_all(at.join("merged")).unwrap();
    let mut sides = [Vec::new(), Vec::new()];
    for tensor in tensors(model, "A") {
        let name = tensor.name.as_str();
        let Some(factors) = name.strip_suffix(".weight").and_then(|name| factors.get(name)) else {
            sides.iter_mut().for_each(|side| side.push(tensor.clone()));
            continue;
        };
        let read = tensor.read().unwrap();
        let values = read.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32());
        let base: Vec<f32> =
            values.map(|value| (value * 128.0).round().clamp(-128.0, 128.0) / 128.0).collect();
        let columns = factors.inputs as usize;
        let delta = |row: usize, column: usize| -> f32 {
            let rank = RANK as usize;
            let product = |r: usize| {
                factors.b[row * rank + r].to_f32() * factors.a[r * columns + column].to_f32()
            };
            (0..rank).map(product).sum::<f32>() * 0.5
        };
        let merged: Vec<f32> = base
            .iter()
            .enumerate()
            .map(|(index, value)| value + delta(index / columns, index % columns))
            .collect();
        for ((side, values), kind) in sides.iter_mut().zip([base, merged]).zip(["base", "merged"]) {
            let exact = |value: f32| {
                let rounded = bf16::from_f32(value);
                assert_eq!(rounded.to_f32(), value, "exact in BF16");
                rounded.to_le_bytes()
            };
            let bytes: Vec<u8> = values.into_iter().flat_map(exact).collect();
            side.push(raw(&at.join(kind), name, tensor.shape.clone(), &bytes));
        }
    }
    sides
}

fn started(config: EngineConfig, tensors: &[TensorRef]) -> Engine {
    let mut engine = Engine::start(config).unwrap();
    engine.load(tensors).unwrap();
    engine
}

fn with_adapter(mode: Mode) -> GenerateRequest {
    GenerateRequest { adapter: Some(NAME.to_owned()), ..request(mode) }
}

fn serve(engine: &mut Engine, request: &GenerateRequest) -> Bits {
    bits(&engine.generate(request).unwrap().rows)
}

/// What an engine that never had another adapter answers.
fn cold(config: EngineConfig, model: &str, label: &str, adapter: &Utf8Path) -> Bits {
    let mut engine = loaded(config, model, label);
    engine.load_adapter(NAME, adapter).unwrap();
    serve(&mut engine, &with_adapter(Mode::Eager))
}

/// The largest difference of two answers, and the largest value.
fn difference(one: &Bits, other: &Bits) -> (f32, f32) {
    assert_eq!(one.len(), other.len());
    let values = |bits: &Bits| -> Vec<f32> {
        bits.iter().flat_map(|(_, row)| row).map(|&bits| f32::from_bits(bits)).collect()
    };
    let pairs = values(one).into_iter().zip(values(other));
    pairs.fold((0.0, 0.0), |(most, largest): (f32, f32), (one, other)| {
        (most.max((one - other).abs()), largest.max(one.abs()))
    })
}

/// Topologies that a fixture is cut into.
fn topologies(model: &str) -> Vec<Topology> {
    let mut found = vec![Topology::tensor(2), Topology { tp: 1, pp: 2, ep: 1, dp: 1 }];
    if model_config(model).moe.is_some() {
        found.extend([
            Topology { tp: 1, pp: 1, ep: 2, dp: 1 },
            Topology { tp: 2, pp: 2, ep: 2, dp: 1 },
        ]);
    }
    found
}

#[test]
fn an_adapter_is_what_was_added_to_the_weights_on_every_topology() {
    for model in MODELS {
        let factors = all_factors(model, 1);
        if factors.is_empty() {
            assert_eq!(model, "mamba2", "has no attention, MLP or experts");
            continue;
        }
        let scratch = scratch();
        let adapter = folder(&scratch).join("adapter");
        write(&adapter, &factors);
        let [base, merged] = with_merged(model, &factors, folder(&scratch));
        let wanted = serve(&mut started(config(model, 1), &merged), &request(Mode::Eager));
        let mut engine = started(config(model, 1), &base);
        let bare = serve(&mut engine, &request(Mode::Eager));
        engine.load_adapter(NAME, &adapter).unwrap();
        let found = serve(&mut engine, &with_adapter(Mode::Eager));
        let (error, largest) = difference(&found, &wanted);
        assert!(error <= 2e-5 * largest, "{model}: {error} of {largest}");
        let (change, _) = difference(&found, &bare);
        assert!(change > 1e-2 * largest, "{model}: {change} of {largest}");
        assert_eq!(serve(&mut engine, &request(Mode::Eager)), bare, "{model}: without it");
        for topology in topologies(model) {
            let config = EngineConfig { topology, ..config(model, 1) };
            let mut engine = started(config, &base);
            engine.load_adapter(NAME, &adapter).unwrap();
            let other = serve(&mut engine, &with_adapter(Mode::Eager));
            assert_eq!(other, found, "{model} on {topology:?}");
        }
    }
}

#[test]
fn a_module_has_one_name_in_an_adapter_whichever_it_is() {
    let scratch = scratch();
    let at = |name: &str| folder(&scratch).join(name);
    let usual = all_factors("llava", 1);
    let other = |module: &str| module.replacen("language_model.model.", "model.language_model.", 1);
    let renamed: BTreeMap<_, _> =
        usual.iter().map(|(module, factors)| (other(module), factors.clone())).collect();
    assert!(renamed.keys().all(|module| !usual.contains_key(module)));
    write(&at("usual"), &usual);
    write(&at("renamed"), &renamed);
    write(
        &at("both"),
        &usual.iter().chain(&renamed).map(|(m, f)| (m.clone(), f.clone())).collect(),
    );
    let mut engine = loaded(config("llava", 1), "llava", "A");
    engine.load_adapter(NAME, &at("usual")).unwrap();
    let found = serve(&mut engine, &with_adapter(Mode::Eager));
    let error = engine.load_adapter(NAME, &at("both")).unwrap_err().to_string();
    assert!(error.contains("changes one module as `"), "{error}");
    engine.load_adapter("renamed", &at("renamed")).unwrap();
    let renamed = GenerateRequest { adapter: Some("renamed".to_owned()), ..request(Mode::Eager) };
    assert_eq!(serve(&mut engine, &renamed), found);
}

#[test]
fn one_expert_may_be_adapted_alone() {
    let name = "model.layers.0.mlp.experts.3.down_proj";
    let mut factors = all_factors("qwen3_moe", 1);
    factors.retain(|module, _| module == name);
    let scratch = scratch();
    let adapter = folder(&scratch).join("adapter");
    write(&adapter, &factors);
    let [base, merged] = with_merged("qwen3_moe", &factors, folder(&scratch));
    let wanted = serve(&mut started(config("qwen3_moe", 1), &merged), &request(Mode::Eager));
    let bare = serve(&mut started(config("qwen3_moe", 1), &base), &request(Mode::Eager));
    for topology in [Topology::SINGLE, Topology { tp: 2, pp: 1, ep: 2, dp: 1 }] {
        let mut engine = started(EngineConfig { topology, ..config("qwen3_moe", 1) }, &base);
        engine.load_adapter(NAME, &adapter).unwrap();
        let found = serve(&mut engine, &with_adapter(Mode::Eager));
        let (error, largest) = difference(&found, &wanted);
        assert!(error <= 2e-5 * largest, "{error} of {largest}");
        assert!(difference(&found, &bare).0 > 20.0 * error);
    }
}

/// The old adapter and the new one, and one of another rank.
fn adapters(model: &str, at: &Utf8Path) -> [camino::Utf8PathBuf; 3] {
    let [old, new, narrow] = ["old", "new", "narrow"].map(|name| at.join(name));
    write(&old, &all_factors(model, 1));
    write(&new, &all_factors(model, 2));
    let first = |factors: &Factors| {
        let rows = |values: &[bf16], columns: usize| -> Vec<f32> {
            values.chunks_exact(columns).map(|row| row[0].to_f32()).collect()
        };
        let a: Vec<f32> =
            factors.a[..factors.inputs as usize].iter().map(|value| value.to_f32()).collect();
        let b = rows(&factors.b, RANK as usize);
        Factors::rounded((factors.outputs, factors.inputs), &a, &b)
    };
    let all = all_factors(model, 3);
    let narrowed = all.iter().map(|(module, factors)| (module.clone(), first(factors))).collect();
    Lora::write(&narrow, (1, 1.0), &narrowed).unwrap();
    [old, new, narrow]
}

#[test]
fn a_name_is_written_over_in_place_and_then_as_good_as_cold() {
    for (model, topology) in [
        ("llama", Topology::tensor(2)),
        ("qwen3_moe", Topology { tp: 1, pp: 1, ep: 2, dp: 1 }),
        ("qwen3_moe", Topology { tp: 2, pp: 2, ep: 1, dp: 1 }),
    ] {
        let scratch = scratch();
        let [old, new, narrow] = adapters(model, folder(&scratch));
        let config = || EngineConfig { topology, ..config(model, 1) };
        let mut engine = loaded(config(), model, "A");
        engine.load_adapter(NAME, &old).unwrap();
        let before = serve(&mut engine, &with_adapter(Mode::Eager));
        assert_eq!(before, cold(config(), model, "A", &old));
        engine.allocator_log().unwrap();
        engine.pause().unwrap();
        engine.load_adapter(NAME, &new).unwrap();
        engine.resume().unwrap();
        assert_eq!(engine.allocator_log().unwrap(), [], "written over in place");
        let after = serve(&mut engine, &with_adapter(Mode::Eager));
        assert_ne!(after, before);
        assert_eq!(after, cold(config(), model, "A", &new));
        engine.load_adapter(NAME, &narrow).unwrap();
        let after = serve(&mut engine, &with_adapter(Mode::Eager));
        assert_eq!(after, cold(config(), model, "A", &narrow), "of another rank");
    }
}

#[test]
fn an_adapter_outlives_sleep_and_an_update_of_the_base_model() {
    let scratch = scratch();
    let [old, ..] = adapters("llama", folder(&scratch));
    let mut engine = loaded(config("llama", 2), "llama", "A");
    engine.load_adapter(NAME, &old).unwrap();
    engine.pause().unwrap();
    engine.sleep(2).unwrap();
    engine.pressure().unwrap();
    engine.release_pressure().unwrap();
    engine.wake("weights").unwrap();
    engine.wake("kv_cache").unwrap();
    crate::fixtures::update_paused(&mut engine, &tensors("llama", "A")).unwrap();
    engine.invalidate().unwrap();
    engine.resume().unwrap();
    let woken = serve(&mut engine, &with_adapter(Mode::Eager));
    assert_eq!(woken, cold(config("llama", 2), "llama", "A", &old));
    update(&mut engine, &tensors("llama", "B")).unwrap();
    let updated = serve(&mut engine, &with_adapter(Mode::Eager));
    assert_eq!(updated, cold(config("llama", 2), "llama", "B", &old));
}

fn hits(engine: &mut Engine) -> u64 {
    let facts = engine.claims().unwrap();
    let hits = facts.iter().filter_map(|(_, fact)| match fact {
        Fact::Cache(cache) if cache.cache == "prefix-kv" => Some(cache.hits),
        _ => None,
    });
    hits.sum()
}

fn cached(adapter: bool) -> GenerateRequest {
    let of = if adapter { with_adapter(Mode::Eager) } else { request(Mode::Eager) };
    GenerateRequest { use_prefix_cache: true, ..of }
}

#[test]
fn blocks_of_an_adapter_are_its_contents_and_not_its_names() {
    let scratch = scratch();
    let [old, new, _] = adapters("llama", folder(&scratch));
    for variant in [None, Some(Variant::Twin)] {
        let config = || match variant {
            None => config("llama", 1),
            Some(variant) => with_fault(config("llama", 1), FaultId::F7_02, variant),
        };
        let mut engine = loaded(config(), "llama", "A");
        let bare = serve(&mut engine, &cached(false));
        engine.load_adapter(NAME, &old).unwrap();
        let first = serve(&mut engine, &cached(true));
        assert_eq!(hits(&mut engine), 0, "the base model's blocks are not the adapter's");
        assert_eq!(serve(&mut engine, &cached(true)), first);
        assert!(hits(&mut engine) > 0);
        engine.load_adapter(NAME, &new).unwrap();
        assert_eq!(serve(&mut engine, &cached(true)), cold(config(), "llama", "A", &new));
        assert_eq!(hits(&mut engine), 0, "the old one's blocks are not the new one's");
        assert_eq!(serve(&mut engine, &cached(false)), bare);
        assert!(hits(&mut engine) > 0, "the base model's blocks are still its own");
        engine.load_adapter("another name", &old).unwrap();
        let other = GenerateRequest { adapter: Some("another name".to_owned()), ..cached(true) };
        assert_eq!(serve(&mut engine, &other), first);
        assert!(hits(&mut engine) > 0, "one content under two names");
        update(&mut engine, &tensors("llama", "B")).unwrap();
        hits(&mut engine);
        assert_eq!(serve(&mut engine, &cached(true)), cold(config(), "llama", "B", &new));
        assert_eq!(hits(&mut engine), 0, "an update of the base model is one of all blocks");
    }
}

#[test]
fn blocks_that_are_keyed_by_a_name_are_taken_for_another_adapters() {
    let scratch = scratch();
    let [old, new, _] = adapters("llama", folder(&scratch));
    let faulty = || with_fault(config("llama", 1), FaultId::F7_02, Variant::Faulty);
    let mut engine = loaded(faulty(), "llama", "A");
    engine.load_adapter(NAME, &old).unwrap();
    serve(&mut engine, &cached(true));
    engine.load_adapter(NAME, &new).unwrap();
    assert_ne!(serve(&mut engine, &cached(true)), cold(faulty(), "llama", "A", &new));
    assert!(hits(&mut engine) > 0);
}

#[test]
fn a_batch_of_several_adapters_answers_as_each_alone() {
    let scratch = scratch();
    let [old, new, _] = adapters("qwen3_moe", folder(&scratch));
    let mut engine = loaded(config("qwen3_moe", 2), "qwen3_moe", "A");
    engine.capture().unwrap();
    engine.load_adapter("old", &old).unwrap();
    engine.load_adapter("new", &new).unwrap();
    let asked = [None, Some("old"), Some("new"), None, Some("old")];
    for mode in [Mode::Eager, Mode::Graph] {
        let requests: Vec<GenerateRequest> = asked
            .iter()
            .enumerate()
            .map(|(index, adapter)| GenerateRequest {
                prompt: (0..7 + index as u32).map(|token| 11 * token + 2).collect(),
                greedy_tokens: 3,
                adapter: adapter.map(str::to_owned),
                ..request(mode)
            })
            .collect();
        let together = engine.generate_batch(&requests).unwrap();
        for (request, together) in requests.iter().zip(together) {
            let alone = engine.generate(request).unwrap();
            assert_eq!(bits(&alone.rows), bits(&together.rows), "{mode:?} {:?}", request.adapter);
            assert_eq!(alone.greedy, together.greedy);
        }
    }
}

#[test]
fn what_is_refused_says_its_name_and_changes_nothing() {
    let scratch = scratch();
    let [old, ..] = adapters("qwen3_moe", folder(&scratch));
    let topology = Topology { tp: 2, pp: 2, ep: 1, dp: 1 };
    let mut engine = loaded(EngineConfig { topology, ..config("qwen3_moe", 1) }, "qwen3_moe", "A");
    let unknown = engine.generate(&with_adapter(Mode::Eager)).unwrap_err().to_string();
    assert!(unknown.contains("`adapter`, which is not loaded"), "{unknown}");
    engine.load_adapter(NAME, &old).unwrap();
    let before = serve(&mut engine, &with_adapter(Mode::Eager));
    engine.allocator_log().unwrap();
    let last = model_config("qwen3_moe").layers - 1;
    let shaped = |name: &str, outputs, inputs| {
        let name = name.to_owned();
        (name.clone(), factors(&Module { name, outputs, inputs }, 9))
    };
    for (index, (module, text)) in [
        ("model.layers.9.self_attn.q_proj".to_owned(), "does not have"),
        ("lm_head".to_owned(), "of attention, MLP and single experts"),
        ("model.layers.0.mlp.gate".to_owned(), "of attention, MLP and single experts"),
        ("model.layers.0.self_attn.q_norm".to_owned(), "of attention, MLP and single experts"),
        (format!("model.layers.{last}.self_attn.o_proj"), "make a matrix of [5, 7]"),
    ]
    .into_iter()
    .enumerate()
    {
        let at = folder(&scratch).join(format!("wrong-{index}"));
        let mut all = all_factors("qwen3_moe", 2);
        all.extend([shaped(&module, 5, 7)]);
        write(&at, &all);
        let error = engine.load_adapter(NAME, &at).unwrap_err().to_string();
        assert!(error.contains(&format!("`{module}`")) && error.contains(text), "{error}");
        assert_eq!(engine.allocator_log().unwrap(), [], "{module}");
        assert_eq!(serve(&mut engine, &with_adapter(Mode::Eager)), before, "{module}");
        engine.allocator_log().unwrap();
    }
    let mut tied = loaded(config("llama_tied", 1), "llama_tied", "A");
    let at = folder(&scratch).join("tied");
    write(&at, &BTreeMap::from([shaped("lm_head", 5, 7)]));
    let error = tied.load_adapter(NAME, &at).unwrap_err().to_string();
    assert!(error.contains("`lm_head`") && error.contains("of attention, MLP"), "{error}");
    let error = engine.load_adapter(NAME, &folder(&scratch).join("none")).unwrap_err();
    assert!(error.to_string().contains("adapter_model.safetensors"), "{error}");
}
