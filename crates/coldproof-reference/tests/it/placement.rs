//! Experts that move between ranks with their maps, before and after loads.

use std::collections::BTreeMap;

use camino::Utf8Path;
use coldproof_contract::evidence::Fact;
use coldproof_contract::words::{ExpertPlace, ExpertPlacement, Topology};
use coldproof_reference::adapters::modules;
use coldproof_reference::engine::{Engine, EngineConfig, EngineError, GenerateRequest, Mode};
use coldproof_reference::faults::{FaultId, Variant};
use proptest::prelude::*;

use crate::adapters::factors_of;
use crate::fixtures::{
    Bits, addresses, bits, composed, config, differences, loaded, memory, model_config, request,
    serve, tensors, update, update_paused, with_fault,
};

/// Models with their modules of experts and how many each has.
const SPARSE: [(&str, &[&str], u64); 4] = [
    ("qwen3_moe", &["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"], 6),
    (
        "mixtral",
        &["model.layers.0.block_sparse_moe.experts", "model.layers.1.block_sparse_moe.experts"],
        4,
    ),
    ("gpt_oss", &["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"], 4),
    ("deepseek_v3", &["model.layers.1.mlp.experts"], 8),
];

const TWO: Topology = Topology { ep: 2, ..Topology::SINGLE };

/// The experts of each module in this order of places: rank by rank, place by place.
fn placed(version: u64, layers: &[(&str, &[u64])], ranks: u64) -> ExpertPlacement {
    let layer = |(name, order): &(&str, &[u64])| {
        let each = order.len() as u64 / ranks;
        let mut places = vec![ExpertPlace { ep: 0, place: 0 }; order.len()];
        for (at, expert) in (0..).zip(*order) {
            let ep = u32::try_from(at / each).unwrap();
            places[*expert as usize] = ExpertPlace { ep, place: at % each };
        }
        ((*name).to_owned(), places)
    };
    ExpertPlacement { version, layers: layers.iter().map(layer).collect() }
}

/// Every module's experts turned by one more than those of the module before, which never is its
/// own inverse.
fn turned(model: &str, version: u64, ranks: u64) -> ExpertPlacement {
    let (_, layers, experts) = SPARSE.into_iter().find(|(name, ..)| *name == model).unwrap();
    let order = |by: u64| -> Vec<u64> { (0..experts).map(|at| (at + by) % experts).collect() };
    let orders: Vec<Vec<u64>> = (1..=layers.len() as u64).map(order).collect();
    let all: Vec<_> = layers.iter().copied().zip(orders.iter().map(Vec::as_slice)).collect();
    placed(version, &all, ranks)
}

fn on(model: &str, topology: Topology) -> EngineConfig {
    EngineConfig { topology, ..config(model, 1) }
}

/// Paused, placed, resumed.
fn replace(engine: &mut Engine, placement: &ExpertPlacement) -> Result<(), EngineError> {
    engine.pause()?;
    engine.place_experts(placement)?;
    engine.resume()
}

/// An engine that loaded these weights under a placement.
fn cold(config: EngineConfig, placement: &ExpertPlacement, model: &str, label: &str) -> Engine {
    let mut engine = Engine::start(config).unwrap();
    engine.place_experts(placement).unwrap();
    engine.load(&tensors(model, label)).unwrap();
    engine
}

