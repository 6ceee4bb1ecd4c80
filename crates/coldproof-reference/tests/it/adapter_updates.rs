//! Adapters in transactions: published with the weights that came with them, or alone; all of it or
//! nothing.

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::Lora;
use coldproof_contract::evidence::{Fact, ReceiptFact};
use coldproof_contract::words::{Rank, Topology};
use coldproof_reference::adapters::modules;
use coldproof_reference::engine::{Engine, EngineConfig, EngineError, GenerateRequest, Mode};
use coldproof_reference::faults::{FaultId, Variant};

use crate::adapters::factors_of;
use crate::fixtures::{
    Bits, addresses, bits, config, differences, loaded, memory, model_config, request, slots,
    tensors, with_fault,
};

const NAME: &str = "adapter";

/// An adapter of every module, whose values and scale follow from the seed.
fn write(model: &str, at: &Utf8Path, rank: u64, seed: u64) {
    let factors = modules(&model_config(model)).into_iter().map(|module| {
        let factors = factors_of(&module, rank, seed);
        (module.name, factors)
    });
    Lora::write(at, (rank, (rank * seed) as f64), &factors.collect()).unwrap();
}

/// The old adapter, the new one, and one of another rank.
struct Folders {
    _scratch: tempfile::TempDir,
    old: Utf8PathBuf,
    new: Utf8PathBuf,
    narrow: Utf8PathBuf,
}

fn folders(model: &str) -> Folders {
    let scratch = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(scratch.path()).unwrap();
    let at = |name: &str, rank, seed| {
        write(model, &root.join(name), rank, seed);
        root.join(name)
    };
    let (old, new, narrow) = (at("old", 4, 1), at("new", 4, 2), at("narrow", 2, 3));
    Folders { _scratch: scratch, old, new, narrow }
}

fn names(model: &str) -> Vec<String> {
    tensors(model, "A").iter().map(|tensor| tensor.name.clone()).collect()
}

fn with_adapter() -> GenerateRequest {
    GenerateRequest { adapter: Some(NAME.to_owned()), ..request(Mode::Eager) }
}

fn serve(engine: &mut Engine) -> Result<Bits, EngineError> {
    engine.generate(&with_adapter()).map(|output| bits(&output.rows))
}

/// An engine with weights and an adapter that it never had others of.
fn cold(config: EngineConfig, model: &str, label: &str, adapter: &Utf8Path) -> Engine {
    let mut engine = loaded(config, model, label);
    engine.load_adapter(NAME, adapter).unwrap();
    engine
}

/// From pause to the commit: the weights of B, if they are wanted, and an adapter.
fn update(engine: &mut Engine, model: &str, weights: bool, adapter: &Utf8Path) {
    let promised = [(NAME.to_owned(), adapter.to_owned())];
    engine.pause().unwrap();
    let all = names(model);
    let (new, kept) = if weights { (all, vec![]) } else { (vec![], all) };
    engine.begin_with_adapters(&new, &kept, &promised).unwrap();
    if weights {
        let b = tensors(model, "B");
        let (first, last) = b.split_at(b.len() / 2);
        engine.apply(first).unwrap();
        engine.apply_adapter(NAME).unwrap();
        engine.apply(last).unwrap();
    } else {
        engine.apply_adapter(NAME).unwrap();
    }
    engine.finish().unwrap();
    engine.commit().unwrap();
    engine.invalidate().unwrap();
    engine.resume().unwrap();
}

fn receipts(engine: &mut Engine) -> Vec<(Rank, ReceiptFact)> {
    let receipt = |(rank, fact)| match fact {
        Fact::Receipt(receipt) => Some((rank, receipt)),
        _ => None,
    };
    engine.drain_claims().unwrap().into_iter().filter_map(receipt).collect()
}

/// (model, topology).
fn cases() -> Vec<(&'static str, Topology)> {
    vec![
        ("llama", Topology::tensor(2)),
        ("qwen3_moe", Topology { ep: 2, ..Topology::SINGLE }),
        ("gpt_oss", Topology { pp: 2, ..Topology::SINGLE }),
        ("deepseek_v3", Topology::SINGLE),
    ]
}

#[test]
fn weights_and_an_adapter_are_published_together() {
    for (model, topology) in cases() {
        let folders = folders(model);
        let config = || EngineConfig { topology, ..config(model, 1) };
        let mut engine = cold(config(), model, "A", &folders.old);
        let (before, bound) = (serve(&mut engine).unwrap(), addresses(&mut engine));
        receipts(&mut engine);
        update(&mut engine, model, true, &folders.new);
        let given = receipts(&mut engine);
        assert_eq!(given.len(), topology.size() as usize, "{model}");
        let mut wanted = cold(config(), model, "B", &folders.new);
        let found = differences(&memory(&mut engine), &memory(&mut wanted));
        assert!(found.is_empty(), "{model}: {found:?}");
        assert_eq!(addresses(&mut engine), bound, "{model}: in place");
        let after = serve(&mut engine).unwrap();
        assert_ne!(after, before);
        assert_eq!(after, serve(&mut wanted).unwrap(), "{model}");
        for (rank, receipt) in given {
            assert!(receipt.committed, "{model} {rank}");
            assert_eq!(receipt.generation.0, 2);
        }
    }
}

