//! Small checkpoints of the repository, engines over them, and what is compared.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::arch::ModelConfig;
use coldproof_checkpoint::{Checkpoint, TensorRef};
use coldproof_contract::evidence::{Fact, RequestStage, SlotFact};
use coldproof_contract::words::{Address, Policy, Rank, SlotKind, Topology};
use coldproof_reference::engine::{
    Engine, EngineConfig, EngineError, GenerateRequest, Image, Mode,
};
use coldproof_reference::faults::{FaultId, FaultSwitch, Variant};

pub(crate) const MODELS: [&str; 15] = [
    "deepseek_v3",
    "deepseek_v3_mtp",
    "deepseek_v3_yarn",
    "gemma3",
    "gemma3_global",
    "gpt_oss",
    "llama",
    "llama_tied",
    "llava",
    "mamba2",
    "mixtral",
    "nemotron_h",
    "qwen2",
    "qwen3",
    "qwen3_moe",
];

/// Bytes of every slot, by rank and name.
pub(crate) type Memory = BTreeMap<(Rank, String), Vec<u8>>;

/// Logits as bits.
pub(crate) type Bits = Vec<(u32, Vec<u32>)>;

pub(crate) fn directory(model: &str, label: &str) -> Utf8PathBuf {
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../../testdata/checkpoints").join(model).join(label)
}

pub(crate) fn tensors(model: &str, label: &str) -> Vec<TensorRef> {
    let checkpoint = Checkpoint::open(&directory(model, label)).unwrap();
    checkpoint.tensors().values().cloned().collect()
}

pub(crate) fn model_config(model: &str) -> ModelConfig {
    ModelConfig::read(&directory(model, "A")).unwrap()
}

pub(crate) fn config(model: &str, tp: u32) -> EngineConfig {
    EngineConfig {
        topology: Topology::tensor(tp),
        deadline: Duration::from_secs(20),
        ..EngineConfig::new(model_config(model))
    }
}

pub(crate) fn with_fault(config: EngineConfig, id: FaultId, variant: Variant) -> EngineConfig {
    EngineConfig { faults: vec![FaultSwitch { id, variant }], ..config }
}

/// An engine with one checkpoint loaded.
pub(crate) fn loaded(config: EngineConfig, model: &str, label: &str) -> Engine {
    let mut engine = Engine::start(config).unwrap();
    engine.load(&tensors(model, label)).unwrap();
    engine
}

/// A model of the repository with another that drafts for it, as one checkpoint in `folder`.
pub(crate) fn composed(
    model: (&str, &str),
    draft: (&str, &str),
    folder: &Utf8Path,
) -> Vec<TensorRef> {
    let open = |(model, label): (&str, &str)| Checkpoint::open(&directory(model, label)).unwrap();
    coldproof_checkpoint::compose(&open(model), &open(draft), folder).unwrap();
    Checkpoint::open(folder).unwrap().tensors().values().cloned().collect()
}

pub(crate) fn prompt() -> Vec<u32> {
    (0..24).map(|index| 3 + 7 * index).collect()
}

/// Fixed tokens after the prompt.
pub(crate) fn request(mode: Mode) -> GenerateRequest {
    GenerateRequest {
        name: "fixed".to_owned(),
        prompt: prompt(),
        forced: vec![5, 300, 17, 250, 99],
        mode,
        ..GenerateRequest::default()
    }
}

/// The token in whose place an image's rows stand.
pub(crate) const IMAGE_TOKEN: u32 = 330;
/// Rows of an image.
pub(crate) const IMAGE_ROWS: usize = 16;

/// An image of 3 x 32 x 32 that begins with this value.
pub(crate) fn image(at: u32, first: usize) -> Image {
    let pixels = (0..3 * 32 * 32).map(|index| ((first + 11 * index) % 251) as u8);
    Image { at, shape: [3, 32, 32], pixels: pixels.collect() }
}

/// The request with an image behind its first token.
pub(crate) fn with_image(request: GenerateRequest) -> GenerateRequest {
    let mut prompt = request.prompt.clone();
    prompt.splice(1..1, std::iter::repeat_n(IMAGE_TOKEN, IMAGE_ROWS));
    GenerateRequest { prompt, images: vec![image(1, 37 * 3)], ..request }
}

/// The request as `expected.json` was computed for this model.
pub(crate) fn as_expected(model: &str, request: GenerateRequest) -> GenerateRequest {
    if model == "llava" { with_image(request) } else { request }
}

pub(crate) fn bits(rows: &[(u32, Vec<f32>)]) -> Bits {
    let row = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    rows.iter().map(|(position, values)| (*position, row(values))).collect()
}

/// Outputs of the fixed request.
pub(crate) fn serve(engine: &mut Engine, mode: Mode) -> Result<Bits, EngineError> {
    engine.generate(&request(mode)).map(|output| bits(&output.rows))
}

