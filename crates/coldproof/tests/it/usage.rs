//! Bad usage, output folders, help, completions.

use crate::support::{coldproof, fixture, prove};

fn bad(args: &[&str], names: &str) {
    let ran = coldproof(args);
    assert_eq!(ran.code, 2, "{args:?}: {}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout, "", "{args:?}");
    assert!(ran.stderr.contains(names), "{args:?}: {}", ran.stderr);
}

#[test]
fn options_that_mean_nothing_are_refused_by_name() {
    let a = fixture("llama/A");
    let a = a.to_str().unwrap();
    bad(&["prove", "--from", a], "--to");
    bad(&["prove", "--to", a], "--from");
    bad(&["prove", "--from", a, "--to", a, "--tp", "3"], "these do: 1, 2, 4");
    bad(&["prove", "--tp", "0"], "--tp");
    bad(&["prove", "--pp", "0"], "--pp");
    bad(&["prove", "--pp", "65"], "65 ranks; the most are 64");
    bad(&["prove", "--dp", "0"], "--dp 0 is no topology");
    bad(&["prove", "--tp", "2", "--dp", "33"], "66 ranks; the most are 64");
    bad(&["prove", "--fault", "R43", "--dp", "1"], "the fault needs --dp 2 and it is 1");
    bad(&["prove", "--fault", "R32", "--tp", "1"], "the fault needs --tp 2 and it is 1");
    bad(&["prove", "--engine", "vllm", "--from", a, "--to", a, "--dp", "2"], "leave --dp out");
    bad(&["prove", "--from", a, "--to", a, "--ep", "2"], "this model has none");
    bad(&["prove", "--ep", "5"], "these do: 1, 2");
    bad(&["prove", "--engine", "vllm", "--from", a, "--to", a, "--pp", "2"], "--pp");
    bad(&["prove", "--engine", "none-such"], "none-such");
    bad(&["prove", "--require", "8"], "8");
    bad(&["prove", "--lane", "fast"], "fast");
    bad(&["prove", "--deadline", "0"], "deadline");
    bad(&["no-such-command"], "no-such-command");
    bad(&[], "Usage");
}

#[test]
fn draft_models_come_in_pairs_that_fit() {
    let path = |name: &str| fixture(name).to_str().unwrap().to_owned();
    let (llama, gemma, mamba) = (path("llama/A"), path("gemma3/A"), path("mamba2/A"));
    bad(&["prove", "--draft-from", &llama], "--draft-to");
    bad(&["prove", "--draft-to", &llama], "--draft-from");
    bad(&["prove", "--draft", "--draft-from", &llama, "--draft-to", &llama], "--draft");
    bad(&["prove", "--from", &mamba, "--to", &mamba, "--draft"], "keeps states");
    // What does not fit is in the folder that was given.
    let own = format!("`{mamba}/config.json`");
    bad(&["prove", "--from", &mamba, "--to", &mamba, "--draft"], &own);
    bad(
        &["prove", "--from", &llama, "--to", &llama, "--draft-from", &mamba, "--draft-to", &mamba],
        &own,
    );
    let drafts = |of: &'static str| ["prove", "--draft-from", of, "--draft-to", of];
    bad(&drafts("nowhere"), "nowhere");
    let foreign = ["prove", "--engine", "vllm", "--from", &llama, "--to", &llama, "--draft"];
    bad(&foreign, "embedded engine");
    // Two draft models that are different models.
    let other = ["prove", "--draft-from", &llama, "--draft-to", &gemma];
    bad(&other, "different models");
}

#[test]
fn adapters_come_in_pairs_that_differ_and_have_a_lane() {
    let one = adapter(1);
    let path = |folder: &tempfile::TempDir| folder.path().to_str().unwrap().to_owned();
    let (a, b) = (path(&one), path(&one));
    bad(&["prove", "--adapter-from", &a], "--adapter-to");
    bad(&["prove", "--adapter-to", &a], "--adapter-from");
    let model = fixture("llama/A");
    let model = model.to_str().unwrap();
    let foreign = ["prove", "--engine", "vllm", "--from", model, "--to", model];
    bad(&[&foreign[..], &["--lane", "adapters"]].concat(), "no adapters");
    bad(&["prove", "--adapter-via", "other-folder"], "--adapter-via");
    bad(&["prove", "--adapter-from", &a, "--adapter-to", &b], "have the same content");
    let two = adapter(2);
    let both = ["prove", "--adapter-from", &a, "--adapter-to", &path(&two)];
    bad(&[&both[..], &["--lane", "caches"]].concat(), "no lane of this run serves adapters");
    fs_err::remove_file(two.path().join("adapter_config.json")).unwrap();
    bad(&both, "adapter_config.json");
}

/// An adapter of one tensor.
fn adapter(value: u8) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.push(value);
    fs_err::write(folder.path().join("adapter_model.safetensors"), file).unwrap();
    fs_err::write(folder.path().join("adapter_config.json"), r#"{"r":8}"#).unwrap();
    folder
}

#[test]
fn options_that_contradict_a_fault_are_refused() {
    bad(&["prove", "--fault", "F5.01", "--tp", "1"], "tp 2");
    bad(&["prove", "--fault", "F1.05,F1.05~"], "contradict");
    bad(&["prove", "--fault", "F9.99"], "F1.05");
}

#[test]
fn a_result_that_cannot_be_printed_is_an_error() {
    let full = fs_err::File::options().write(true).open("/dev/full").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_coldproof"))
        .arg("keys")
        .arg(fixture("llama/A"))
        .stdout(full.into_file())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stdout"));
}

#[test]
fn a_closed_stdout_ends_quietly() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_coldproof"))
        .arg("digest")
        .arg(fixture("llama/A"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn bad_usage_is_one_json_document_where_json_was_asked_for() {
    for args in
        [&["prove", "--format", "json", "--tp", "x"][..], &["prove", "--format=json", "--pp", "0"]]
    {
        let ran = coldproof(args);
        assert_eq!(ran.code, 2);
        assert_eq!(ran.json()["schema"], "coldproof.error/1");
        assert_eq!(ran.json()["code"], "usage");
    }
    let message = coldproof(&["perturb", "A", "B", "--format=json"]).json()["message"].clone();
    assert!(message.as_str().unwrap().contains("--seed"), "{message}");
}

#[test]
fn help_has_examples_and_completions_are_made() {
    for command in ["prove", "check", "keys", "digest", "perturb", "sentinel"] {
        let ran = coldproof(&[command, "--help"]);
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains("Example"), "{command}: {}", ran.stdout);
    }
    assert!(coldproof(&["faults", "run", "--help"]).stdout.contains("Example"));
    let ran = coldproof(&["completions", "bash"]);
    assert_eq!(ran.code, 0);
    assert!(ran.stdout.contains("coldproof"));
    let ran = coldproof(&["man"]);
    assert_eq!(ran.code, 0);
    assert!(ran.stdout.contains(".TH coldproof 1"), "{}", ran.stdout);
}

#[test]
fn a_code_is_explained_and_one_that_is_none_is_refused_with_the_list() {
    let ran = coldproof(&["--explain", "source-missing"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("# source-missing\n"), "{}", ran.stdout);
    bad(&["--explain", "source-lost"], "source-missing");
    bad(&["--explain", "source-missing", "prove"], "--explain");
}

#[test]
fn a_folder_holds_verdict_report_and_evidence() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("run");
    let ran = prove("llama", &["--lane", "caches", "--out", folder.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let mut names: Vec<String> = fs_err::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["evidence.jsonl", "junit.xml", "verdict.json"]);
    let written = fs_err::read_to_string(folder.join("verdict.json")).unwrap();
    assert_eq!(written, ran.stdout);
    let junit = fs_err::read_to_string(folder.join("junit.xml")).unwrap();
    assert!(junit.contains("7 cache coherence"), "{junit}");
    // The folder of an earlier run is taken again.
    let again = prove("llama", &["--lane", "caches", "--out", folder.to_str().unwrap()]);
    assert_eq!(again.code, 0);
}

#[test]
fn a_folder_that_is_not_ours_is_refused_and_left_alone() {
    let out = tempfile::tempdir().unwrap();
    fs_err::write(out.path().join("thesis.tex"), "years").unwrap();
    let ran = prove("llama", &["--lane", "caches", "--out", out.path().to_str().unwrap()]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("thesis.tex"), "{}", ran.stderr);
    assert_eq!(fs_err::read_dir(out.path()).unwrap().count(), 1);
}

#[test]
fn an_old_verdict_is_gone_before_the_engine_starts() {
    let out = tempfile::tempdir().unwrap();
    let verdict = out.path().join("verdict.json");
    fs_err::write(&verdict, "{\"verdict\":\"pass\"}").unwrap();
    let out = out.path().to_str().unwrap();
    let ran = coldproof(&["prove", "--from", "no/A", "--to", "no/B", "--out", out]);
    assert_eq!(ran.code, 2);
    assert!(!verdict.exists());
}

#[test]
fn without_a_folder_nothing_is_written() {
    let here = tempfile::tempdir().unwrap();
    let (from, to) = (fixture("llama/A"), fixture("llama/B"));
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_coldproof"))
        .args(["prove", "--lane", "caches", "--from"])
        .arg(fs_err::canonicalize(from).unwrap())
        .arg("--to")
        .arg(fs_err::canonicalize(to).unwrap())
        .current_dir(here.path())
        .output()
        .unwrap();
    assert_eq!(status.status.code(), Some(0));
    assert_eq!(fs_err::read_dir(here.path()).unwrap().count(), 0);
}

#[test]
fn an_interrupted_run_exits_130_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_coldproof"))
        .args(["prove", "--fault", "F1.05"])
        .env("TMPDIR", temporary.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The made folder appears when the run has begun; the fault keeps it busy for seconds.
    while fs_err::read_dir(temporary.path()).unwrap().count() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be interrupted");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let killed =
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs_err::read_dir(temporary.path()).unwrap().count(), 0);
}
