//! Speculative decoding: the tokens are the model's own, what drafts is really used, and all that
//! it holds follows an update.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::TensorRef;
use coldproof_checkpoint::arch::ModelConfig;
use coldproof_contract::evidence::{Fact, RequestStage};
use coldproof_contract::words::{Rank, Topology};
use coldproof_reference::engine::{Engine, EngineConfig, GenerateRequest, Mode, Output};

use crate::fixtures::{
    Bits, addresses, bits, composed, config, differences, directory, loaded, memory, prompt,
    request, tensors, update,
};

/// A checkpoint folder with what it holds.
struct Drafted {
    config: ModelConfig,
    tensors: Vec<TensorRef>,
    _folder: tempfile::TempDir,
}

/// A model with another that drafts for it.
fn drafted(model: (&str, &str), draft: (&str, &str)) -> Drafted {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().join("both")).unwrap();
    let tensors = composed(model, draft, &path);
    Drafted { config: ModelConfig::read(&path).unwrap(), tensors, _folder: folder }
}

fn started(of: &Drafted, topology: Topology) -> Engine {
    let config = EngineConfig { topology, ..EngineConfig::new(of.config.clone()) };
    let mut engine = Engine::start(config).unwrap();
    engine.load(&of.tensors).unwrap();
    engine
}

fn asked(mode: Mode) -> GenerateRequest {
    GenerateRequest { greedy_tokens: 9, ..request(mode) }
}

fn answer(output: &Output) -> (Bits, Bits, Vec<u32>) {
    (bits(&output.rows), bits(&output.draft_rows), output.greedy.clone())
}

/// Rows of one kernel, by stage and graph.
fn launched(engine: &mut Engine, kernel: &str) -> BTreeMap<(Option<RequestStage>, bool), u64> {
    let mut rows = BTreeMap::new();
    for (rank, fact) in engine.launches().unwrap() {
        if let Fact::Launch(launch) = fact
            && rank == Rank::default()
            && launch.kernel == kernel
        {
            *rows.entry((launch.stage, launch.graph.is_some())).or_default() += launch.rows;
        }
    }
    rows
}

#[test]
fn the_tokens_are_those_of_the_model_alone_whatever_drafts() {
    let mut alone = loaded(config("llama", 1), "llama", "A");
    let wanted = alone.generate(&asked(Mode::Eager)).unwrap();
    alone.launches().unwrap();
    alone.generate(&asked(Mode::Eager)).unwrap();
    let forwards = launched(&mut alone, "embed")[&(None, false)];
    assert!(wanted.draft_rows.is_empty());
    let mut spent = Vec::new();
    for draft in [("llama", "A"), ("llama", "B"), ("qwen2", "A"), ("qwen3_moe", "A")] {
        let mut engine = started(&drafted(("llama", "A"), draft), Topology::SINGLE);
        let output = engine.generate(&asked(Mode::Eager)).unwrap();
        assert_eq!(bits(&output.rows), bits(&wanted.rows), "{draft:?}");
        assert_eq!(output.greedy, wanted.greedy, "{draft:?}");
        // After the prompt and after each forced token.
        assert_eq!(output.draft_rows.len(), 6, "{draft:?}");
        let rows = launched(&mut engine, "embed");
        assert!(rows[&(Some(RequestStage::Draft), false)] > 24, "{draft:?}");
        spent.push(rows[&(None, false)]);
        if draft == ("llama", "A") {
            assert_eq!(bits(&output.draft_rows), bits(&wanted.rows), "it drafts for itself");
        }
    }
    // Of one that drafts what the model chooses only the last token is computed in vain.
    assert_eq!(spent[0], forwards + 1);
    assert!(spent[1..].iter().all(|rows| *rows > spent[0]), "{spent:?}");
}

#[test]
fn drafts_have_the_same_bits_at_every_topology_and_mode() {
    let topologies = [
        Topology::tensor(2),
        Topology { pp: 2, ..Topology::SINGLE },
        Topology { ep: 2, ..Topology::SINGLE },
    ];
    let pairs = [(("qwen3_moe", "A"), Some(("llama", "A"))), (("deepseek_v3_mtp", "A"), None)];
    for (model, draft) in pairs {
        let of = match draft {
            Some(draft) => drafted(model, draft),
            None => Drafted {
                config: ModelConfig::read(&directory(model.0, model.1)).unwrap(),
                tensors: tensors(model.0, model.1),
                _folder: tempfile::tempdir().unwrap(),
            },
        };
        let wanted = started(&of, Topology::SINGLE).generate(&asked(Mode::Eager)).unwrap();
        assert_eq!(wanted.draft_rows.len(), 6);
        for topology in topologies {
            let mut engine = started(&of, topology);
            engine.capture().unwrap();
            for mode in [Mode::Eager, Mode::Graph] {
                let found = engine.generate(&asked(mode)).unwrap();
                assert_eq!(answer(&found), answer(&wanted), "{model:?} {topology:?} {mode:?}");
            }
        }
        let mut engine = started(&of, Topology::SINGLE);
        engine.capture().unwrap();
        engine.launches().unwrap();
        engine.generate(&asked(Mode::Graph)).unwrap();
        let rows = launched(&mut engine, "embed");
        assert!(rows[&(Some(RequestStage::Draft), true)] >= 5, "{model:?}: {rows:?}");
    }
}

