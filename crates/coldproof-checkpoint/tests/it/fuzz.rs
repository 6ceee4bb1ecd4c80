//! Random and nearly sound input: an answer every time, never a panic. What begins sound is what
//! is committed: every configuration, every index, every header.
//!
//! Input that breaks one of these is kept in `proptest-regressions/` and tried first.

use std::sync::LazyLock;

use coldproof_checkpoint::arch::{Catalogue, ModelConfig, Outline};
use coldproof_checkpoint::{Adapter, Checkpoint, CheckpointError, NameMap};
use proptest::prelude::*;
use serde_json::Value;

use crate::mutate::{Change, changes};
use crate::support::{Scratch, entry, file, fixtures};

/// A refusal names its file and says in words what to do.
fn refused(error: &CheckpointError) {
    let text = error.to_string();
    assert!(text.starts_with('`') && text.ends_with(error.mend()), "{text}");
    assert!(!error.object().is_empty() && !error.code().is_empty(), "{text}");
}

/// A committed text, changed in its structure, then in its bytes.
fn changed(text: &[u8], changes: Vec<Change>, bytes: &[(usize, u8)]) -> Vec<u8> {
    let mut document: Value = serde_json::from_slice(text).unwrap();
    changes.into_iter().for_each(|change| change.make(&mut document));
    let mut text = document.to_string().into_bytes();
    for &(at, byte) in bytes {
        let length = text.len();
        text[at % length] = byte;
    }
    text
}

fn few_bytes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    // Most documents stay JSON.
    prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(any::<(usize, u8)>(), 1..3)]
}

/// Every file of this name in a committed checkpoint.
fn committed(name: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for family in std::fs::read_dir(fixtures()).unwrap() {
        let file = family.unwrap().path().join("A").join(name);
        found.extend(std::fs::read(file).ok());
    }
    found.sort();
    found
}

static CONFIGS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| committed("config.json"));

/// Reads a configuration in every way there is; one that is called sound has a catalogue.
fn configured(text: &[u8]) {
    let scratch = Scratch::new();
    scratch.put("config.json", text);
    if let Err(error) = Outline::read(scratch.path()) {
        refused(&error);
    }
    match ModelConfig::read(scratch.path()) {
        Err(error) => refused(&error),
        Ok(config) => {
            let catalogue = Catalogue::of(&config);
            let names = NameMap::of(&catalogue);
            for rule in catalogue.all_rules() {
                assert_eq!(names.rule(&rule.source), Some(rule));
                // Sizes were checked when they were read: no product of them overflows.
                assert!(
                    rule.shape.iter().try_fold(1_u64, |n, &axis| n.checked_mul(axis)).is_some()
                );
            }
        }
    }
}

/// A sound file of several tensors.
fn sound() -> Vec<u8> {
    let entries = [
        entry("model.norm.weight", "BF16", "[4]", 0, 8),
        entry("b", "F32", "[2,3]", 8, 32),
        entry("c", "U8", "[0]", 32, 32),
    ];
    file(&format!("{{\"__metadata__\":{{\"format\":\"pt\"}},{}}}", entries.join(",")), 32)
}

fn open(bytes: &[u8]) {
    let scratch = Scratch::new();
    scratch.put("model.safetensors", bytes);
    opened(&scratch);
}

fn opened(scratch: &Scratch) {
    match Checkpoint::open(scratch.path()) {
        Err(error) => refused(&error),
        Ok(checkpoint) => {
            // What is called sound can be read.
            for tensor in checkpoint.tensors().values() {
                assert_eq!(tensor.read().unwrap().len() as u64, tensor.bytes);
            }
        }
    }
}

