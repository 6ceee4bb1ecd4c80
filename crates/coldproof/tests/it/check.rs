//! Recorded evidence: judged again without the checkpoints, refused when it was touched, equal in
//! every byte but its times from run to run.

use std::path::Path;

use serde_json::Value;

use crate::support::{coldproof, findings, prove};

fn record(out: &Path, more: &[&str]) -> Value {
    let mut args = vec!["--lane", "differential,caches", "--out", out.to_str().unwrap()];
    args.extend(more);
    prove("qwen3_moe", &args).json()
}

fn check(evidence: &Path, more: &[&str]) -> crate::support::Ran {
    let mut args = vec!["check", "--format", "json", evidence.to_str().unwrap()];
    args.extend(more);
    coldproof(&args)
}

#[test]
fn evidence_gives_the_same_verdict_again() {
    let out = tempfile::tempdir().unwrap();
    let verdict = record(out.path(), &["--fault", "F2.01"]);
    let again = check(&out.path().join("evidence.jsonl"), &[]);
    assert_eq!(again.code, 1);
    assert_eq!(again.json(), verdict);
    assert_eq!(findings(&verdict).len(), 1);
}

#[test]
fn other_requirements_give_another_exit_code() {
    let out = tempfile::tempdir().unwrap();
    record(out.path(), &[]);
    let evidence = out.path().join("evidence.jsonl");
    assert_eq!(check(&evidence, &[]).code, 0);
    assert_eq!(check(&evidence, &["--require", "1,2,7"]).code, 0);
    assert_eq!(check(&evidence, &["--require", "5"]).code, 3);
}

#[test]
fn two_runs_with_one_seed_differ_in_times_alone() {
    let runs: Vec<Vec<String>> = (0..2)
        .map(|_| {
            let out = tempfile::tempdir().unwrap();
            record(out.path(), &["--seed", "5"]);
            let text = fs_err::read_to_string(out.path().join("evidence.jsonl")).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            // The seal is over the times too.
            lines.pop();
            lines.iter().map(|line| without_time(line)).collect()
        })
        .collect();
    assert!(runs[0].len() > 100);
    assert_eq!(runs[0].len(), runs[1].len());
    for (number, (one, two)) in runs[0].iter().zip(&runs[1]).enumerate() {
        assert_eq!(one, two, "line {}", number + 1);
    }
}

/// A line without its `t`.
fn without_time(line: &str) -> String {
    let mut value: Value = serde_json::from_str(line).unwrap();
    value.as_object_mut().unwrap().remove("t");
    value.to_string()
}

#[test]
fn touched_evidence_is_no_evidence() {
    let out = tempfile::tempdir().unwrap();
    record(out.path(), &[]);
    let path = out.path().join("evidence.jsonl");
    let text = fs_err::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let without_last = lines[..lines.len() - 1].join("\n");
    let without_one = [&lines[..50], &lines[51..]].concat().join("\n");
    let changed = text.replacen("\"rows\":71", "\"rows\":72", 1);
    assert_ne!(changed, text);
    for touched in ["", "{}", &text[..text.len() / 2], &without_last, &without_one, &changed] {
        fs_err::write(&path, touched).unwrap();
        let ran = check(&path, &[]);
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        assert_eq!(ran.json()["code"], "evidence");
    }
    let ran = check(Path::new("no/such/evidence.jsonl"), &[]);
    assert_eq!(ran.code, 2);
}