/// Loads A, moves, updates to B: in every respect an engine that loaded so.
fn moves_and_updates(model: &str, topology: Topology) {
    let placement = turned(model, 1, topology.ep.into());
    let mut engine = loaded(on(model, topology), model, "A");
    engine.capture().unwrap();
    let (before, at) = (memory(&mut engine), addresses(&mut engine));
    let served = serve(&mut engine, Mode::Graph).unwrap();
    replace(&mut engine, &placement).unwrap();
    assert_eq!(addresses(&mut engine), at, "{model}: slots stay");
    let moved = memory(&mut engine);
    let names = differences(&before, &moved);
    assert!(names.keys().all(|name| name.contains(".experts.")), "{model}: {names:?}");
    assert!(names.keys().any(|name| name.ends_with("expert_map")), "{model}: {names:?}");
    for mode in [Mode::Eager, Mode::Graph] {
        assert_eq!(serve(&mut engine, mode).unwrap(), served, "{model} {mode:?}");
    }
    let mut a = cold(on(model, topology), &placement, model, "A");
    assert_eq!(differences(&memory(&mut a), &moved), BTreeMap::new(), "{model}");
    update(&mut engine, &tensors(model, "B")).unwrap();
    let mut b = cold(on(model, topology), &placement, model, "B");
    assert_eq!(differences(&memory(&mut b), &memory(&mut engine)), BTreeMap::new(), "{model}");
    let other = serve(&mut b, Mode::Eager).unwrap();
    assert_eq!(serve(&mut engine, Mode::Graph).unwrap(), other, "{model}");
    assert_ne!(other, served, "{model}");
    assert_eq!(serve(&mut loaded(config(model, 1), model, "B"), Mode::Eager).unwrap(), other);
}

#[test]
fn experts_move_in_place_and_outputs_keep_their_bits() {
    for (model, ..) in SPARSE {
        moves_and_updates(model, TWO);
    }
    moves_and_updates("qwen3_moe", Topology { tp: 2, pp: 2, ep: 2, dp: 1 });
}

#[test]
fn experts_move_in_every_replica_and_back() {
    let topology = Topology { dp: 2, ..TWO };
    let mut engine = loaded(on("mixtral", topology), "mixtral", "A");
    let before = memory(&mut engine);
    let placement = turned("mixtral", 1, 2);
    replace(&mut engine, &placement).unwrap();
    let mut other = cold(on("mixtral", topology), &placement, "mixtral", "A");
    assert_eq!(differences(&memory(&mut other), &memory(&mut engine)), BTreeMap::new());
    let orders: [&[u64]; 2] = [&[0, 1, 2, 3]; 2];
    let layers: Vec<_> = SPARSE[1].1.iter().copied().zip(orders).collect();
    replace(&mut engine, &placed(7, &layers, 2)).unwrap();
    assert_eq!(differences(&before, &memory(&mut engine)), BTreeMap::new());
}

#[test]
fn a_full_load_after_a_sleep_that_kept_nothing_goes_by_the_placement_in_force() {
    let model = "gpt_oss";
    let placement = turned(model, 1, 2);
    let mut b = cold(on(model, TWO), &placement, model, "B");
    // Placed before the sleep, and while nothing is loaded.
    for asleep in [false, true] {
        let mut engine = loaded(on(model, TWO), model, "A");
        engine.capture().unwrap();
        engine.pause().unwrap();
        if !asleep {
            engine.place_experts(&placement).unwrap();
        }
        engine.sleep(2).unwrap();
        engine.wake("weights").unwrap();
        if asleep {
            engine.place_experts(&placement).unwrap();
        }
        update_paused(&mut engine, &tensors(model, "B")).unwrap();
        engine.wake("kv_cache").unwrap();
        engine.invalidate().unwrap();
        engine.resume().unwrap();
        assert_eq!(differences(&memory(&mut b), &memory(&mut engine)), BTreeMap::new());
        let wanted = serve(&mut b, Mode::Eager).unwrap();
        assert_eq!(serve(&mut engine, Mode::Graph).unwrap(), wanted);
    }
}

#[test]
fn a_sleep_that_keeps_weights_keeps_them_where_they_moved() {
    let model = "qwen3_moe";
    let mut engine = loaded(on(model, TWO), model, "A");
    let served = serve(&mut engine, Mode::Eager).unwrap();
    engine.pause().unwrap();
    engine.place_experts(&turned(model, 1, 2)).unwrap();
    engine.sleep(1).unwrap();
    engine.wake("weights").unwrap();
    engine.wake("kv_cache").unwrap();
    engine.invalidate().unwrap();
    engine.resume().unwrap();
    assert_eq!(serve(&mut engine, Mode::Eager).unwrap(), served);
}