#[test]
fn adapters_alone_preserve_every_weight_and_its_generation() {
    for (model, topology) in cases() {
        let folders = folders(model);
        let config = || EngineConfig { topology, ..config(model, 1) };
        let mut engine = cold(config(), model, "A", &folders.old);
        let before = memory(&mut engine);
        receipts(&mut engine);
        for adapter in [&folders.new, &folders.narrow] {
            update(&mut engine, model, false, adapter);
            let given = receipts(&mut engine);
            let counts =
                given.iter().map(|(_, given)| (given.applications > 0, given.generation.0));
            assert_eq!(counts.collect::<Vec<_>>(), vec![(true, 1); topology.size() as usize]);
            let mut wanted = cold(config(), model, "A", adapter);
            let found = differences(&memory(&mut engine), &memory(&mut wanted));
            assert!(found.is_empty(), "{model}: {found:?}");
            assert_eq!(serve(&mut engine).unwrap(), serve(&mut wanted).unwrap(), "{model}");
        }
        let base = |memory: crate::fixtures::Memory| -> crate::fixtures::Memory {
            memory.into_iter().filter(|((_, slot), _)| !slot.starts_with("adapter.")).collect()
        };
        assert_eq!(base(memory(&mut engine)), base(before), "{model}");
    }
}

#[test]
fn what_an_adapter_was_given_is_in_the_account_of_each_rank() {
    let (model, topology) = ("qwen3_moe", Topology { tp: 2, ep: 2, ..Topology::SINGLE });
    let folders = folders(model);
    let mut engine = loaded(EngineConfig { topology, ..config(model, 1) }, model, "A");
    engine.drain_claims().unwrap();
    engine.load_adapter(NAME, &folders.old).unwrap();
    let facts = engine.drain_claims().unwrap();
    let registered: Vec<(Rank, String)> =
        slots(&mut engine).into_iter().map(|(rank, slot)| (rank, slot.slot.0)).collect();
    for rank in topology.ranks() {
        let own = facts.iter().filter(|(of, _)| *of == rank).map(|(_, fact)| fact);
        let applied: Vec<_> = own
            .clone()
            .filter_map(|fact| match fact {
                Fact::Application(applied) => Some(applied),
                _ => None,
            })
            .collect();
        let counted = own.filter_map(|fact| match fact {
            Fact::Receipt(receipt) => Some(receipt.applications),
            _ => None,
        });
        assert_eq!(counted.collect::<Vec<_>>(), [applied.len() as u64]);
        assert!(applied.len() > 20, "{rank}: {}", applied.len());
        for fact in applied {
            assert!(fact.source.starts_with("adapter.adapter/base_model.model."), "{fact:?}");
            assert!(registered.contains(&(rank, fact.slot.0.clone())), "{fact:?}");
        }
    }
}

