//! Data-parallel replicas: whole engines that share nothing, and take every update together.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::evidence::{Fact, ReceiptFact};
use coldproof_contract::words::{Generation, Rank, SlotKind, Topology};
use coldproof_reference::engine::{Engine, EngineConfig, EngineError, GenerateRequest, Mode};
use coldproof_reference::faults::{FaultId, Variant};

use crate::fixtures::{
    Bits, Memory, bits, config, loaded, memory, request, serve, slots, tensors, update, with_fault,
};

const TWO: Topology = Topology { dp: 2, ..Topology::SINGLE };

fn replicated(model: &str, topology: Topology) -> EngineConfig {
    EngineConfig { topology, ..config(model, 1) }
}

fn serve_on(engine: &mut Engine, replica: u32, mode: Mode) -> Result<Bits, EngineError> {
    let request = GenerateRequest { replica, ..request(mode) };
    engine.generate(&request).map(|output| bits(&output.rows))
}

/// What one replica holds, as if it were alone.
fn held_by(memory: &Memory, dp: u32) -> Memory {
    let own = memory.iter().filter(|((rank, _), _)| rank.dp == dp);
    own.map(|((rank, slot), bytes)| ((Rank { dp: 0, ..*rank }, slot.clone()), bytes.clone()))
        .collect()
}

fn receipts(engine: &mut Engine) -> BTreeMap<Rank, Vec<ReceiptFact>> {
    let mut receipts: BTreeMap<Rank, Vec<ReceiptFact>> = BTreeMap::new();
    for (rank, fact) in engine.drain_claims().unwrap() {
        if let Fact::Receipt(receipt) = fact {
            receipts.entry(rank).or_default().push(receipt);
        }
    }
    receipts
}

#[test]
fn every_replica_has_the_bits_of_one_and_gives_receipts_of_its_own() {
    for (model, topology) in [
        ("llama", TWO),
        ("llama", Topology { tp: 2, dp: 2, ..Topology::SINGLE }),
        ("llama", Topology { pp: 2, dp: 3, ..Topology::SINGLE }),
        ("qwen3_moe", Topology { ep: 2, dp: 2, ..Topology::SINGLE }),
    ] {
        let mut cold = loaded(replicated(model, topology.replica()), model, "B");
        let (wanted, held) = (serve(&mut cold, Mode::Eager), memory(&mut cold));
        let mut engine = loaded(replicated(model, topology), model, "A");
        assert_eq!(engine.topology(), topology);
        engine.capture().unwrap();
        engine.drain_claims().unwrap();
        update(&mut engine, &tensors(model, "B")).unwrap();
        let receipts = receipts(&mut engine);
        assert!(receipts.keys().copied().eq(topology.ranks()), "{model} {topology:?}");
        for own in receipts.values() {
            assert_eq!(own.len(), 1);
            assert!(own[0].committed && own[0].generation == Generation(2));
            assert_eq!(own[0].transaction, receipts[&Rank::default()][0].transaction);
        }
        let memory = memory(&mut engine);
        for dp in 0..topology.dp {
            assert!(held_by(&memory, dp) == held, "{model} {topology:?}");
            for mode in [Mode::Eager, Mode::Graph] {
                assert_eq!(serve_on(&mut engine, dp, mode), wanted, "{model} {topology:?}");
            }
        }
    }
}

#[test]
fn replicas_share_no_memory_and_no_cache() {
    let mut engine = loaded(replicated("llama", TWO), "llama", "A");
    let right = serve_on(&mut engine, 0, Mode::Eager).unwrap();
    let all = slots(&mut engine);
    let norm = |dp: u32| {
        let mut own = all.iter().filter(|(rank, _)| rank.dp == dp);
        let (rank, slot) =
            own.find(|(_, slot)| slot.slot.0 == "model.norm/kernel.weight_f32").unwrap();
        (*rank, slot.fingerprint.clone().unwrap())
    };
    let (rank, print) = norm(1);
    assert_eq!(print.address, norm(0).1.address);
    assert_ne!(print.device, norm(0).1.device);
    engine.write(rank, print.address, &vec![0; print.bytes() as usize]).unwrap();
    assert_eq!(serve_on(&mut engine, 0, Mode::Eager).unwrap(), right);
    assert_ne!(serve_on(&mut engine, 1, Mode::Eager).unwrap(), right);
    let mut rows = |replica: u32| {
        engine.launches().unwrap();
        let request = GenerateRequest { use_prefix_cache: true, replica, ..request(Mode::Eager) };
        engine.generate(&request).unwrap();
        let launches = engine.launches().unwrap();
        assert!(launches.iter().all(|(rank, _)| rank.dp == replica));
        let rows = launches.iter().map(|(_, fact)| match fact {
            Fact::Launch(launch) => launch.rows,
            _ => 0,
        });
        rows.sum::<u64>()
    };
    let (first, again, other) = (rows(0), rows(0), rows(1));
    assert!(again < first && other == first, "{first} {again} {other}");
    let caches = engine.claims().unwrap().into_iter().filter_map(|(rank, fact)| match fact {
        Fact::Cache(cache) => Some((rank, cache.hits)),
        _ => None,
    });
    let hits: BTreeMap<Rank, u64> = caches.collect();
    assert!(hits[&Rank::first_of(0)] > 0 && hits[&Rank::first_of(1)] == 0, "{hits:?}");
}