#[test]
fn a_partial_update_goes_by_the_placement_in_force() {
    let model = "qwen3_moe";
    let placement = turned(model, 1, 2);
    let mut engine = loaded(on(model, TWO), model, "A");
    replace(&mut engine, &placement).unwrap();
    let first = |name: &str| name.starts_with("model.layers.0.mlp.experts.");
    let (new, old): (Vec<_>, Vec<_>) =
        tensors(model, "B").into_iter().partition(|tensor| first(&tensor.name));
    let names = |of: &[coldproof_checkpoint::TensorRef]| -> Vec<String> {
        of.iter().map(|tensor| tensor.name.clone()).collect()
    };
    engine.pause().unwrap();
    engine.begin_partial(&names(&new), &names(&old)).unwrap();
    engine.apply(&new).unwrap();
    engine.finish().unwrap();
    engine.commit().unwrap();
    let mixed = tensors(model, "A").into_iter().filter(|tensor| !first(&tensor.name));
    let mixed: Vec<_> = mixed.chain(new).collect();
    let mut other = Engine::start(on(model, TWO)).unwrap();
    other.place_experts(&placement).unwrap();
    other.load(&mixed).unwrap();
    assert_eq!(differences(&memory(&mut other), &memory(&mut engine)), BTreeMap::new());
}

/// Outputs with the adapter.
fn adapted(engine: &mut Engine) -> Bits {
    let request = GenerateRequest { adapter: Some("adapter".to_owned()), ..request(Mode::Eager) };
    bits(&engine.generate(&request).unwrap().rows)
}

#[test]
fn adapters_move_with_the_experts_that_they_are_of() {
    for model in ["qwen3_moe", "mixtral"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let factors = |seed| {
            let all = modules(&model_config(model)).into_iter();
            all.map(|module| (module.name.clone(), factors_of(&module, 3, seed))).collect()
        };
        for (name, seed) in [("old", 1), ("new", 2)] {
            coldproof_checkpoint::Lora::write(&folder.join(name), (3, 2.0), &factors(seed))
                .unwrap();
        }
        let mut engine = loaded(on(model, Topology { tp: 2, ..TWO }), model, "A");
        engine.load_adapter("adapter", &folder.join("old")).unwrap();
        let (base, with) = (serve(&mut engine, Mode::Eager).unwrap(), adapted(&mut engine));
        assert_ne!(base, with);
        replace(&mut engine, &turned(model, 1, 2)).unwrap();
        assert_eq!(adapted(&mut engine), with, "{model}");
        // One that is loaded afterwards is as one of an engine whose experts never moved.
        engine.load_adapter("adapter", &folder.join("new")).unwrap();
        let mut other = loaded(on(model, Topology::SINGLE), model, "A");
        other.load_adapter("adapter", &folder.join("new")).unwrap();
        assert_eq!(adapted(&mut engine), adapted(&mut other), "{model}");
    }
}

#[test]
fn adapters_move_while_no_weights_are_there() {
    let model = "qwen3_moe";
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let all = modules(&model_config(model)).into_iter();
    let factors = all.map(|module| (module.name.clone(), factors_of(&module, 3, 1))).collect();
    coldproof_checkpoint::Lora::write(folder, (3, 2.0), &factors).unwrap();
    let mut engine = loaded(on(model, TWO), model, "A");
    engine.load_adapter("adapter", folder).unwrap();
    let with = adapted(&mut engine);
    engine.pause().unwrap();
    engine.sleep(2).unwrap();
    engine.wake("weights").unwrap();
    engine.place_experts(&turned(model, 1, 2)).unwrap();
    update_paused(&mut engine, &tensors(model, "A")).unwrap();
    engine.wake("kv_cache").unwrap();
    engine.invalidate().unwrap();
    engine.resume().unwrap();
    assert_eq!(adapted(&mut engine), with);
}

