//! Updates in kernel format: every refreshed slot as it is stored, and nothing else.

use camino::Utf8Path;
use coldproof_checkpoint::TensorRef;
use coldproof_contract::words::{Policy, SlotKind};
use coldproof_reference::engine::{Engine, EngineError, Mode};

use crate::fixtures::{
    MODELS, addresses, config, differences, loaded, memory, serve, slots, tensors,
};

/// The slots of a cold load that an update refreshes, each in a file of its own.
fn stored(engine: &mut Engine, folder: &Utf8Path) -> Vec<TensorRef> {
    let refreshed = slots(engine).into_iter().filter(|(_, slot)| {
        slot.policy == Policy::Refresh
            && matches!(slot.slot_kind, SlotKind::Parameter | SlotKind::Derived)
    });
    let refreshed: Vec<_> = refreshed.collect();
    let write = |(index, (rank, slot)): (usize, (_, coldproof_contract::evidence::SlotFact))| {
        let print = slot.fingerprint.expect("bound");
        let bytes = engine.read(rank, print.address, print.bytes()).unwrap();
        let file = folder.join(index.to_string());
        std::fs::write(&file, &bytes).unwrap();
        TensorRef {
            name: slot.slot.0,
            file,
            offset: 0,
            bytes: bytes.len() as u64,
            dtype: print.dtype,
            shape: slot.logical_shape,
        }
    };
    refreshed.into_iter().enumerate().map(write).collect()
}

fn names(of: &[TensorRef]) -> Vec<String> {
    of.iter().map(|tensor| tensor.name.clone()).collect()
}

fn updated(engine: &mut Engine, slots: &[TensorRef]) -> Result<(), EngineError> {
    engine.pause()?;
    engine.begin_kernel(&names(slots))?;
    for bucket in slots.chunks(5) {
        engine.apply(bucket)?;
    }
    engine.finish()?;
    engine.commit()?;
    engine.invalidate()?;
    engine.resume()
}

#[test]
fn an_old_graph_replays_what_was_delivered_as_it_is_stored() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let mut cold = loaded(config(model, 1), model, "B");
        let delivered = stored(&mut cold, folder);
        let mut engine = loaded(config(model, 1), model, "A");
        engine.capture().unwrap();
        let before = addresses(&mut engine);
        updated(&mut engine, &delivered).unwrap();
        assert_eq!(addresses(&mut engine), before, "{model}");
        assert!(differences(&memory(&mut engine), &memory(&mut cold)).is_empty(), "{model}");
        let wanted = serve(&mut cold, Mode::Eager).unwrap();
        assert_eq!(serve(&mut engine, Mode::Graph).unwrap(), wanted, "{model}");
        // A checkpoint's format comes after it as after any other update.
        crate::fixtures::update(&mut engine, &tensors(model, "A")).unwrap();
        let mut old = loaded(config(model, 1), model, "A");
        assert!(differences(&memory(&mut engine), &memory(&mut old)).is_empty(), "{model}");
    }
}

#[test]
fn what_is_no_whole_update_is_refused_before_the_first_write() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let mut cold = loaded(config("llama", 1), "llama", "B");
    let all = stored(&mut cold, folder);
    let mut engine = loaded(config("llama", 1), "llama", "A");
    let wanted = serve(&mut engine, Mode::Eager).unwrap();
    engine.pause().unwrap();
    let refused = |engine: &mut Engine, names: &[String], text: &str| {
        let error = engine.begin_kernel(names).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    // A derived slot that stays behind would be of the old generation.
    let derived = "model.norm/kernel.weight_f32";
    let without: Vec<String> = names(&all).into_iter().filter(|name| name != derived).collect();
    refused(&mut engine, &without, derived);
    let buffer = "model.rotary_emb.cos_sin_cache".to_owned();
    refused(&mut engine, &[names(&all), vec![buffer.clone()]].concat(), &buffer);
    // Of another shape or type, and twice.
    for change in [0, 1, 2] {
        engine.begin_kernel(&names(&all)).unwrap();
        let mut bucket = vec![all[0].clone()];
        match change {
            0 => bucket[0].shape.push(1),
            1 => bucket[0].bytes -= 2,
            _ => bucket.push(all[0].clone()),
        }
        assert!(engine.apply(&bucket).is_err(), "{change}");
    }
    engine.resume().unwrap();
    assert_eq!(serve(&mut engine, Mode::Eager).unwrap(), wanted);
    let mut two = loaded(config("llama", 2), "llama", "A");
    two.pause().unwrap();
    refused(&mut two, &names(&all), "one rank");
}
