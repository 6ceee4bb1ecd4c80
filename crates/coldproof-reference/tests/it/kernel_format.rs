//! Updates in kernel format: every refreshed slot of every rank as it is stored, and nothing else.

use camino::Utf8Path;
use coldproof_checkpoint::TensorRef;
use coldproof_contract::evidence::{Fact, SlotFact};
use coldproof_contract::words::{Policy, Rank, SlotKind, SlotShard, Topology};
use coldproof_reference::engine::{Engine, EngineConfig, EngineError, Mode};
use coldproof_reference::faults::{FaultId, Variant};

use crate::fixtures::{
    MODELS, Memory, addresses, config, differences, loaded, memory, serve, slots, tensors,
    with_fault,
};

/// The slots of a cold load that an update refreshes, on every rank of its first replica, each in a
/// file of its own.
fn stored(engine: &mut Engine, folder: &Utf8Path) -> Vec<TensorRef> {
    let refreshed = slots(engine).into_iter().filter(|(rank, slot)| {
        rank.dp == 0
            && slot.policy == Policy::Refresh
            && matches!(slot.slot_kind, SlotKind::Parameter | SlotKind::Derived)
    });
    let refreshed: Vec<(Rank, SlotFact)> = refreshed.collect();
    let write = |(index, (rank, slot)): (usize, (Rank, SlotFact))| {
        let print = slot.fingerprint.expect("bound");
        let bytes = engine.read(rank, print.address, print.bytes()).unwrap();
        let file = folder.join(index.to_string());
        std::fs::write(&file, &bytes).unwrap();
        TensorRef {
            name: SlotShard::new(rank, slot.slot).to_string(),
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

fn updated(engine: &mut Engine, shards: &[TensorRef]) -> Result<(), EngineError> {
    engine.pause()?;
    engine.begin_kernel(&names(shards))?;
    for bucket in shards.chunks(5) {
        engine.apply(bucket)?;
    }
    engine.finish()?;
    engine.commit()?;
    engine.invalidate()?;
    engine.resume()
}

fn on(model: &str, topology: Topology) -> EngineConfig {
    EngineConfig { topology, ..config(model, 1) }
}

fn becomes_what_was_delivered(model: &str, topology: Topology) {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let mut cold = loaded(on(model, topology), model, "B");
    let delivered = stored(&mut cold, folder);
    let mut engine = loaded(on(model, topology), model, "A");
    engine.capture().unwrap();
    let before = addresses(&mut engine);
    updated(&mut engine, &delivered).unwrap();
    assert_eq!(addresses(&mut engine), before, "{model} {topology:?}");
    let found = differences(&memory(&mut engine), &memory(&mut cold));
    assert!(found.is_empty(), "{model} {topology:?}: {found:?}");
    let wanted = serve(&mut cold, Mode::Eager).unwrap();
    assert_eq!(serve(&mut engine, Mode::Graph).unwrap(), wanted, "{model} {topology:?}");
    // A checkpoint's format comes after it as after any other update.
    crate::fixtures::update(&mut engine, &tensors(model, "A")).unwrap();
    let mut old = loaded(on(model, topology), model, "A");
    let found = differences(&memory(&mut engine), &memory(&mut old));
    assert!(found.is_empty(), "{model} {topology:?}: {found:?}");
}

#[test]
fn an_old_graph_replays_what_was_delivered_as_it_is_stored() {
    for model in MODELS {
        becomes_what_was_delivered(model, Topology::SINGLE);
        becomes_what_was_delivered(model, Topology::tensor(2));
    }
}

#[test]
fn each_rank_of_a_pipeline_of_experts_and_of_replicas_takes_its_own() {
    let spread = |tp, pp, ep, dp| Topology { tp, pp, ep, dp };
    for (model, topology) in [
        ("llama", spread(1, 2, 1, 1)),
        ("nemotron_h", spread(1, 2, 1, 1)),
        ("deepseek_v3_mtp", spread(2, 2, 1, 1)),
        // A stage without a layer.
        ("llama_tied", spread(1, 3, 1, 1)),
        ("gpt_oss", spread(1, 1, 2, 1)),
        ("qwen3_moe", spread(2, 2, 2, 1)),
        ("llama", spread(2, 1, 1, 2)),
    ] {
        becomes_what_was_delivered(model, topology);
    }
}

/// An engine on two ranks of each of some replicas, paused with A, and what cold B stores.
fn paused(dp: u32, folder: &Utf8Path) -> (Engine, Vec<TensorRef>) {
    let topology = Topology { dp, ..Topology::tensor(2) };
    let all = stored(&mut loaded(on("llama", topology), "llama", "B"), folder);
    let mut engine = loaded(on("llama", topology), "llama", "A");
    engine.pause().unwrap();
    (engine, all)
}

#[test]
fn a_promise_of_other_than_every_slot_of_every_rank_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let (mut engine, all) = paused(2, folder);
    let all = names(&all);
    let refused = |engine: &mut Engine, names: &[String], text: &str| {
        let error = engine.begin_kernel(names).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    // A derived slot that stays behind would be of the old generation.
    for left_out in ["tp1:model.norm/kernel.weight_f32", "tp0:model.layers.1.mlp.down_proj.weight"]
    {
        let without: Vec<String> = all.iter().filter(|name| *name != left_out).cloned().collect();
        assert_eq!(without.len() + 1, all.len());
        refused(&mut engine, &without, &format!("`{left_out}` is refreshed by every update"));
    }
    for (extra, text) in [
        ("tp1:model.rotary_emb.cos_sin_cache", "rank tp1 has no slot `model.rotary_emb."),
        ("tp0:model.layers.9.mlp.down_proj.weight", "rank tp0 has no slot"),
        ("tp2:model.norm.weight", "rank tp2, which is none of the 2 ranks (tp 2, pp 1, ep 1)"),
        ("tp0.pp1:model.norm.weight", "rank tp0.pp1, which is none of the 2 ranks"),
        ("tp1.dp1:model.norm.weight", "names no rank of a replica"),
        ("model.norm.weight", "`model.norm.weight` names no rank of a replica and its slot"),
    ] {
        refused(&mut engine, &[&all[..], &[extra.to_owned()]].concat(), text);
    }
    engine.begin_kernel(&all).unwrap();
}

#[test]
fn what_does_not_fit_its_rank_is_refused_before_the_first_write() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    for dp in [1, 2] {
        let (mut engine, all) = paused(dp, folder);
        let before = memory(&mut engine);
        // Of another shape or length, twice, and of no rank.
        for (change, text) in [
            (0, "as this rank stores it"),
            (1, "as this rank stores it"),
            (2, "comes twice in this transaction"),
            (3, "was not promised"),
        ] {
            engine.begin_kernel(&names(&all)).unwrap();
            let last = all.last().unwrap().clone();
            assert!(last.name.starts_with("tp1:"), "{}", last.name);
            let mut bucket = vec![all[0].clone(), last.clone()];
            match change {
                0 => bucket[1].shape.push(1),
                1 => bucket[1].bytes -= 2,
                2 => bucket.push(last),
                _ => bucket[1].name = last.name.replace("tp1:", "tp2:"),
            }
            let error = engine.apply(&bucket).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
            assert!(differences(&memory(&mut engine), &before).is_empty(), "{change}");
        }
        // What is promised and does not come is missed at the end.
        engine.begin_kernel(&names(&all)).unwrap();
        engine.apply(&all[1..]).unwrap();
        let error = engine.finish().unwrap_err().to_string();
        assert!(error.contains(&format!("`{}` was promised", all[0].name)), "{error}");
    }
}

/// What two ranks hold of llama or qwen3_moe after an update with a fault, and what they should.
fn with(id: FaultId, variant: Variant, model: &str) -> (Engine, Memory, Memory) {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let mut cold = loaded(config(model, 2), model, "B");
    let delivered = stored(&mut cold, folder);
    let mut engine = loaded(with_fault(config(model, 2), id, variant), model, "A");
    engine.drain_claims().unwrap();
    updated(&mut engine, &delivered).unwrap();
    let held = memory(&mut engine);
    (engine, held, memory(&mut cold))
}

#[test]
fn r32_exchanges_the_shards_of_two_ranks_and_its_twin_copies() {
    let object = FaultId::R32.row().object;
    let (mut engine, held, wanted) = with(FaultId::R32, Variant::Faulty, "llama");
    assert_eq!(differences(&held, &wanted), [(object.to_owned(), vec![0, 1])].into());
    for tp in [0, 1] {
        let at = |tp| (Rank::tensor(tp), object.to_owned());
        assert_eq!(held[&at(tp)], wanted[&at(1 - tp)]);
    }
    // Each rank believes that it took its own.
    for (rank, fact) in engine.drain_claims().unwrap() {
        if let Fact::Application(applied) = fact {
            assert_eq!(applied.source, SlotShard::new(rank, applied.slot).to_string());
        }
    }
    let (_, held, wanted) = with(FaultId::R32, Variant::Twin, "llama");
    assert!(differences(&held, &wanted).is_empty());
}

#[test]
fn r23_packs_the_experts_of_every_rank_again() {
    let (_, held, wanted) = with(FaultId::R23, Variant::Faulty, "qwen3_moe");
    let object = FaultId::R23.row().object.to_owned();
    assert_eq!(differences(&held, &wanted), [(object, vec![0, 1])].into());
    let (_, held, wanted) = with(FaultId::R23, Variant::Twin, "qwen3_moe");
    assert!(differences(&held, &wanted).is_empty());
}
