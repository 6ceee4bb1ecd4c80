//! Runs the binary and reads what it says.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What a run left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The one JSON document on stdout.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in stdout {:?}", self.stdout))
    }
}

/// Runs `coldproof` with these arguments.
pub(crate) fn coldproof<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_coldproof"))
        .args(args)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A committed checkpoint, such as `llama/A`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/checkpoints").join(name)
}

/// A copy of a committed checkpoint that a test may break.
pub(crate) fn copy_of(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs_err::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs_err::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// `prove` on A and B of a family, with more arguments.
pub(crate) fn prove(family: &str, more: &[&str]) -> Ran {
    let (from, to) = (fixture(&format!("{family}/A")), fixture(&format!("{family}/B")));
    let mut args: Vec<String> = ["prove", "--format", "json", "--from"].map(String::from).into();
    args.push(from.to_string_lossy().into_owned());
    args.push("--to".to_owned());
    args.push(to.to_string_lossy().into_owned());
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    coldproof(&args)
}

/// A lane by itself proves each of these families at its topology; `look` has the family and the
/// verdict.
pub(crate) fn lane_proves(
    lane: &str,
    cases: &[(&str, &[&str])],
    mut look: impl FnMut(&str, &Value),
) {
    for (family, topology) in cases {
        let ran = prove(family, &[&["--lane", lane], *topology].concat());
        let verdict = ran.json();
        assert_eq!(findings(&verdict), [], "{family} {topology:?}");
        assert_eq!(ran.code, 0, "{family} {topology:?}: {}", ran.stdout);
        look(family, &verdict);
    }
}

/// A lying engine with this fault ends a lane with this exit code, and its evidence, checked again,
/// gives the same verdict.
pub(crate) fn is_checked_again(lane: &str, (id, code): (&str, i32)) {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().to_str().unwrap();
    let args = ["prove", "--fault", id, "--lying", "--out", folder, "--lane", lane];
    assert_eq!(coldproof(&args).code, code, "{id}");
    let proven = fs_err::read_to_string(out.path().join("verdict.json")).unwrap();
    let evidence = out.path().join("evidence.jsonl");
    let checked = coldproof(&["check", "--format", "json", evidence.to_str().unwrap()]);
    assert_eq!(checked.code, code, "{id}");
    let proven: Value = serde_json::from_str(&proven).unwrap();
    assert_eq!(checked.json(), proven, "{id}");
}

/// `(category, code, object)` of every finding.
pub(crate) fn findings(verdict: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let findings = verdict["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| {
            (text(&finding["category"]), text(&finding["code"]), text(&finding["object"]))
        })
        .collect()
}