#[test]
fn experts_of_a_draft_model_move_under_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = camino::Utf8PathBuf::from_path_buf(folder.path().join("both")).unwrap();
    let both = composed(("qwen3_moe", "A"), ("mixtral", "A"), &path);
    let config = EngineConfig {
        topology: TWO,
        ..EngineConfig::new(coldproof_checkpoint::arch::ModelConfig::read(&path).unwrap())
    };
    let mut placement = turned("qwen3_moe", 1, 2);
    for (layer, places) in turned("mixtral", 1, 2).layers {
        placement.layers.insert(format!("draft.{layer}"), places);
    }
    let mut engine = Engine::start(config.clone()).unwrap();
    engine.load(&both).unwrap();
    let served = |engine: &mut Engine| {
        let output = engine.generate(&request(Mode::Eager)).unwrap();
        (bits(&output.rows), bits(&output.draft_rows))
    };
    let before = served(&mut engine);
    assert!(!before.1.is_empty());
    replace(&mut engine, &placement).unwrap();
    assert_eq!(served(&mut engine), before);
    let mut other = Engine::start(config).unwrap();
    other.place_experts(&placement).unwrap();
    other.load(&both).unwrap();
    assert_eq!(differences(&memory(&mut other), &memory(&mut engine)), BTreeMap::new());
}

/// (rank of ep, module, version, places) that each rank states.
fn stated(engine: &mut Engine) -> Vec<(u32, String, u64, Vec<ExpertPlace>)> {
    let claims = engine.claims().unwrap().into_iter();
    let own = claims.filter_map(|(rank, fact)| match fact {
        Fact::ExpertPlacement(fact) => Some((rank.ep, fact.layer, fact.version, fact.places)),
        _ => None,
    });
    own.collect()
}

#[test]
fn every_rank_states_the_placement_and_its_version() {
    let (model, layers, _) = SPARSE[0];
    let mut engine = loaded(on(model, TWO), model, "A");
    let first = stated(&mut engine);
    assert_eq!(first.len(), 4);
    let place = |ep, place| ExpertPlace { ep, place };
    let consecutive = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)].map(|(e, p)| place(e, p));
    assert!(first.iter().all(|(_, _, version, own)| (*version, &own[..]) == (0, &consecutive[..])));
    let placement = turned(model, 3, 2);
    replace(&mut engine, &placement).unwrap();
    for (_, layer, version, places) in stated(&mut engine) {
        assert!(layers.contains(&layer.as_str()));
        assert_eq!((version, &places), (3, &placement.layers[&layer]));
    }
}