/// Pieces of JSON that headers are made of.
fn header() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        (0_u64..40).prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        Just("-1".to_owned()),
        Just("1e400".to_owned()),
        Just("null".to_owned()),
    ];
    let dtype = prop::sample::select(vec!["BF16", "F32", "U8", "F4", "", "bf16"]);
    let shape = prop::collection::vec(number.clone(), 0..4);
    let tensor = (
        prop::sample::select(vec!["a", "b", "__metadata__", ""]),
        dtype,
        shape,
        number.clone(),
        number,
    )
        .prop_map(|(name, dtype, shape, start, end)| {
            format!(
                r#""{name}":{{"dtype":"{dtype}","shape":[{}],"data_offsets":[{start},{end}]}}"#,
                shape.join(",")
            )
        });
    prop::collection::vec(tensor, 0..4).prop_map(|tensors| format!("{{{}}}", tensors.join(",")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        open(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_sound_length_never_panic(
        json in prop::collection::vec(any::<u8>(), 0..200), data in 0_usize..50,
    ) {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json);
        bytes.resize(bytes.len() + data, 0);
        open(&bytes);
    }

    #[test]
    fn a_sound_file_with_changed_bytes_never_panics(
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
        cut in any::<usize>(),
    ) {
        let mut bytes = sound();
        for (at, byte) in changes {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        if cut % 4 == 0 {
            bytes.truncate(cut / 4 % bytes.len());
        }
        open(&bytes);
    }

    #[test]
    fn headers_of_random_entries_never_panic(header in header(), data in 0_usize..50) {
        open(&file(&header, data));
    }

    #[test]
    fn a_sound_header_that_was_changed_never_panics(
        changes in changes(1..4),
        bytes in few_bytes(),
        data in prop::sample::select(vec![0, 31, 32, 33]),
    ) {
        let whole = sound();
        let header = &whole[8..whole.len() - 32];
        let text = String::from_utf8_lossy(&changed(header, changes, &bytes)).into_owned();
        open(&file(&text, data));
    }

    #[test]
    fn random_indexes_never_panic(text in "[\\[\\]{}\":,a-b0-9]{0,40}") {
        let scratch = Scratch::new();
        scratch.put("model.safetensors.index.json", text.as_bytes());
        prop_assert!(Checkpoint::open(scratch.path()).is_err());
    }

    #[test]
    fn a_sound_index_that_was_changed_never_panics(changes in changes(0..4), bytes in few_bytes()) {
        let scratch = Scratch::new();
        let shard = |name: &str| file(&format!("{{{}}}", entry(name, "BF16", "[2]", 0, 4)), 4);
        scratch.put("one.safetensors", &shard("a")).put("two.safetensors", &shard("b"));
        let index = r#"{"metadata":{"total_size":8},
            "weight_map":{"a":"one.safetensors","b":"two.safetensors"}}"#;
        scratch.put("model.safetensors.index.json", &changed(index.as_bytes(), changes, &bytes));
        opened(&scratch);
    }

    #[test]
    fn a_sound_adapter_that_was_changed_never_panics(
        changes in changes(0..4), bytes in few_bytes(),
    ) {
        let scratch = Scratch::new();
        let config = r#"{"r":8,"lora_alpha":16,"target_modules":["q"],"rank_pattern":{"a":4}}"#;
        scratch.put("adapter_config.json", &changed(config.as_bytes(), changes, &bytes));
        scratch.put("adapter_model.safetensors", &sound());
        if let Err(error) = Adapter::read(scratch.path()) {
            refused(&error);
        }
    }

    #[test]
    fn random_configurations_never_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        configured(&text);
    }

    #[test]
    fn a_configuration_of_any_family_that_was_changed_never_panics(
        which in any::<usize>(), changes in changes(1..5), bytes in few_bytes(),
    ) {
        configured(&changed(&CONFIGS[which % CONFIGS.len()], changes, &bytes));
    }
}

#[test]
fn every_committed_configuration_is_among_those_that_are_changed() {
    assert!(CONFIGS.len() > 8, "{}", CONFIGS.len());
    for text in CONFIGS.iter() {
        configured(text);
    }
}

#[test]
fn a_document_that_is_nested_without_end_is_refused() {
    for nested in ["[", "{\"a\":"] {
        configured(nested.repeat(100_000).as_bytes());
        open(&file(&nested.repeat(100_000), 0));
    }
}
