//! The list of known findings: green on what is listed, red on the rest and on what has gone.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Ran, coldproof};

const OBJECT: &str = "model.norm/kernel.weight_f32";

/// A folder with the evidence of a run with F2.01, and a list beside it.
struct Case {
    _folder: tempfile::TempDir,
    evidence: PathBuf,
    list: PathBuf,
}

fn case(fault: &str) -> Case {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    coldproof(&[
        "prove".as_ref(),
        "--fault".as_ref(),
        fault.as_ref(),
        "--out".as_ref(),
        out.as_os_str(),
    ]);
    let list = folder.path().join("known.toml");
    Case { _folder: folder, evidence: out.join("evidence.jsonl"), list }
}

impl Case {
    fn judged(&self, list: &str) -> Ran {
        std::fs::write(&self.list, list).unwrap();
        coldproof(&[
            "check".as_ref(),
            self.evidence.as_os_str(),
            "--known".as_ref(),
            self.list.as_os_str(),
            "--format".as_ref(),
            "json".as_ref(),
        ])
    }
}

fn entry(versions: &str, object: &str, expires: &str) -> String {
    format!(
        "[[known]]\nengine = \"reference\"\nversions = \"{versions}\"\ncode = \"derived-stale\"\n\
         object = \"{object}\"\nlink = \"issue 1\"\nexpires = \"{expires}\"\n"
    )
}

fn notes(verdict: &Value) -> Vec<String> {
    let notes = verdict["notes"].as_array().unwrap().iter();
    let known = notes.filter(|note| note["kind"] == "known");
    known.map(|note| note["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_listed_finding_is_green_and_shown() {
    let case = case("F2.01");
    for object in [OBJECT, "model.*"] {
        let ran = case.judged(&entry(">=0.1, <99", object, "2999-01-01"));
        let verdict = ran.json();
        assert_eq!(ran.code, 0, "{object}");
        assert_eq!(verdict["findings"][0]["known"], "issue 1");
        assert_eq!(verdict["categories"][1]["status"], "fail");
        assert_eq!(verdict["certificate"], Value::Null);
        assert_eq!(notes(&verdict).len(), 1);
    }
}

#[test]
fn what_is_not_listed_stays_red() {
    let case = case("F2.01");
    let lists = [
        String::new(),
        entry(">=99", OBJECT, "2999-01-01"),
        entry(">=0.1", OBJECT, "2001-01-01"),
        entry(">=0.1", OBJECT, "2999-01-01").replace("reference", "vllm"),
        entry(">=0.1", OBJECT, "2999-01-01").replace("code =", "models = [\"llama\"]\ncode ="),
    ];
    for list in lists {
        assert_eq!(case.judged(&list).code, 1, "{list}");
    }
}

#[test]
fn a_listed_finding_that_has_gone_is_red() {
    let case = case("F2.01~");
    assert_eq!(case.judged("").code, 0);
    let ran = case.judged(&entry(">=0.1", OBJECT, "2999-01-01"));
    assert_eq!(ran.code, 1);
    assert!(notes(&ran.json())[0].contains("listed as known and not found"));
}

#[test]
fn a_list_that_is_none_is_bad_input() {
    let case = case("F2.01~");
    let good = entry(">=0.1", OBJECT, "2999-01-01");
    let lists = [
        good.replace("derived-stale", "derived-old"),
        good.replace(">=0.1", "from 0.1 on"),
        good.replace("2999-01-01", "some day"),
        good.replace("link =", "url ="),
        "known = 1".to_owned(),
    ];
    for list in lists {
        let ran = case.judged(&list);
        assert_eq!(ran.code, 2, "{list}");
        assert_eq!(ran.json()["code"], "known", "{list}");
    }
}
