//! Calls that are wrong or come at a wrong time, and what a failed transaction leaves behind.

use coldproof_checkpoint::TensorRef;
use coldproof_contract::words::{Dtype, TransactionId};
use coldproof_reference::engine::{Engine, EngineError, GenerateRequest, Mode};

use crate::fixtures::{
    bits, config, fused, loaded, memory, request, serve, tensors, update, update_paused,
};

fn text<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> String {
    match answer.expect_err("refused") {
        EngineError::Refused { text } => text,
        other => panic!("not refused: {other:?}"),
    }
}

fn find(all: &[TensorRef], name: &str) -> TensorRef {
    all.iter().find(|tensor| tensor.name == name).expect("in the fixture").clone()
}

#[test]
fn calls_out_of_order_change_nothing() {
    let mut engine = Engine::start(config("llama", 1)).unwrap();
    let all = tensors("llama", "B");
    assert!(text(engine.generate(&request(Mode::Eager))).contains("nothing is loaded"));
    assert!(text(engine.capture()).contains("nothing is loaded"));
    assert!(text(engine.begin(&[])).contains("call `load`"));
    engine.load(&tensors("llama", "A")).unwrap();
    let a = serve(&mut engine, Mode::Eager).unwrap();
    assert!(text(engine.generate(&request(Mode::Graph))).contains("call `capture`"));
    assert!(text(engine.begin(&[])).contains("call `pause`"));
    assert!(text(engine.load(&all)).contains("call `pause`"));
    assert!(text(engine.apply(&all)).contains("call `begin`"));
    assert!(text(engine.finish()).contains("call `begin`"));
    assert!(text(engine.commit()).contains("call `begin`"));
    assert!(text(engine.abort()).contains("call `begin`"));
    assert!(text(engine.resume()).contains("serving already"));
    engine.pause().unwrap();
    assert!(text(engine.pause()).contains("paused already"));
    assert!(text(engine.generate(&request(Mode::Eager))).contains("call `resume`"));
    assert_eq!(engine.begin(&[]), Ok(TransactionId(2)));
    assert!(text(engine.begin(&[])).contains("open"));
    assert!(text(engine.resume()).contains("transaction 2 is open"));
    assert!(text(engine.sleep(1)).contains("transaction 2"));
    assert!(text(engine.commit()).contains("out of order"));
    engine.abort().unwrap();
    engine.resume().unwrap();
    assert_eq!(serve(&mut engine, Mode::Eager).unwrap(), a, "nothing was written");
}

#[test]
fn a_finished_update_takes_no_late_chunk_and_stands() {
    let mut engine = loaded(config("llama", 1), "llama", "A");
    let all = tensors("llama", "B");
    engine.pause().unwrap();
    engine.begin(&[]).unwrap();
    engine.apply(&all).unwrap();
    engine.finish().unwrap();
    assert!(text(engine.apply(&all[..1])).contains("out of order"));
    assert!(text(engine.finish()).contains("out of order"));
    engine.commit().unwrap();
    assert!(text(engine.resume()).contains("call `invalidate`"));
    engine.invalidate().unwrap();
    engine.resume().unwrap();
    let mut cold = loaded(config("llama", 1), "llama", "B");
    assert_eq!(serve(&mut engine, Mode::Eager), serve(&mut cold, Mode::Eager));
}

/// Applies `first`, then `second`, which must be refused; the transaction has then failed.
fn refused_after_a_write(first: &[TensorRef], second: &[TensorRef]) -> String {
    let mut engine = loaded(config("qwen3_moe", 2), "qwen3_moe", "A");
    engine.pause().unwrap();
    engine.begin(&[]).unwrap();
    engine.apply(first).unwrap();
    let refused = text(engine.apply(second));
    assert!(text(engine.apply(first)).contains("only a full load"), "the failure is terminal");
    assert!(text(engine.resume()).contains("load all weights again"));
    assert!(text(engine.generate(&request(Mode::Eager))).contains("paused"));
    refused
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(folder.path()).unwrap();
    let all = tensors("qwen3_moe", "B");
    let one = find(&all, "model.norm.weight");
    let unknown = TensorRef { name: "model.norm.bias".to_owned(), ..one.clone() };
    let shape = TensorRef { shape: vec![80, 2], ..one.clone() };
    let dtype = TensorRef { dtype: Dtype::F16, ..one.clone() };
    let short = TensorRef { bytes: one.bytes - 2, ..one.clone() };
    let gone = TensorRef { file: folder.join("gone"), ..one.clone() };
    let first = [find(&all, "lm_head.weight")];
    for (bad, words) in [
        (unknown, "no layer of this model takes the tensor `model.norm.bias`"),
        (shape, "`model.norm.weight` has shape [80, 2] where this model has [160]"),
        (dtype, "`model.norm.weight` is F16"),
        (short, "`model.norm.weight` has 318 bytes where its shape needs 320"),
        (gone, "gone"),
        (first[0].clone(), "`lm_head.weight` comes twice"),
    ] {
        let found = refused_after_a_write(&first, &[bad]);
        assert!(found.contains(words), "{found}");
    }
    let both = fused("qwen3_moe", "B", folder);
    let gate_up = find(&both, "model.layers.1.mlp.experts.gate_up_proj");
    let gate = find(&all, "model.layers.1.mlp.experts.4.gate_proj.weight");
    let found = refused_after_a_write(std::slice::from_ref(&gate), &[gate_up]);
    assert!(
        found.contains("fills what `model.layers.1.mlp.experts.4.gate_proj.weight`"),
        "{found}"
    );
}