#[test]
fn an_adapter_that_is_refused_refuses_the_transaction_before_any_write() {
    let folders = folders("llama");
    let mut engine = cold(config("llama", 2), "llama", "A", &folders.old);
    let (before, answer) = (memory(&mut engine), serve(&mut engine).unwrap());
    engine.pause().unwrap();
    let wrong = folders.old.parent().unwrap().join("wrong");
    write("qwen3_moe", &wrong, 4, 1);
    let all = names("llama");
    let of = |folder: &Utf8Path| (NAME.to_owned(), folder.to_owned());
    engine.allocator_log().unwrap();
    for (adapters, text) in [
        (vec![of(&wrong)], "which this model does not have"),
        (vec![of(&folders.new), of(&folders.old)], "promised twice"),
        (vec![of(&wrong.join("none"))], "adapter_model.safetensors"),
    ] {
        for (new, kept) in [(&all[..], &[][..]), (&[], &all)] {
            let error = engine.begin_with_adapters(new, kept, &adapters).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
    let (narrow, part) = ([of(&folders.narrow)], &all[1..]);
    let error = engine.begin_with_adapters(&[], part, &narrow).unwrap_err().to_string();
    assert!(error.contains("nobody said what becomes of"), "{error}");
    // One that is given up before its first write gives its room back.
    engine.begin_with_adapters(&all, &[], &narrow).unwrap();
    engine.abort().unwrap();
    let log = engine.allocator_log().unwrap();
    let taken = log.iter().filter(|(_, fact)| matches!(fact, Fact::Alloc(_))).count();
    let freed = log.iter().filter(|(_, fact)| matches!(fact, Fact::Free(_))).count();
    assert_eq!((taken > 0, taken), (true, freed));
    engine.resume().unwrap();
    assert!(differences(&memory(&mut engine), &before).is_empty());
    assert_eq!(serve(&mut engine).unwrap(), answer);
}

#[test]
fn what_fails_after_the_first_write_serves_neither_the_old_adapter_nor_the_new() {
    let folders = folders("llama");
    let b = tensors("llama", "B");
    let all = names("llama");
    for adapter in [&folders.new, &folders.narrow] {
        for weights_first in [true, false] {
            let mut engine = cold(config("llama", 2), "llama", "A", &folders.old);
            engine.pause().unwrap();
            let promised = [(NAME.to_owned(), adapter.clone())];
            engine.begin_with_adapters(&all, &[], &promised).unwrap();
            let text = if weights_first {
                engine.apply(&b).unwrap();
                "`adapter` was promised and did not arrive"
            } else {
                engine.apply_adapter(NAME).unwrap();
                "sources are missing"
            };
            let error = engine.finish().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
            let error = engine.resume().unwrap_err().to_string();
            assert!(error.contains("load all weights again"), "{error}");
            let error = engine.load_adapter(NAME, adapter).unwrap_err().to_string();
            assert!(error.contains("only a full load leads on"), "{error}");
            crate::fixtures::update_paused(&mut engine, &b).unwrap();
            engine.invalidate().unwrap();
            engine.resume().unwrap();
            let error = serve(&mut engine).unwrap_err().to_string();
            assert!(error.contains("`adapter`, which is not loaded"), "{error}");
            engine.load_adapter(NAME, adapter).unwrap();
            let mut wanted = cold(config("llama", 2), "llama", "B", adapter);
            assert_eq!(serve(&mut engine).unwrap(), serve(&mut wanted).unwrap());
        }
    }
}

#[test]
fn a_transaction_takes_each_adapter_that_it_promised_once() {
    let folders = folders("llama");
    let all = names("llama");
    let promised = [(NAME.to_owned(), folders.new.clone())];
    for (twice, name, text) in [(true, NAME, "comes twice"), (false, "other", "was not promised")] {
        let mut engine = cold(config("llama", 1), "llama", "A", &folders.old);
        let answer = serve(&mut engine).unwrap();
        engine.pause().unwrap();
        engine.begin_with_adapters(&[], &all, &promised).unwrap();
        if twice {
            engine.apply_adapter(NAME).unwrap();
        }
        let error = engine.apply_adapter(name).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        // Where nothing was written the engine is as it was.
        let resumed = engine.resume();
        assert_eq!(resumed.is_err(), twice);
        if !twice {
            assert_eq!(serve(&mut engine).unwrap(), answer);
        }
    }
    let mut engine = cold(config("llama", 1), "llama", "A", &folders.old);
    let answer = serve(&mut engine).unwrap();
    engine.pause().unwrap();
    engine.begin_with_adapters(&[], &all, &promised).unwrap();
    let error = engine.apply(&tensors("llama", "B")).unwrap_err().to_string();
    assert!(error.contains("was not promised"), "{error}");
    engine.resume().unwrap();
    assert_eq!(serve(&mut engine).unwrap(), answer);
    engine.pause().unwrap();
    engine.begin_with_adapters(&[], &all, &promised).unwrap();
    let error = engine.load_adapter("third", &folders.old).unwrap_err().to_string();
    assert!(error.contains("is open"), "{error}");
    let mut vacant = Engine::start(config("llama", 1)).unwrap();
    let error = vacant.load_adapter(NAME, &folders.old).unwrap_err().to_string();
    assert!(error.contains("there are no weights"), "{error}");
}

#[test]
fn each_fault_leaves_its_part_of_the_adapter_old_and_its_twin_nothing() {
    let folders = folders("llama");
    let stale = "adapter.adapter/model.layers.0.mlp.down_proj.lora_B.0";
    for (id, wanted) in [
        (FaultId::R61, vec![stale]),
        (FaultId::R60, vec!["adapter.adapter/scaling"]),
        (FaultId::R47, vec![]),
    ] {
        for variant in [Variant::Faulty, Variant::Twin] {
            let faulty = with_fault(config("llama", 1), id, variant);
            let mut engine = cold(faulty, "llama", "A", &folders.old);
            update(&mut engine, "llama", true, &folders.new);
            let old = memory(&mut cold(config("llama", 1), "llama", "B", &folders.old));
            let new = memory(&mut cold(config("llama", 1), "llama", "B", &folders.new));
            let held = memory(&mut engine);
            let found: Vec<String> = differences(&held, &new).into_keys().collect();
            match (variant, id) {
                (Variant::Twin, _) => assert!(found.is_empty(), "{id}: {found:?}"),
                (Variant::Faulty, FaultId::R47) => {
                    assert!(differences(&held, &old).is_empty());
                    assert!(found.iter().all(|slot| slot.starts_with("adapter.")), "{found:?}");
                }
                (Variant::Faulty, _) => assert_eq!(found, wanted, "{id}"),
            }
        }
    }
}