/// Pause, update, invalidate, resume.
pub(crate) fn update(engine: &mut Engine, tensors: &[TensorRef]) -> Result<(), EngineError> {
    engine.pause()?;
    update_paused(engine, tensors)?;
    engine.invalidate()?;
    engine.resume()
}

/// Begin, apply in buckets of five, finish, commit.
pub(crate) fn update_paused(engine: &mut Engine, tensors: &[TensorRef]) -> Result<(), EngineError> {
    let names: Vec<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    engine.begin(&names)?;
    for bucket in tensors.chunks(5) {
        engine.apply(bucket)?;
    }
    engine.finish()?;
    engine.commit().map(|_| ())
}

pub(crate) fn slots(engine: &mut Engine) -> Vec<(Rank, SlotFact)> {
    let slot = |(rank, fact)| match fact {
        Fact::Slot(slot) => Some((rank, slot)),
        _ => None,
    };
    engine.claims().unwrap().into_iter().filter_map(slot).collect()
}

/// Every slot's first byte, as the engine registers it.
pub(crate) fn addresses(engine: &mut Engine) -> BTreeMap<(Rank, String), Address> {
    let address = |(rank, slot): (Rank, SlotFact)| {
        let fingerprint = slot.fingerprint.expect("bound");
        ((rank, slot.slot.0), fingerprint.address)
    };
    slots(engine).into_iter().map(address).collect()
}

/// Degrees of tensor parallelism that divide a model.
pub(crate) fn degrees(model: &str) -> &'static [u32] {
    match model {
        "mamba2" | "nemotron_h" => &[1, 2],
        _ => &[1, 2, 4],
    }
}

/// Bytes of all slots but KV caches and states, whose contents depend on requests.
pub(crate) fn memory(engine: &mut Engine) -> Memory {
    let mut memory = Memory::new();
    for (rank, slot) in slots(engine) {
        let fingerprint = slot.fingerprint.expect("bound");
        let cache = slot.slot_kind == SlotKind::Scratch && slot.policy == Policy::Invalidate;
        if !cache {
            let bytes = engine.read(rank, fingerprint.address, fingerprint.bytes()).unwrap();
            memory.insert((rank, slot.slot.0), bytes);
        }
    }
    memory
}

/// Names of slots that differ, each with the ranks that differ.
pub(crate) fn differences(a: &Memory, b: &Memory) -> BTreeMap<String, Vec<u32>> {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for ((rank, name), bytes) in a {
        if b[&(*rank, name.clone())] != *bytes {
            found.entry(name.clone()).or_default().push(rank.tp);
        }
    }
    found
}

/// Rows that were computed or fetched since the last look, by stage.
pub(crate) fn rows(engine: &mut Engine) -> BTreeMap<Option<RequestStage>, u64> {
    let mut rows = BTreeMap::new();
    for (_, fact) in engine.launches().unwrap() {
        if let Fact::Launch(launch) = fact {
            *rows.entry(launch.stage).or_default() += launch.rows;
        }
    }
    rows
}

/// The checkpoint's expert weights in the fused spelling: tensors of a file in `folder`.
pub(crate) fn fused(model: &str, label: &str, folder: &Utf8Path) -> Vec<TensorRef> {
    let config = model_config(model);
    let experts = config.moe.as_ref().expect("a sparse model").experts;
    let all = tensors(model, label);
    let read = |name: &str| {
        all.iter().find(|tensor| tensor.name == name).expect("in the fixture").read().unwrap()
    };
    let mut kept: Vec<TensorRef> =
        all.iter().filter(|tensor| !tensor.name.contains(".experts.")).cloned().collect();
    let like = |name: &str| all.iter().find(|tensor| tensor.name == name).expect("there").clone();
    for layer in 0..config.layers {
        let path = format!("model.layers.{layer}.mlp.experts");
        for (fused, parts) in
            [("gate_up_proj", ["gate_proj", "up_proj"].as_slice()), ("down_proj", &["down_proj"])]
        {
            let mut bytes = Vec::new();
            for expert in 0..experts {
                for part in parts {
                    bytes.extend(read(&format!("{path}.{expert}.{part}.weight")));
                }
            }
            let one = like(&format!("{path}.0.{}.weight", parts[0]));
            let rows = one.shape[0] * parts.len() as u64;
            let shape = vec![experts, rows, one.shape[1]];
            kept.push(raw(folder, &format!("{path}.{fused}"), shape, &bytes));
        }
    }
    kept
}

/// A BF16 tensor alone in a file.
pub(crate) fn raw(folder: &Utf8Path, name: &str, shape: Vec<u64>, bytes: &[u8]) -> TensorRef {
    let file = folder.join(name);
    fs::write(&file, bytes).unwrap();
    let dtype = coldproof_contract::words::Dtype::Bf16;
    TensorRef { name: name.to_owned(), file, offset: 0, bytes: bytes.len() as u64, dtype, shape }
}
