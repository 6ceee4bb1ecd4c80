//! The checkpoint tools.

use std::path::Path;

use serde_json::Value;

use crate::support::{coldproof, copy_of, fixture};

fn tool(command: &str, paths: &[&Path], more: &[&str]) -> (i32, Value) {
    let mut args: Vec<String> = vec![command.to_owned(), "--format=json".to_owned()];
    args.extend(paths.iter().map(|path| path.to_str().unwrap().to_owned()));
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    let ran = coldproof(&args);
    (ran.code, ran.json())
}

#[test]
fn keys_of_every_fixture_are_accounted_for() {
    let families = "deepseek_v3 gemma3 gpt_oss llama llama_tied llava mamba2 mixtral nemotron_h \
                    qwen2 qwen3 qwen3_moe";
    for family in families.split(' ') {
        for label in ["A", "B"] {
            let (code, accounts) = tool("keys", &[&fixture(&format!("{family}/{label}"))], &[]);
            assert_eq!(code, 0, "{accounts}");
            assert_eq!(accounts["clean"], true);
        }
    }
}

#[test]
fn keys_of_another_model_differ() {
    let model = fixture("qwen3/A/config.json");
    let (code, accounts) =
        tool("keys", &[&fixture("llama/A")], &["--model", model.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert_eq!(accounts["missing"].as_array().unwrap().len(), 4, "q_norm and k_norm of two layers");
}

#[test]
fn a_digest_does_not_depend_on_files_but_on_content() {
    let (a, b) = (fixture("qwen3_moe/A"), fixture("qwen3_moe/B"));
    let copy = copy_of("qwen3_moe/A");
    let (code, same) = tool("digest", &[&a], &["--against", copy.path().to_str().unwrap()]);
    assert_eq!((code, &same["equal"]), (0, &Value::Bool(true)));
    let (code, other) = tool("digest", &[&a], &["--against", b.to_str().unwrap()]);
    assert_eq!(code, 1);
    let (_, all) = tool("digest", &[&a], &[]);
    assert_eq!(
        other["differing"].as_array().unwrap().len(),
        all["sources"].as_object().unwrap().len(),
        "A and B differ in every tensor"
    );
}

#[test]
fn perturb_is_deterministic_and_changes_every_tensor() {
    let made = tempfile::tempdir().unwrap();
    let a = fixture("llama/A");
    let out = |name: &str| made.path().join(name);
    for (name, seed) in [("one", "1"), ("again", "1"), ("two", "2")] {
        assert_eq!(tool("perturb", &[&a, &out(name)], &["--seed", seed]).0, 0);
    }
    let differing = |left: &Path, right: &Path| {
        let (_, document) = tool("digest", &[left], &["--against", right.to_str().unwrap()]);
        document["differing"].as_array().unwrap().len()
    };
    assert_eq!(differing(&out("one"), &out("again")), 0);
    assert_eq!(differing(&out("one"), &a), 21);
    assert_eq!(differing(&out("one"), &out("two")), 21);
    let (code, refused) = tool("perturb", &[&a, &out("one")], &["--seed", "1"]);
    assert_eq!((code, &refused["schema"]), (2, &Value::from("coldproof.error/1")));
}

#[test]
fn one_ulp_in_one_tensor_is_named_and_found() {
    let made = tempfile::tempdir().unwrap();
    let (a, b) = (fixture("llama/A"), made.path().join("B"));
    let (code, moved) = tool("perturb", &[&a, &b], &["--seed", "3", "--ulp"]);
    assert_eq!(code, 0);
    let (code, compared) = tool("digest", &[&a], &["--against", b.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert_eq!(compared["differing"], serde_json::json!([moved["ulp"]["tensor"]]));
    let (code, proven) =
        tool("prove", &[], &["--from", a.to_str().unwrap(), "--to", b.to_str().unwrap()]);
    assert_eq!(code, 0, "{proven}");
}

#[test]
fn sentinels_are_checkpoints_of_the_same_model() {
    let made = tempfile::tempdir().unwrap();
    let out = made.path().join("sentinels");
    let (code, plan) = tool("sentinel", &[&fixture("qwen3_moe/A"), &out], &[]);
    assert_eq!(code, 0);
    let count = plan["checkpoints"].as_u64().unwrap();
    assert!(count >= 3);
    for digit in 0..count {
        let (code, accounts) = tool("keys", &[&out.join(digit.to_string())], &[]);
        assert_eq!(code, 0, "{accounts}");
    }
    let (code, _) = tool("sentinel", &[&fixture("qwen3_moe/A"), &out], &[]);
    assert_eq!(code, 2, "a folder that holds something is refused");
}

/// A tied model whose head is there as well; `change` is added to one byte of it.
fn with_head(change: u8) -> tempfile::TempDir {
    let made = copy_of("llama_tied/A");
    let path = made.path().join("model.safetensors");
    let old = fs_err::read(&path).unwrap();
    let length = u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&old[8..8 + length]).unwrap();
    let data = &old[8 + length..];
    let embedding = header["model.embed_tokens.weight"].clone();
    let offset = |index: usize| embedding["data_offsets"][index].as_u64().unwrap() as usize;
    let mut head = data[offset(0)..offset(1)].to_vec();
    head[7] ^= change;
    let mut entry = embedding.clone();
    entry["data_offsets"] = serde_json::json!([data.len(), data.len() + head.len()]);
    header["lm_head.weight"] = entry;
    let header = serde_json::to_vec(&header).unwrap();
    let new = [&(header.len() as u64).to_le_bytes()[..], &header, data, &head].concat();
    fs_err::write(&path, new).unwrap();
    made
}

#[test]
fn a_head_that_is_not_the_embedding_of_a_tied_model_is_found_and_refused() {
    let (made, out) = (with_head(1), tempfile::tempdir().unwrap());
    let (code, accounts) = tool("keys", &[made.path()], &[]);
    assert_eq!((code, &accounts["clean"]), (1, &Value::Bool(false)));
    let alias = serde_json::json!([
        {"source": "lm_head.weight", "target": "model.embed_tokens.weight"}
    ]);
    assert_eq!(accounts["differing_alias"], alias);
    let text = coldproof(&["keys".as_ref(), made.path().as_os_str()]);
    let line = "differs: lm_head.weight is another name of model.embed_tokens.weight and holds \
                other bytes";
    assert_eq!(text.code, 1);
    assert!(text.stdout.lines().any(|found| found == line), "{}", text.stdout);
    let folder = made.path().to_str().unwrap();
    let b = fixture("llama_tied/B");
    for (command, paths, more) in [
        ("perturb", vec![made.path().to_owned(), out.path().join("B")], vec!["--seed", "1"]),
        (
            "perturb",
            vec![made.path().to_owned(), out.path().join("B")],
            vec!["--seed", "1", "--ulp"],
        ),
        ("prove", vec![], vec!["--from", folder, "--to", b.to_str().unwrap()]),
    ] {
        let paths: Vec<&Path> = paths.iter().map(|path| path.as_path()).collect();
        let (code, refused) = tool(command, &paths, &more);
        assert_eq!((code, &refused["object"]), (2, &Value::from("lm_head.weight")), "{refused}");
        assert!(!out.path().join("B").exists(), "nothing is written");
    }
}

#[test]
fn a_head_that_is_the_embedding_of_a_tied_model_is_one_more_name() {
    let (made, out) = (with_head(0), tempfile::tempdir().unwrap());
    let (code, accounts) = tool("keys", &[made.path()], &[]);
    assert_eq!((code, &accounts["clean"]), (0, &Value::Bool(true)));
    assert_eq!(accounts["differing_alias"], serde_json::json!([]));
    assert_eq!(accounts["redundant_alias"][0]["source"], "lm_head.weight");
    let b = out.path().join("B");
    assert_eq!(tool("perturb", &[made.path(), &b], &["--seed", "1"]).0, 0);
    let (code, accounts) = tool("keys", &[&b], &[]);
    assert_eq!(code, 0, "head and embedding move together: {accounts}");
}