#[test]
fn an_update_of_both_is_one_and_an_update_of_one_keeps_the_other() {
    let a = drafted(("llama", "A"), ("qwen2", "A"));
    let b = drafted(("llama", "B"), ("qwen2", "B"));
    let mut engine = started(&a, Topology::tensor(2));
    engine.capture().unwrap();
    let before = addresses(&mut engine);
    let old = engine.generate(&asked(Mode::Graph)).unwrap();
    update(&mut engine, &b.tensors).unwrap();
    let mut cold = started(&b, Topology::tensor(2));
    let wanted = cold.generate(&asked(Mode::Eager)).unwrap();
    assert_eq!(addresses(&mut engine), before);
    assert_eq!(answer(&engine.generate(&asked(Mode::Graph)).unwrap()), answer(&wanted));
    assert!(differences(&memory(&mut engine), &memory(&mut cold)).is_empty());
    // The draft alone, back to what it was.
    let (draft, model): (Vec<_>, Vec<_>) =
        a.tensors.iter().cloned().partition(|tensor| tensor.name.starts_with("draft."));
    let names = |of: &[TensorRef]| of.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    engine.pause().unwrap();
    engine.begin_partial(&names(&draft), &names(&model)).unwrap();
    engine.apply(&draft).unwrap();
    engine.finish().unwrap();
    engine.commit().unwrap();
    engine.invalidate().unwrap();
    engine.resume().unwrap();
    let mixed = engine.generate(&asked(Mode::Graph)).unwrap();
    assert_eq!(bits(&mixed.rows), bits(&wanted.rows));
    assert_eq!(bits(&mixed.draft_rows), bits(&old.draft_rows));
    assert_ne!(bits(&old.draft_rows), bits(&wanted.draft_rows));
}

#[test]
fn blocks_of_what_drafts_are_reused_beside_those_of_the_model() {
    for model in ["llama", "deepseek_v3_mtp"] {
        let mut engine = match model {
            "llama" => started(&drafted(("llama", "A"), ("qwen2", "A")), Topology::SINGLE),
            _ => loaded(config(model, 1), model, "A"),
        };
        let long: Vec<u32> = prompt().into_iter().chain(prompt()).collect();
        let cached = GenerateRequest { prompt: long, use_prefix_cache: true, ..asked(Mode::Eager) };
        let mut rows = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..2 {
            engine.launches().unwrap();
            answers.push(answer(&engine.generate(&cached).unwrap()));
            rows.push(launched(&mut engine, "rms_norm"));
        }
        assert_eq!(answers[0], answers[1], "{model}");
        for stage in [None, Some(RequestStage::Draft)] {
            let of = |rows: &BTreeMap<_, u64>| rows[&(stage, false)];
            assert!(of(&rows[1]) < of(&rows[0]), "{model} {stage:?}: {rows:?}");
        }
        // Another sequence that begins alike.
        let other = GenerateRequest {
            prompt: cached.prompt.iter().copied().take(32).chain([7, 8, 9]).collect(),
            ..cached
        };
        let hit = answer(&engine.generate(&other).unwrap());
        let apart = GenerateRequest { use_prefix_cache: false, ..other };
        assert_eq!(hit, answer(&engine.generate(&apart).unwrap()), "{model}");
    }
}

#[test]
fn a_batch_drafts_for_each_of_its_sequences() {
    let mut engine = started(&drafted(("llama", "A"), ("llama", "B")), Topology::SINGLE);
    let requests: Vec<GenerateRequest> = (0..3)
        .map(|index| {
            let mut request = asked(Mode::Eager);
            request.name = format!("r{index}");
            request.prompt.truncate(24 - 5 * index);
            GenerateRequest { greedy_tokens: 3 * index, ..request }
        })
        .collect();
    let alone: Vec<_> =
        requests.iter().map(|request| answer(&engine.generate(request).unwrap())).collect();
    let together = engine.generate_batch(&requests).unwrap();
    assert_eq!(together.iter().map(answer).collect::<Vec<_>>(), alone);
}

#[test]
fn what_cannot_decode_together_is_refused_by_name() {
    for (model, draft, wanted) in [
        ("mamba2", "llama", "keeps states"),
        ("llama", "mamba2", "keeps states"),
        ("llama", "llava", "takes images"),
        ("deepseek_v3_mtp", "llama", "predict further tokens"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("both");
        composed((model, "A"), (draft, "A"), &path);
        let error = ModelConfig::read(&path).unwrap_err().to_string();
        assert!(error.contains(wanted), "{model} and {draft}: {error}");
    }
}
