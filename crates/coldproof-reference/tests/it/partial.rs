//! Updates of some slots: whole ones, the others said to be preserved; or none at all.

use camino::Utf8Path;
use coldproof_checkpoint::TensorRef;
use coldproof_reference::engine::{Engine, EngineError, Mode};

use crate::fixtures::{config, differences, loaded, memory, raw, serve, tensors};

/// Names of the sources of layer 0, and of all others.
fn halves(all: &[TensorRef]) -> (Vec<String>, Vec<String>) {
    let names = all.iter().map(|tensor| tensor.name.clone());
    names.partition(|name| name.starts_with("model.layers.0."))
}

fn of<'t>(all: &'t [TensorRef], names: &[String]) -> Vec<&'t TensorRef> {
    all.iter().filter(|tensor| names.contains(&tensor.name)).collect()
}

/// An update of these sources, from pause to resume.
fn update(engine: &mut Engine, sent: &[TensorRef], kept: &[String]) -> Result<(), EngineError> {
    let names: Vec<String> = sent.iter().map(|tensor| tensor.name.clone()).collect();
    engine.pause()?;
    engine.begin_partial(&names, kept)?;
    engine.apply(sent)?;
    engine.finish()?;
    engine.commit()?;
    engine.invalidate()?;
    engine.resume()
}

fn refusal(result: Result<(), EngineError>) -> String {
    result.expect_err("refused").to_string()
}

#[test]
fn some_slots_of_the_new_generation_and_the_others_of_the_old_one() {
    for (model, tp) in [("llama", 1), ("qwen3_moe", 2), ("gpt_oss", 1)] {
        let (a, b) = (tensors(model, "A"), tensors(model, "B"));
        let (new, kept) = halves(&b);
        let sent: Vec<TensorRef> = of(&b, &new).into_iter().cloned().collect();
        let mut engine = loaded(config(model, tp), model, "A");
        engine.capture().unwrap();
        update(&mut engine, &sent, &kept).unwrap();
        let mixed: Vec<TensorRef> =
            of(&b, &new).into_iter().chain(of(&a, &kept)).cloned().collect();
        let mut cold = Engine::start(config(model, tp)).unwrap();
        cold.load(&mixed).unwrap();
        let found = differences(&memory(&mut engine), &memory(&mut cold));
        assert!(found.is_empty(), "{model}: {found:?}");
        assert_eq!(serve(&mut engine, Mode::Graph), serve(&mut cold, Mode::Eager), "{model}");
    }
}

#[test]
fn what_nobody_preserves_must_arrive() {
    let b = tensors("llama", "B");
    let (new, kept) = halves(&b);
    let sent: Vec<TensorRef> = of(&b, &new).into_iter().cloned().collect();
    let mut engine = loaded(config("llama", 1), "llama", "A");
    let before = memory(&mut engine);
    let text = refusal(update(&mut engine, &sent, &kept[1..]));
    assert!(text.contains(&format!("nobody said what becomes of `{}`", kept[0])), "{text}");
    // Nothing was written.
    assert_eq!(before, memory(&mut engine));
    engine.resume().unwrap();
}

#[test]
fn half_a_slot_is_refused_before_the_first_write_whatever_the_values_are() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let b = tensors("llama", "B");
    let name = "model.layers.0.self_attn.k_proj.weight";
    let whole = b.iter().find(|tensor| tensor.name == name).unwrap();
    let nan = vec![0xff; whole.bytes as usize];
    let nan = raw(folder, name, whole.shape.clone(), &nan);
    let kept: Vec<String> =
        b.iter().map(|tensor| tensor.name.clone()).filter(|other| other != name).collect();
    let mut texts = Vec::new();
    for sent in [whole.clone(), nan] {
        let mut engine = loaded(config("llama", 1), "llama", "A");
        texts.push(refusal(update(&mut engine, &[sent], &kept)));
        engine.resume().unwrap();
    }
    assert!(texts[0].contains("`model.layers.0.self_attn.qkv_proj.weight` would hold parts"));
    assert_eq!(texts[0], texts[1], "a NaN decides nothing");
}

#[test]
fn a_nan_in_a_whole_slot_is_a_value_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let b = tensors("llama", "B");
    let name = "model.layers.0.input_layernorm.weight";
    let whole = b.iter().find(|tensor| tensor.name == name).unwrap();
    let kept: Vec<String> =
        b.iter().map(|tensor| tensor.name.clone()).filter(|other| other != name).collect();
    let nan = raw(folder, name, whole.shape.clone(), &vec![0xff; whole.bytes as usize]);
    for sent in [whole.clone(), nan] {
        let mut engine = loaded(config("llama", 1), "llama", "A");
        update(&mut engine, &[sent], &kept).unwrap();
    }
}

#[test]
fn a_name_is_delivered_or_preserved_and_known() {
    let mut engine = loaded(config("llama_tied", 1), "llama_tied", "A");
    let names: Vec<String> =
        tensors("llama_tied", "B").iter().map(|tensor| tensor.name.clone()).collect();
    engine.pause().unwrap();
    let mut begin = |new: &[&str], kept: &[String]| {
        let new: Vec<String> = new.iter().map(|name| (*name).to_owned()).collect();
        refusal(engine.begin_partial(&new, kept).map(drop))
    };
    let text = begin(&["model.norm.weight"], &names);
    assert!(text.contains("`model.norm.weight` is to be delivered and to be preserved"), "{text}");
    let text = begin(&["no.such"], &names);
    assert!(text.contains("no layer of this model takes the promised tensor `no.such`"), "{text}");
    let text = begin(&["model.norm.weight"], &["no.such".to_owned()]);
    assert!(text.contains("has `no.such` to preserve"), "{text}");
    let text = begin(&["lm_head.weight"], &names);
    assert!(text.contains("a second name of a tensor that is not delivered"), "{text}");
    let text = begin(&[], &names);
    assert!(text.contains("preserve sources and deliver none"), "{text}");
}

#[test]
fn a_partial_update_needs_a_whole_generation_to_start_from() {
    let b = tensors("llama", "B");
    let (new, kept) = halves(&b);
    let mut engine = loaded(config("llama", 1), "llama", "A");
    engine.pause().unwrap();
    engine.begin(&[]).unwrap();
    engine.apply(&b[..3]).unwrap();
    engine.abort().unwrap();
    let text = refusal(engine.begin_partial(&new, &kept).map(drop));
    assert!(text.contains("full"), "{text}");
}