#[test]
fn requests_of_a_batch_are_served_by_the_replicas_that_they_name() {
    let mut engine = loaded(replicated("llama", TWO), "llama", "A");
    engine.capture().unwrap();
    let on = |replica: u32, first: u32| GenerateRequest {
        name: format!("{first}"),
        prompt: vec![first, 7, 9],
        replica,
        ..request(Mode::Graph)
    };
    let batch = [on(1, 3), on(0, 4), on(1, 5)];
    let together = engine.generate_batch(&batch).unwrap();
    let alone: Vec<_> = batch.iter().map(|request| engine.generate(request).unwrap()).collect();
    assert_eq!(together, alone);
}

#[test]
fn a_replica_or_a_rank_that_is_not_there_is_refused_by_name() {
    let mut engine = loaded(replicated("llama", TWO), "llama", "A");
    let error = serve_on(&mut engine, 2, Mode::Eager).unwrap_err().to_string();
    assert_eq!(error, "request `fixed` names replica 2 and there are 2, counted from 0");
    let print = slots(&mut engine)[0].1.fingerprint.clone().unwrap();
    let error = engine.read(Rank::first_of(2), print.address, 1).unwrap_err().to_string();
    assert_eq!(error, "there is no rank tp0.dp2 of 2");
    assert!(serve_on(&mut engine, 1, Mode::Eager).is_ok());
}

#[test]
fn a_death_of_one_replica_ends_all_and_what_was_seen_stays() {
    let mut engine = loaded(replicated("llama", TWO), "llama", "A");
    let all = slots(&mut engine);
    let permutation = all.iter().find(|(rank, slot)| {
        rank.dp == 1 && slot.slot_kind == SlotKind::Derived && slot.slot.0.ends_with("act_perm")
    });
    let (rank, slot) = permutation.unwrap();
    let print = slot.fingerprint.clone().unwrap();
    engine.write(*rank, print.address, &vec![0x7f; print.bytes() as usize]).unwrap();
    serve_on(&mut engine, 0, Mode::Eager).unwrap();
    let error = serve_on(&mut engine, 1, Mode::Eager).unwrap_err();
    assert!(error.ends(), "{error}");
    let after = serve_on(&mut engine, 0, Mode::Eager).unwrap_err().to_string();
    assert!(after.contains("the engine has ended"), "{after}");
    assert!(engine.claims().is_err());
    let ranks = |facts: Vec<(Rank, Fact)>| -> BTreeSet<Rank> {
        facts.into_iter().map(|(rank, _)| rank).collect()
    };
    let both = TWO.ranks().collect::<BTreeSet<_>>();
    assert_eq!(ranks(engine.launches().unwrap()), both);
    assert_eq!(ranks(engine.allocator_log().unwrap()), both);
}

#[test]
fn a_replica_that_is_passed_over_keeps_the_old_weights_and_says_otherwise() {
    let holds = |label: &str| memory(&mut loaded(config("llama", 1), "llama", label));
    let (a, b) = (holds("A"), holds("B"));
    for (variant, lying) in
        [(Variant::Faulty, false), (Variant::Faulty, true), (Variant::Twin, false)]
    {
        let base = EngineConfig { lying, ..replicated("llama", TWO) };
        let mut engine = loaded(with_fault(base, FaultId::R43, variant), "llama", "A");
        engine.drain_claims().unwrap();
        update(&mut engine, &tensors("llama", "B")).unwrap();
        let receipts = receipts(&mut engine);
        assert!(receipts.values().flatten().all(|receipt| receipt.committed));
        let now = memory(&mut engine);
        assert!(held_by(&now, 0) == b);
        assert!(held_by(&now, 1) == if variant == Variant::Faulty { a.clone() } else { b.clone() });
        // What has no old weights to keep is not passed over.
        engine.pause().unwrap();
        engine.sleep(2).unwrap();
        engine.wake("weights").unwrap();
        engine.wake("kv_cache").unwrap();
        engine.load(&tensors("llama", "B")).unwrap();
        assert!(held_by(&memory(&mut engine), 1) == b);
    }
}

#[test]
fn an_update_that_is_given_up_leaves_every_replica_as_it_was() {
    let mut engine = loaded(replicated("llama", TWO), "llama", "A");
    let before = memory(&mut engine);
    engine.pause().unwrap();
    engine.begin(&[]).unwrap();
    let mut bad = tensors("llama", "B")[0].clone();
    bad.name = "no.such.tensor".to_owned();
    engine.apply(&[bad]).unwrap_err();
    engine.resume().unwrap();
    assert!(memory(&mut engine) == before);
    update(&mut engine, &tensors("llama", "B")).unwrap();
}
