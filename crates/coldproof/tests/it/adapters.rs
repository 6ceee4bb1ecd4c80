//! Adapters on the embedded engine: one that takes another's name is not the other.

use std::collections::BTreeMap;

use camino::Utf8Path;
use coldproof_checkpoint::{Factors, Lora};

use crate::support::{coldproof, findings, lane_proves, prove};

const LANE: [&str; 2] = ["--lane", "adapters"];

#[test]
fn a_pair_that_is_made_is_proven_in_every_family_and_topology() {
    let cases = [
        ("deepseek_v3", &["--tp", "2"][..]),
        ("gemma3", &[]),
        ("gpt_oss", &["--tp", "2"]),
        ("llama", &["--tp", "2", "--pp", "2"]),
        ("llava", &[]),
        ("mixtral", &["--ep", "2"]),
        ("nemotron_h", &[]),
        ("qwen2", &[]),
        ("qwen3", &["--tp", "2"]),
        ("qwen3_moe", &["--tp", "2", "--ep", "2"]),
    ];
    lane_proves("adapters", &cases, |family, verdict| {
        let caches = &verdict["categories"][6];
        assert_eq!(caches["status"], "pass", "{family}: {caches}");
        let proven = caches["reason"].as_str().unwrap();
        assert!(proven.contains("cached rows served with one adapter"), "{family}: {proven}");
        assert!(proven.contains("2 updates of adapters by transaction"), "{family}: {proven}");
        // Bytes of every slot and source, and the weights that the adapter alone left as they were.
        for (category, text) in [
            (2, "derived values equal to a cold load's"),
            (3, "sources equal to their files"),
            (4, "parameters preserved by a partial update"),
        ] {
            let report = &verdict["categories"][category - 1];
            let reason = report["reason"].as_str().unwrap();
            assert_eq!(report["status"], "pass", "{family} {category}: {reason}");
            assert!(reason.contains(text), "{family} {category}: {reason}");
        }
        assert!(verdict["certificate"]["ranks"].is_array(), "{family}");
    });
}

#[test]
fn what_a_transaction_did_is_judged_again_from_its_evidence() {
    let out = tempfile::tempdir().unwrap();
    let at = out.path().to_str().unwrap();
    for (more, code) in [(&[][..], 0), (&["--fault", "R47", "--lying"], 1)] {
        let ran = prove("llama", &[&LANE[..], &["--tp", "2", "--out", at], more].concat());
        assert_eq!(ran.code, code, "{}", ran.stdout);
        let evidence = out.path().join("evidence.jsonl");
        let again = coldproof(&["check", "--format", "json", evidence.to_str().unwrap()]);
        assert_eq!((again.code, again.json()), (code, ran.json()));
    }
}

#[test]
fn a_weight_that_an_adapter_alone_should_preserve_is_lost_state() {
    for (fault, code) in [("F4.06", 1), ("F4.06~", 0)] {
        let ran = prove("llama", &[&LANE[..], &["--fault", fault]].concat());
        let found = findings(&ran.json());
        let lost = ["4", "state-lost", "model.embed_tokens.weight"].map(str::to_owned);
        let wanted = if code == 1 { vec![lost.into()] } else { vec![] };
        assert_eq!((ran.code, found), (code, wanted), "{fault}");
    }
}

#[test]
fn each_fault_of_an_adapter_is_found_on_every_rank_that_has_it() {
    for (family, topology) in [("llama", ["--tp", "2"]), ("qwen3_moe", ["--ep", "2"])] {
        for (id, category, code) in [
            ("R47", "7", "adapter-reused"),
            ("R61", "3", "application-missing"),
            ("R60", "2", "derived-stale"),
        ] {
            let ran = prove(family, &[&LANE[..], &topology, &["--fault", id]].concat());
            let found = findings(&ran.json());
            let [(in_category, as_code, object)] = found.as_slice() else {
                panic!("{family} {id}: {found:?}")
            };
            assert_eq!((in_category.as_str(), as_code.as_str()), (category, code), "{family} {id}");
            assert!(object.starts_with("adapter"), "{family} {id}: {object}");
            let twin = format!("{id}~");
            let ran = prove(family, &[&LANE[..], &topology, &["--fault", &twin]].concat());
            assert_eq!(findings(&ran.json()), [], "{family} {twin}");
            assert_eq!(ran.code, 0, "{family} {twin}");
        }
    }
}

#[test]
fn blocks_of_the_old_content_are_found_whatever_the_engine_says() {
    for more in [&[][..], &["--lying"], &["--adapter-via", "other-folder"]] {
        let args = [&["prove", "--format", "json", "--fault", "F7.02"], &LANE[..], more].concat();
        let ran = coldproof(&args);
        let found = findings(&ran.json());
        let wanted = ["7", "adapter-reused", "adapter"].map(str::to_owned);
        assert_eq!(found, [wanted.into()], "{more:?}");
        assert_eq!(ran.code, 1, "{more:?}");
    }
}

#[test]
fn blocks_that_are_keyed_by_content_are_silent() {
    for more in [&[][..], &["--lying"]] {
        let args = [&["prove", "--format", "json", "--fault", "F7.02~"], &LANE[..], more].concat();
        let ran = coldproof(&args);
        assert_eq!(findings(&ran.json()), [], "{more:?}");
        assert_eq!(ran.code, 0, "{more:?}");
    }
}

/// An adapter of one module of llama.
fn adapter(at: &Utf8Path, module: &str, shape: (u64, u64), rank: u64) {
    let values = |count: u64| -> Vec<f32> { (0..count).map(|i| (i % 5) as f32 * 0.1).collect() };
    let factors = Factors::rounded(shape, &values(rank * shape.1), &values(rank * shape.0));
    Lora::write(at, (rank, 4.0), &BTreeMap::from([(module.to_owned(), factors)])).unwrap();
}

#[test]
fn adapters_that_are_given_may_differ_in_rank_and_modules() {
    let scratch = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(scratch.path()).unwrap();
    let (old, new) = (root.join("old"), root.join("new"));
    let config = fs_err::read(crate::support::fixture("llama/A/config.json")).unwrap();
    let config = coldproof_checkpoint::arch::ModelConfig::parse(&config).unwrap();
    let modules = coldproof_reference::adapters::modules(&config);
    for (at, suffix, rank) in [(&old, "q_proj", 4), (&new, "down_proj", 2)] {
        let module = modules.iter().find(|module| module.name.ends_with(suffix)).unwrap();
        adapter(at, &module.name, (module.outputs, module.inputs), rank);
    }
    let given = ["--adapter-from", old.as_str(), "--adapter-to", new.as_str()];
    let ran = prove("llama", &[&LANE[..], &given].concat());
    assert_eq!(findings(&ran.json()), []);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
}

#[test]
fn an_adapter_of_another_model_is_bad_input() {
    let scratch = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(scratch.path()).unwrap();
    let (old, new) = (root.join("old"), root.join("new"));
    adapter(&old, "model.layers.0.self_attn.q_proj", (3, 5), 4);
    adapter(&new, "model.layers.0.self_attn.w_proj", (3, 5), 4);
    let given = ["--adapter-from", old.as_str(), "--adapter-to", new.as_str()];
    let ran = prove("llama", &[&LANE[..], &given].concat());
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    let message = ran.json()["message"].to_string();
    assert!(message.contains("`model.layers.0.self_attn.w_proj`, which this model"), "{message}");
}
