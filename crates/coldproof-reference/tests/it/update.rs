//! Live updates: in place, in any order, equal to a cold load in every bit.

use coldproof_contract::evidence::{CacheFact, Fact, PostLoadStage};
use coldproof_contract::words::{Generation, Rank};
use coldproof_reference::engine::{Engine, EngineConfig, GenerateRequest, Mode, Output};

use crate::fixtures::{
    MODELS, addresses, bits, config, degrees, differences, fused, loaded, memory, prompt, request,
    serve, tensors, update, update_paused,
};

fn cold_bits(model: &str, tp: u32, label: &str) -> crate::fixtures::Bits {
    serve(&mut loaded(config(model, tp), model, label), Mode::Eager).unwrap()
}

#[test]
fn an_old_graph_replays_the_new_weights_in_every_bit() {
    for model in MODELS {
        for &tp in degrees(model) {
            let mut engine = loaded(config(model, tp), model, "A");
            engine.capture().unwrap();
            let before = addresses(&mut engine);
            let a = serve(&mut engine, Mode::Graph).unwrap();
            for label in ["B", "A", "B"] {
                update(&mut engine, &tensors(model, label)).unwrap();
                engine.pressure().unwrap();
                assert_eq!(addresses(&mut engine), before, "{model} tp {tp}: slots stay put");
                let replayed = serve(&mut engine, Mode::Graph).unwrap();
                assert_eq!(replayed, cold_bits(model, tp, label), "{model} tp {tp} {label}");
                assert_eq!(replayed == a, label == "A", "{model}: A and B differ");
                let mut cold = loaded(config(model, tp), model, label);
                let found = differences(&memory(&mut engine), &memory(&mut cold));
                assert!(found.is_empty(), "{model} tp {tp}: {found:?}");
                engine.release_pressure().unwrap();
            }
        }
    }
}

#[test]
fn sources_may_come_in_any_order_and_either_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(folder.path()).unwrap();
    let mut cold = loaded(config("qwen3_moe", 2), "qwen3_moe", "B");
    let cold = memory(&mut cold);
    let mut orders = vec![tensors("qwen3_moe", "B"), fused("qwen3_moe", "B", folder)];
    let mut reversed = orders[0].clone();
    reversed.reverse();
    orders.push(reversed);
    let mut dealt = orders[0].clone();
    dealt.sort_by_key(|tensor| tensor.name.bytes().rev().collect::<Vec<u8>>());
    orders.push(dealt);
    for order in orders {
        let mut engine = loaded(config("qwen3_moe", 2), "qwen3_moe", "A");
        update(&mut engine, &order).unwrap();
        assert!(differences(&memory(&mut engine), &cold).is_empty());
    }
}

#[test]
fn every_write_every_hook_and_every_receipt_is_stated_once() {
    let mut engine = loaded(config("qwen3_moe", 2), "qwen3_moe", "A");
    engine.drain_claims().unwrap();
    update(&mut engine, &tensors("qwen3_moe", "B")).unwrap();
    let facts = engine.drain_claims().unwrap();
    for rank in [0, 1].map(Rank::tensor) {
        let own = || facts.iter().filter(move |(of, _)| *of == rank).map(|(_, fact)| fact);
        let applied = own().filter(|fact| matches!(fact, Fact::Application(_))).count();
        assert_eq!(applied, tensors("qwen3_moe", "B").len(), "one piece a source and rank");
        for stage in [PostLoadStage::Expected, PostLoadStage::Processed, PostLoadStage::Finalised] {
            let of_stage = |fact: &&Fact| matches!(fact, Fact::PostLoad(p) if p.stage == stage);
            assert_eq!(own().filter(of_stage).count(), 6, "rotary, 2 o_proj, 2 experts, norm");
        }
        let receipts: Vec<_> = own()
            .filter_map(|fact| if let Fact::Receipt(receipt) = fact { Some(receipt) } else { None })
            .collect();
        let [receipt] = receipts.as_slice() else { panic!("one receipt a rank: {receipts:?}") };
        assert!(receipt.committed && receipt.buffered.is_empty());
        assert_eq!((receipt.generation, receipt.applications), (Generation(2), applied as u64));
    }
    assert!(engine.drain_claims().unwrap().is_empty());
}

