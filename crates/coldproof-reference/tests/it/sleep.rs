//! The transition with sleep: addresses stay, contents come back or are loaded anew.

use coldproof_contract::words::StepName;
use coldproof_reference::engine::{Engine, EngineError, Mode};
use coldproof_reference::faults::{FaultId, Variant};

use crate::fixtures::{
    addresses, config, differences, loaded, memory, serve, tensors, update_paused, with_fault,
};

fn ready(model: &str, tp: u32) -> Engine {
    let mut engine = loaded(config(model, tp), model, "A");
    engine.capture().unwrap();
    engine
}

#[test]
fn level_1_keeps_weights_and_buffers_at_their_addresses() {
    let mut engine = ready("qwen3_moe", 2);
    let (before, kept) = (addresses(&mut engine), memory(&mut engine));
    let a = serve(&mut engine, Mode::Graph).unwrap();
    engine.pause().unwrap();
    engine.sleep(1).unwrap();
    engine.wake("weights").unwrap();
    engine.wake("kv_cache").unwrap();
    engine.resume().unwrap();
    assert_eq!(addresses(&mut engine), before);
    assert!(differences(&memory(&mut engine), &kept).is_empty());
    assert_eq!(serve(&mut engine, Mode::Graph).unwrap(), a);
}

#[test]
fn the_eight_steps_end_in_a_cold_load_of_the_new_weights() {
    for level in [1, 2] {
        for model in ["llama_tied", "qwen3_moe"] {
            let mut engine = ready(model, 2);
            let before = addresses(&mut engine);
            for label in ["B", "A", "B"] {
                for step in StepName::TRANSITION {
                    match step {
                        StepName::Pause => engine.pause().unwrap(),
                        StepName::Sleep => engine.sleep(level).unwrap(),
                        StepName::WakeWeights => engine.wake("weights").unwrap(),
                        StepName::Update => {
                            update_paused(&mut engine, &tensors(model, label)).unwrap();
                        }
                        StepName::WakeKv => engine.wake("kv_cache").unwrap(),
                        StepName::Invalidate => engine.invalidate().unwrap(),
                        StepName::Resume => engine.resume().unwrap(),
                        _ => {}
                    }
                }
                engine.pressure().unwrap();
                assert_eq!(addresses(&mut engine), before);
                let mut cold = loaded(config(model, 2), model, label);
                let found = differences(&memory(&mut engine), &memory(&mut cold));
                assert!(found.is_empty(), "{model} level {level}: {found:?}");
                let replayed = serve(&mut engine, Mode::Graph).unwrap();
                assert_eq!(replayed, serve(&mut cold, Mode::Eager).unwrap());
                engine.release_pressure().unwrap();
            }
        }
    }
}

#[test]
fn weights_that_level_2_discarded_are_never_served() {
    let mut engine = ready("llama", 1);
    engine.pause().unwrap();
    engine.sleep(2).unwrap();
    engine.wake("weights").unwrap();
    engine.wake("kv_cache").unwrap();
    let error = engine.resume().expect_err("there are no weights");
    assert!(error.to_string().contains("discarded by sleep level 2"), "{error}");
    engine.load(&tensors("llama", "A")).unwrap();
    engine.resume().unwrap();
    let a = serve(&mut loaded(config("llama", 1), "llama", "A"), Mode::Eager);
    assert_eq!(serve(&mut engine, Mode::Graph), a);
}

#[test]
fn wakes_come_in_their_order_and_once() {
    let mut engine = ready("llama", 1);
    let text = |answer: Result<(), EngineError>| answer.expect_err("refused").to_string();
    assert!(text(engine.sleep(1)).contains("call `pause`"));
    engine.pause().unwrap();
    assert!(text(engine.sleep(3)).contains("no sleep level 3"));
    assert!(text(engine.wake("weights")).contains("in memory already"));
    engine.sleep(1).unwrap();
    assert!(text(engine.sleep(1)).contains("wake it first"));
    assert!(text(engine.wake("kv_cache")).contains("wake `weights` before"));
    assert!(
        text(engine.wake("graphs")).contains("no") || text(engine.wake("graphs")).contains("tag")
    );
    assert!(text(engine.begin(&[]).map(|_| ())).contains("wake it first"));
    assert!(text(engine.resume()).contains("asleep"));
    engine.wake("weights").unwrap();
    assert!(text(engine.wake("weights")).contains("in memory already"));
    assert!(text(engine.resume()).contains("without a kv cache"));
    engine.wake("kv_cache").unwrap();
    engine.resume().unwrap();
    assert!(serve(&mut engine, Mode::Graph).is_ok());
}

#[test]
fn a_replay_while_asleep_is_an_illegal_access_that_ends_the_engine() {
    let mut engine = ready("llama", 2);
    engine.allocator_log().unwrap();
    engine.pause().unwrap();
    engine.sleep(1).unwrap();
    let error = engine.replay("decode-1").expect_err("unmapped");
    let EngineError::Died { kernel: Some(kernel), address: Some(address), .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(kernel, "embed");
    let table = addresses(&mut ready("llama", 2))
        [&(coldproof_contract::words::Rank::tensor(0), "model.embed_tokens.weight".to_owned())];
    assert_eq!(address, table);
    let late = engine.wake("weights").expect_err("ended");
    assert!(late.to_string().contains("the engine has ended: the engine died"), "{late}");
    assert!(!engine.allocator_log().unwrap().is_empty(), "the log outlives the engine");
}

#[test]
fn the_loader_of_the_wrong_phase_is_wrong_after_either_sleep() {
    for level in [1, 2] {
        for (variant, right) in [(Variant::Faulty, false), (Variant::Twin, true)] {
            let base = with_fault(config("qwen3_moe", 1), FaultId::F3_01, variant);
            let mut engine = loaded(base, "qwen3_moe", "A");
            engine.pause().unwrap();
            engine.sleep(level).unwrap();
            engine.wake("weights").unwrap();
            update_paused(&mut engine, &tensors("qwen3_moe", "B")).unwrap();
            let mut cold = loaded(config("qwen3_moe", 1), "qwen3_moe", "B");
            let found = differences(&memory(&mut engine), &memory(&mut cold));
            assert_eq!(found.is_empty(), right, "level {level}: {found:?}");
        }
    }
}
