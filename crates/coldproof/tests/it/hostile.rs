//! Broken and hostile checkpoints: exit code 2, one clear line that names the object, and a hint.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Ran, coldproof, copy_of, fixture};

fn prove_to(to: &Path) -> Ran {
    prove(&fixture("llama/A"), to)
}

fn prove(from: &Path, to: &Path) -> Ran {
    coldproof(&[
        "prove".as_ref(),
        "--format=json".as_ref(),
        "--from".as_ref(),
        from.as_os_str(),
        "--to".as_ref(),
        to.as_os_str(),
    ])
}

fn refused(to: &Path, names: &str) -> Value {
    let ran = prove_to(to);
    assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
    let document = ran.json();
    assert_eq!(document["schema"], "coldproof.error/1");
    for field in ["code", "object", "message", "hint"] {
        assert!(document[field].as_str().is_some_and(|text| !text.is_empty()), "{document}");
    }
    let message = document["message"].as_str().unwrap();
    assert!(message.contains(names), "{message} does not name {names}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    assert!(ran.stderr.contains("\n hint: "), "{}", ran.stderr);
    document
}

/// Header and data of a single-file checkpoint.
fn parts(folder: &Path) -> (serde_json::Map<String, Value>, Vec<u8>) {
    let bytes = fs_err::read(folder.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes[8 + length..].to_vec())
}

fn write(folder: &Path, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    fs_err::write(folder.join("model.safetensors"), bytes).unwrap();
}

#[test]
fn no_such_folder() {
    refused(Path::new("no/such/folder"), "no/such/folder");
}

#[test]
fn a_truncated_file() {
    let copy = copy_of("llama/B");
    let path = copy.path().join("model.safetensors");
    let bytes = fs_err::read(&path).unwrap();
    for length in [0, 7, 100, bytes.len() - 1] {
        fs_err::write(&path, &bytes[..length]).unwrap();
        refused(copy.path(), "model.safetensors");
    }
}

#[test]
fn a_header_length_that_lies() {
    let copy = copy_of("llama/B");
    let path = copy.path().join("model.safetensors");
    let mut bytes = fs_err::read(&path).unwrap();
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs_err::write(&path, &bytes).unwrap();
    refused(copy.path(), "model.safetensors");
}

#[test]
fn a_tensor_that_is_missing_and_one_too_many() {
    let copy = copy_of("llama/B");
    let (mut header, data) = parts(copy.path());
    let norm = header.remove("model.norm.weight").unwrap();
    header.insert("model.norm.wait".to_owned(), norm);
    write(copy.path(), &Value::Object(header).to_string(), &data);
    let document = refused(copy.path(), "model.norm.weight");
    assert!(document["hint"].as_str().unwrap().contains("coldproof keys"), "{document}");
}

#[test]
fn a_name_given_twice() {
    let copy = copy_of("llama/B");
    let (header, data) = parts(copy.path());
    let text = Value::Object(header.clone()).to_string();
    let again = format!("{{\"model.norm.weight\":{},{}", header["model.norm.weight"], &text[1..]);
    write(copy.path(), &again, &data);
    refused(copy.path(), "model.norm.weight");
}

#[test]
fn a_name_that_would_break_the_line_or_steer_the_terminal_is_spelled_out() {
    let copy = copy_of("llama/B");
    let (mut header, data) = parts(copy.path());
    let norm = header.remove("model.norm.weight").unwrap();
    header.insert("two\nlines \u{1b}[31m".to_owned(), norm);
    header["two\nlines \u{1b}[31m"]["dtype"] = json!("F7");
    write(copy.path(), &Value::Object(header).to_string(), &data);
    let document = refused(copy.path(), r"two\nlines \u{1b}[31m");
    assert_eq!(document["object"], r"two\nlines \u{1b}[31m");
}

#[test]
fn offsets_that_overlap_or_reach_beyond_the_data() {
    let copy = copy_of("llama/B");
    let (header, data) = parts(copy.path());
    for offsets in [json!([0, 320]), json!([u64::MAX - 1, u64::MAX]), json!([320, 0])] {
        let mut broken = header.clone();
        broken["model.norm.weight"]["data_offsets"] = offsets;
        write(copy.path(), &Value::Object(broken).to_string(), &data);
        refused(copy.path(), "model.safetensors");
    }
}

#[test]
fn a_shape_that_does_not_fit_its_bytes() {
    let copy = copy_of("llama/B");
    let (mut header, data) = parts(copy.path());
    header["model.norm.weight"]["shape"] = json!([161]);
    write(copy.path(), &Value::Object(header).to_string(), &data);
    refused(copy.path(), "model.norm.weight");
}

#[test]
fn a_missing_shard_and_a_stale_extra_one() {
    let from = fixture("qwen3_moe/A");
    let prove = |to: &Path| {
        let ran = coldproof(&[
            "prove".as_ref(),
            "--format=json".as_ref(),
            "--from".as_ref(),
            from.as_os_str(),
            "--to".as_ref(),
            to.as_os_str(),
        ]);
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        ran.json()["message"].as_str().unwrap().to_owned()
    };
    let copy = copy_of("qwen3_moe/B");
    let shard = "model-00002-of-00004.safetensors";
    let kept = fs_err::read(copy.path().join(shard)).unwrap();
    fs_err::remove_file(copy.path().join(shard)).unwrap();
    assert!(prove(copy.path()).contains(shard));
    fs_err::write(copy.path().join(shard), &kept).unwrap();
    fs_err::write(copy.path().join("model-00009-of-00009.safetensors"), &kept).unwrap();
    assert!(prove(copy.path()).contains("model-00009-of-00009.safetensors"));
}

#[test]
fn another_model_and_a_config_that_is_none() {
    refused(&fixture("qwen3/B"), "different models");
    let copy = copy_of("llama/B");
    fs_err::write(copy.path().join("config.json"), "{").unwrap();
    refused(copy.path(), "config.json");
    fs_err::write(copy.path().join("config.json"), r#"{"model_type":"mystery"}"#).unwrap();
    refused(copy.path(), "mystery");
    fs_err::remove_file(copy.path().join("config.json")).unwrap();
    refused(copy.path(), "config.json");
}

#[test]
fn layers_that_predict_further_tokens_are_whole_and_no_more_than_one() {
    let changed = |fixture: &str, field: &str, value: u64, wanted: &str| {
        let copy = copy_of(fixture);
        let at = copy.path().join("config.json");
        let text = fs_err::read_to_string(&at).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[field] = json!(value);
        fs_err::write(&at, config.to_string()).unwrap();
        refused(copy.path(), wanted);
    };
    // What lies behind the last layer is where one would be.
    let missing = "`model.layers.1.embed_tokens.weight` is missing";
    changed("deepseek_v3/B", "num_hidden_layers", 1, missing);
    let (field, none) = ("num_nextn_predict_layers", "belongs to nothing");
    changed("deepseek_v3_mtp/B", field, 2, field);
    changed("deepseek_v3_mtp/B", field, 0, none);
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_allocated() {
    let copy = copy_of("llama/B");
    let path = copy.path().join("config.json");
    let text = fs_err::read_to_string(&path).unwrap();
    for (field, value) in [
        ("\"hidden_size\": 160", "\"hidden_size\": 18446744073709551615"),
        ("\"hidden_size\": 160", "\"hidden_size\": 0"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4000000000"),
        ("\"num_attention_heads\": 4", "\"num_attention_heads\": 3"),
    ] {
        assert!(text.contains(field));
        fs_err::write(&path, text.replace(field, value)).unwrap();
        refused(copy.path(), "");
    }
}

#[test]
fn what_the_embedded_engine_cannot_compute_is_refused_by_name() {
    let copy = copy_of("llama/B");
    let path = copy.path().join("config.json");
    let text = fs_err::read_to_string(&path).unwrap();
    for (field, value, names) in [
        ("\"dtype\": \"bfloat16\"", "\"dtype\": \"float16\"", "F16"),
        ("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 1", "positions"),
        (
            "\"max_position_embeddings\": 256",
            "\"max_position_embeddings\": 268435456",
            "max_position",
        ),
    ] {
        assert!(text.contains(field));
        fs_err::write(&path, text.replace(field, value)).unwrap();
        refused(copy.path(), names);
    }
}

#[test]
fn a_second_name_of_a_tied_head_must_have_its_bytes() {
    let from = fixture("llama_tied/A");
    let copy = copy_of("llama_tied/B");
    let (mut header, mut data) = parts(copy.path());
    let embedding = header["model.embed_tokens.weight"].clone();
    let span = embedding["data_offsets"].as_array().unwrap();
    let (start, end) = (span[0].as_u64().unwrap() as usize, span[1].as_u64().unwrap() as usize);
    let (first, bytes) = (data.len(), data[start..end].to_vec());
    data.extend_from_slice(&bytes);
    let mut head = embedding;
    head["data_offsets"] = json!([first, data.len()]);
    header.insert("lm_head.weight".to_owned(), head);
    let text = Value::Object(header).to_string();
    write(copy.path(), &text, &data);
    let equal = prove(&from, copy.path());
    assert_eq!(equal.code, 0, "{}{}", equal.stdout, equal.stderr);
    data[first] ^= 1;
    write(copy.path(), &text, &data);
    let ran = prove(&from, copy.path());
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert_eq!(ran.json()["object"], "lm_head.weight");
}