#[test]
fn what_is_no_placement_is_refused_before_anything_moves() {
    let (model, layers, _) = SPARSE[0];
    let mut engine = loaded(on(model, TWO), model, "A");
    engine.pause().unwrap();
    engine.place_experts(&turned(model, 4, 2)).unwrap();
    let before = memory(&mut engine);
    let good = || turned(model, 5, 2);
    let with = |change: &dyn Fn(&mut Vec<ExpertPlace>)| {
        let mut placement = good();
        change(placement.layers.get_mut(layers[1]).unwrap());
        placement
    };
    let mut unknown = good();
    unknown.layers.insert("model.layers.9.mlp.experts".to_owned(), vec![]);
    let mut silent = good();
    silent.layers.remove(layers[0]);
    for (placement, text) in [
        (unknown, "no module `model.layers.9.mlp.experts` of this model has experts"),
        (silent, "says nothing of `model.layers.0.mlp.experts`"),
        (with(&|own| own.truncate(5)), "has 6 experts and 5 are placed"),
        (
            with(&|own| own[0].ep = 2),
            "expert 0 of `model.layers.1.mlp.experts` is placed on rank 2",
        ),
        (with(&|own| own[1].place = 3), "expert 1 of `model.layers.1.mlp.experts` is placed at 3"),
        (with(&|own| own[1] = own[0]), "is given to two experts"),
        (ExpertPlacement { version: 4, ..good() }, "version 4 of the placement is not above 4"),
    ] {
        let error = engine.place_experts(&placement).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(differences(&before, &memory(&mut engine)), BTreeMap::new());
    assert!(stated(&mut engine).iter().all(|(_, _, version, _)| *version == 4));
    engine.place_experts(&good()).unwrap();
}

#[test]
fn experts_move_only_where_nothing_else_goes_on() {
    let model = "qwen3_moe";
    let refuses = |engine: &mut Engine, text: &str| {
        let error = engine.place_experts(&turned(model, 1, 2)).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refuses(&mut loaded(config(model, 1), model, "A"), "all on one rank of ep");
    refuses(&mut loaded(config("llama", 2), "llama", "A"), "all on one rank of ep");
    let mut engine = loaded(on(model, TWO), model, "A");
    refuses(&mut engine, "call `pause` before `place_experts`");
    engine.pause().unwrap();
    engine.begin(&[]).unwrap();
    refuses(&mut engine, "transaction 2 is open");
    engine.apply(&tensors(model, "B")[..4]).unwrap();
    engine.abort().unwrap();
    refuses(&mut engine, "transaction 2 failed after its first write");
    update_paused(&mut engine, &tensors(model, "B")).unwrap();
    engine.sleep(1).unwrap();
    refuses(&mut engine, "wake it first");
    engine.wake("weights").unwrap();
    refuses(&mut engine, "wake it first");
    engine.wake("kv_cache").unwrap();
    engine.place_experts(&turned(model, 1, 2)).unwrap();
    engine.shutdown();
    let error = engine.place_experts(&turned(model, 2, 2)).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
}

#[test]
fn each_fault_of_a_move_is_in_its_object_and_its_twin_is_right() {
    let (model, w13) = ("qwen3_moe", "model.layers.0.mlp.experts.w13_weight");
    let placement = turned(model, 1, 2);
    let run = |id, variant| {
        let mut engine = loaded(with_fault(on(model, TWO), id, variant), model, "A");
        replace(&mut engine, &placement).unwrap();
        let moved = memory(&mut engine);
        update(&mut engine, &tensors(model, "B")).unwrap();
        [moved, memory(&mut engine)]
    };
    let cold = ["A", "B"].map(|label| memory(&mut cold(on(model, TWO), &placement, model, label)));
    let map = "model.layers.0.mlp.experts.expert_map";
    for (id, moved, updated) in [
        (FaultId::R63b, None, Some(w13)),
        (FaultId::R63c, Some(w13), None),
        (FaultId::R63d, Some(map), Some(map)),
    ] {
        let objects = |found: &[_; 2]| {
            [0, 1].map(|at| {
                let names = differences(&cold[at], &found[at]);
                names.into_keys().collect::<Vec<_>>()
            })
        };
        let wanted = [moved, updated].map(|name| name.map(str::to_owned).into_iter().collect());
        let wanted: [Vec<String>; 2] = wanted;
        assert_eq!(objects(&run(id, Variant::Faulty)), wanted, "{id}");
        assert_eq!(objects(&run(id, Variant::Twin)).concat(), [""; 0], "{id}~");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_placements_one_after_the_other_are_the_last_one(
        orders in prop::collection::vec(
            [0, 1].map(|_| Just((0..6).collect::<Vec<u64>>()).prop_shuffle()),
            1..4,
        ),
        ranks in prop::sample::select(vec![2_u32, 3, 6]),
    ) {
        let (model, layers, _) = SPARSE[0];
        let topology = Topology { ep: ranks, ..Topology::SINGLE };
        let mut engine = loaded(on(model, topology), model, "A");
        let served = serve(&mut engine, Mode::Eager).unwrap();
        let mut last = None;
        for (version, orders) in (1..).zip(&orders) {
            let both: Vec<_> =
                layers.iter().copied().zip(orders.iter().map(Vec::as_slice)).collect();
            let placement = placed(version, &both, ranks.into());
            replace(&mut engine, &placement).unwrap();
            last = Some(placement);
        }
        prop_assert_eq!(serve(&mut engine, Mode::Eager).unwrap(), served);
        let mut other = cold(on(model, topology), &last.unwrap(), model, "A");
        prop_assert_eq!(differences(&memory(&mut other), &memory(&mut engine)), BTreeMap::new());
    }
}
