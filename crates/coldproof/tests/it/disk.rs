//! A full disk: exit code 2 and one clear message, and the evidence of an earlier run stays.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::{coldproof, fixture};

fn command(out: &Path, lane: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coldproof"));
    command.args(["prove", "--lane", lane, "--from"]).arg(fixture("llama/A"));
    command.arg("--to").arg(fixture("llama/B")).arg("--out").arg(out);
    command
}

/// Runs it where no file may be longer than so many KiB.
fn limited(command: &Command, kib: usize) -> Output {
    // A signal that is ignored stays so in the program: the write fails instead.
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\"");
    Command::new("bash")
        .args(["-c", &script, "bash"])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap()
}

/// Exit code 2, one message that names the object, one hint.
fn refused(output: &Output, names: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let lines: Vec<&str> = stderr.lines().collect();
    let [error, hint] = lines.as_slice() else { panic!("{stderr}") };
    assert!(error.starts_with("error: ") && error.contains(names), "{stderr}");
    let mends = hint.contains("free space") || hint.contains("the disk");
    assert!(hint.starts_with(" hint: ") && mends, "{stderr}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A folder with the results of a run of this lane that passed, and the evidence in it.
fn earlier(lane: &str) -> (tempfile::TempDir, Vec<u8>) {
    let out = tempfile::tempdir().unwrap();
    let ended = command(out.path(), lane).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(names(out.path()), ["evidence.jsonl", "junit.xml", "verdict.json"]);
    let evidence = fs_err::read(out.path().join("evidence.jsonl")).unwrap();
    (out, evidence)
}

/// Of the earlier run its evidence is left, as it was, and gives its verdict again.
fn evidence_stays(out: &Path, evidence: &[u8]) {
    assert_eq!(names(out), ["evidence.jsonl"]);
    let path = out.join("evidence.jsonl");
    assert_eq!(fs_err::read(&path).unwrap(), evidence);
    assert_eq!(coldproof(&["check", path.to_str().unwrap()]).code, 0);
}

#[test]
fn a_disk_that_is_full_at_any_file_leaves_the_evidence_of_the_run_before() {
    let (out, evidence) = earlier("caches");
    for full in ["evidence.jsonl", "junit.xml", "verdict.json"] {
        // What is written there finds no space left.
        let partial = out.path().join(format!("{full}.partial"));
        std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
        let ended = command(out.path(), "caches").output().unwrap();
        refused(&ended, full);
        evidence_stays(out.path(), &evidence);
    }
    let ended = command(out.path(), "caches").output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "once there is space, the folder is taken again");
}

#[test]
fn evidence_that_ends_early_is_not_put_in_place() {
    let (out, evidence) = earlier("composite");
    // The made checkpoints are smaller, so it is the evidence that does not fit.
    let short = evidence.len() / 1024 - 64;
    refused(&limited(&command(out.path(), "composite"), short), "evidence.jsonl");
    evidence_stays(out.path(), &evidence);
}

#[test]
fn a_full_disk_while_checkpoints_are_made_is_no_finding() {
    let (out, evidence) = earlier("caches");
    refused(&limited(&command(out.path(), "differential"), 64), "safetensors");
    evidence_stays(out.path(), &evidence);
}

#[test]
fn a_judgement_that_cannot_be_written_leaves_the_evidence_that_it_was_made_of() {
    let (out, evidence) = earlier("caches");
    std::os::unix::fs::symlink("/dev/full", out.path().join("verdict.json.partial")).unwrap();
    let path = out.path().join("evidence.jsonl");
    let ended = Command::new(env!("CARGO_BIN_EXE_coldproof"))
        .args(["check".as_ref(), path.as_os_str(), "--out".as_ref(), out.path().as_os_str()])
        .output()
        .unwrap();
    refused(&ended, "verdict.json");
    evidence_stays(out.path(), &evidence);
}
