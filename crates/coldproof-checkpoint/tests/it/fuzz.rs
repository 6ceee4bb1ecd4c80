//! Random and nearly sound headers: an answer every time, never a panic.

use coldproof_checkpoint::Checkpoint;
use proptest::prelude::*;

use crate::support::{Scratch, entry, file};

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
    if let Ok(checkpoint) = Checkpoint::open(scratch.path()) {
        // What is called sound can be read.
        for tensor in checkpoint.tensors().values() {
            assert_eq!(tensor.read().unwrap().len() as u64, tensor.bytes);
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
    fn random_indexes_never_panic(text in "[\\[\\]{}\":,a-b0-9]{0,40}") {
        let scratch = Scratch::new();
        scratch.put("model.safetensors.index.json", text.as_bytes());
        prop_assert!(Checkpoint::open(scratch.path()).is_err());
    }
}