#[test]
fn epochs_follow_the_generation() {
    let mut engine = loaded(config("llama", 1), "llama", "A");
    update(&mut engine, &tensors("llama", "B")).unwrap();
    for (_, slot) in crate::fixtures::slots(&mut engine) {
        let kept = slot.slot.0 == "model.rotary_emb.cos_sin_cache";
        let epoch = if kept { Generation(1) } else { Generation(2) };
        assert_eq!(slot.epoch, epoch, "{}", slot.slot);
    }
}

fn cached(name: &str) -> GenerateRequest {
    let name = name.to_owned();
    GenerateRequest { name, use_prefix_cache: true, ..request(Mode::Eager) }
}

/// Rows that attention computed for a request.
fn rows_computed(engine: &mut Engine, request: &str) -> u64 {
    let all = engine.launches().unwrap().into_iter();
    let rows = all.filter_map(|(rank, fact)| match fact {
        Fact::Launch(fact) if fact.request == request && fact.kernel == "linear_permuted" => {
            Some((rank, fact.rows))
        }
        _ => None,
    });
    rows.filter(|(rank, _)| rank.tp == 0).map(|(_, rows)| rows).sum::<u64>() / 2
}

fn cache(engine: &mut Engine) -> CacheFact {
    let facts = engine.claims().unwrap();
    let cache = facts.into_iter().find_map(|(_, fact)| match fact {
        Fact::Cache(cache) => Some(cache),
        _ => None,
    });
    cache.expect("one cache")
}

#[test]
fn a_prefix_hit_skips_rows_and_changes_no_bit_and_an_update_empties_it() {
    let mut engine = loaded(config("qwen3", 2), "qwen3", "A");
    let cold = bits(&engine.generate(&request(Mode::Eager)).unwrap().rows);
    let first = bits(&engine.generate(&cached("first")).unwrap().rows);
    let second = bits(&engine.generate(&cached("second")).unwrap().rows);
    assert_eq!((&first, &second), (&cold, &cold));
    assert_eq!(rows_computed(&mut engine, "second"), 24 - 16 + 5);
    assert_eq!((cache(&mut engine).entries, cache(&mut engine).hits), (1, 0));

    update(&mut engine, &tensors("qwen3", "B")).unwrap();
    assert_eq!(cache(&mut engine).entries, 0);
    let after = bits(&engine.generate(&cached("after")).unwrap().rows);
    assert_eq!(after, cold_bits("qwen3", 2, "B"));
    assert_eq!(rows_computed(&mut engine, "after"), 24 + 5, "nothing of A was reused");
}

#[test]
fn blocks_that_requests_need_displace_cached_ones() {
    let mut engine = loaded(EngineConfig { kv_blocks: 4, ..config("llama", 1) }, "llama", "A");
    let cold = bits(&engine.generate(&cached("a")).unwrap().rows);
    let other = GenerateRequest { prompt: prompt().into_iter().rev().collect(), ..cached("b") };
    engine.generate(&other).unwrap();
    engine.generate(&other).unwrap();
    assert_eq!(bits(&engine.generate(&cached("c")).unwrap().rows), cold);
    let long = GenerateRequest { prompt: vec![1; 60], ..GenerateRequest::default() };
    let error = engine.generate(&long).expect_err("4 blocks, one of them for padding");
    assert!(error.to_string().contains("none is free"), "{error}");
    assert_eq!(bits(&engine.generate(&cached("d")).unwrap().rows), cold, "blocks came back");
}

#[test]
fn a_lying_engine_without_faults_says_what_an_honest_one_says() {
    let run = |lying| {
        let mut engine = loaded(EngineConfig { lying, ..config("llama", 2) }, "llama", "A");
        engine.capture().unwrap();
        let output: Output = engine.generate(&cached("x")).unwrap();
        engine.pause().unwrap();
        update_paused(&mut engine, &tensors("llama", "B")).unwrap();
        (output, engine.claims().unwrap(), engine.drain_claims().unwrap())
    };
    assert_eq!(run(true), run(false));
}