#[test]
fn a_bad_first_bucket_leaves_the_old_weights() {
    let mut engine = loaded(config("llama", 1), "llama", "A");
    let a = serve(&mut engine, Mode::Eager).unwrap();
    let mut all = tensors("llama", "B");
    all[3].shape = vec![1];
    engine.pause().unwrap();
    engine.begin(&[]).unwrap();
    assert!(text(engine.apply(&all)).contains("has shape [1]"));
    engine.resume().unwrap();
    assert_eq!(serve(&mut engine, Mode::Eager).unwrap(), a);
}

#[test]
fn missing_sources_are_named_and_a_full_update_mends_it() {
    let mut engine = loaded(config("llama", 2), "llama", "A");
    engine.capture().unwrap();
    engine.pause().unwrap();
    let mut all = tensors("llama", "B");
    all.retain(|tensor| !tensor.name.contains("layers.1.self_attn.k_proj"));
    let found = text(update_paused(&mut engine, &all));
    assert!(found.contains("1 sources are missing: `model.layers.1.self_attn.k_proj.weight`"));
    assert!(text(engine.invalidate()).contains("after a commit"));
    assert!(text(engine.resume()).contains("load all weights again"));
    update_paused(&mut engine, &tensors("llama", "B")).unwrap();
    engine.invalidate().unwrap();
    engine.resume().unwrap();
    let mut cold = loaded(config("llama", 2), "llama", "B");
    assert_eq!(serve(&mut engine, Mode::Graph), serve(&mut cold, Mode::Eager));
}

#[test]
fn a_failed_engine_serves_again_after_a_full_load() {
    let mut engine = loaded(config("qwen3_moe", 2), "qwen3_moe", "A");
    engine.capture().unwrap();
    engine.pause().unwrap();
    engine.begin(&[]).unwrap();
    engine.apply(&tensors("qwen3_moe", "B")[..20]).unwrap();
    engine.abort().unwrap();
    assert!(text(engine.resume()).contains("load all weights again"));
    engine.load(&tensors("qwen3_moe", "B")).unwrap();
    engine.resume().unwrap();
    let mut cold = loaded(config("qwen3_moe", 2), "qwen3_moe", "B");
    assert!(crate::fixtures::differences(&memory(&mut engine), &memory(&mut cold)).is_empty());
    assert_eq!(serve(&mut engine, Mode::Graph), serve(&mut cold, Mode::Eager));
}

#[test]
fn promises_are_kept_in_both_directions() {
    let mut engine = loaded(config("llama_tied", 1), "llama_tied", "A");
    let all = tensors("llama_tied", "B");
    let mut names: Vec<String> = all.iter().map(|tensor| tensor.name.clone()).collect();
    engine.pause().unwrap();
    assert!(text(engine.begin(&["no.such".to_owned()])).contains("promised tensor `no.such`"));
    engine.begin(&names[1..]).unwrap();
    assert!(text(engine.apply(&all)).contains(&format!("`{}` was not promised", names[0])));
    names.push("lm_head.weight".to_owned());
    engine.begin(&names).unwrap();
    engine.apply(&all).unwrap();
    assert!(text(engine.finish()).contains("`lm_head.weight` was promised and did not arrive"));
}

#[test]
fn requests_that_do_not_fit_are_refused_by_name() {
    let mut engine = loaded(config("llama", 1), "llama", "A");
    engine.capture().unwrap();
    let with = |prompt: Vec<u32>| GenerateRequest {
        name: "r".to_owned(),
        prompt,
        ..GenerateRequest::default()
    };
    assert!(text(engine.generate(&with(vec![]))).contains("`r` has an empty prompt"));
    assert!(text(engine.generate(&with(vec![331]))).contains("token 331"));
    assert!(text(engine.generate(&with(vec![1; 257]))).contains("256 positions"));
    let five = vec![request(Mode::Graph); 5];
    assert!(text(engine.generate_batch(&five)).contains("the largest captured graph has 4 rows"));
    assert!(text(engine.capture()).contains("captured already"));
    let output = engine.generate(&request(Mode::Graph)).unwrap();
    assert_eq!(bits(&output.rows).len(), 6);
}

#[test]
fn after_shutdown_every_call_says_so() {
    let mut engine = loaded(config("llama", 2), "llama", "A");
    engine.shutdown();
    assert!(text(engine.pause()).contains("the engine has ended: it was shut down"));
    assert!(text(engine.generate(&request(Mode::Eager))).contains("start another one"));
    assert!(text(engine.claims()).contains("has ended"));
    assert!(text(update(&mut engine, &tensors("llama", "B"))).contains("has ended"));
}
