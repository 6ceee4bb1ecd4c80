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
    for family in ["llama", "llama_tied", "qwen3", "qwen3_moe"] {
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
