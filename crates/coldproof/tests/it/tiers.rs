//! Tiers below the KV cache of the embedded engine, in whole runs and on a disk that is full.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::Checkpoint;
use coldproof_contract::evidence::Fact;
use coldproof_contract::words::Topology;
use coldproof_lanes::engine::{Engine as _, KvTiers, StartSpec};
use coldproof_lanes::protocol::ProcessEngine;
use coldproof_lanes::requests::Requests;

use crate::support::{coldproof, findings, fixture, is_checked_again, lane_proves};

#[test]
fn tiers_are_hit_and_judged_in_every_family_and_topology() {
    let cases = [
        ("deepseek_v3", &["--ep", "2"][..]),
        ("gemma3", &[]),
        ("gpt_oss", &["--tp", "2"]),
        ("llama", &["--tp", "2", "--pp", "2"]),
        ("llava", &[]),
        ("mamba2", &["--tp", "2"]),
        ("nemotron_h", &[]),
        ("qwen3_moe", &["--tp", "2", "--ep", "2"]),
    ];
    lane_proves("tiers", &cases, |family, verdict| {
        let proven = verdict["categories"][6]["reason"].as_str().unwrap();
        assert!(proven.contains("rows served from `host-kv` on the old"), "{family}: {proven}");
        assert!(proven.contains("from `file-kv` after a restart"), "{family}: {proven}");
    });
}

#[test]
fn the_evidence_of_tiers_gives_the_same_verdict_again() {
    for fault in [("R41", 1), ("R59~", 0)] {
        is_checked_again("tiers", fault);
    }
}

#[test]
fn weights_that_are_the_same_under_two_labels_may_share_their_files() {
    let a = fixture("llama/A");
    let args = ["prove".as_ref(), "--format=json".as_ref(), "--lane=tiers".as_ref()];
    let ends = ["--from".as_ref(), a.as_os_str(), "--to".as_ref(), a.as_os_str()];
    let ran = coldproof(&[&args[..], &ends].concat());
    let verdict = ran.json();
    assert_eq!(findings(&verdict), []);
    let caches = &verdict["categories"][6];
    // Nobody was on other weights, so nothing shows that they would get none of these rows.
    assert_eq!(caches["status"], "undecided", "{caches}");
}

#[test]
fn an_engine_of_its_own_is_not_started_with_tiers() {
    let args = ["prove", "--engine", "vllm", "--from", "A", "--to", "B", "--lane", "tiers"];
    let ran = coldproof(&args);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("leave the tiers lane out"), "{}", ran.stderr);
}

fn files(folder: &Path) -> usize {
    let entries = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

/// An engine in a process whose files may have so many KiB.
fn limited(folder: &Utf8Path, kib: &str) -> ProcessEngine {
    // A signal that is ignored stays so in the program: the write fails instead.
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_coldproof"), "agent"]);
    let folder = folder.to_owned();
    let spec = StartSpec {
        model: Utf8PathBuf::from_path_buf(fixture("llama/A")).unwrap(),
        topology: Topology::tensor(2),
        seed: 0,
        arena_base: 0x7000_0000_0000,
        reversed_allocation: false,
        faults: Vec::new(),
        lying: false,
        deadline_ms: 60_000,
        adapter_rank: 0,
        kv_tiers: Some(KvTiers { cache_tokens: 96, host_bytes: 1 << 20, folder }),
    };
    ProcessEngine::start(command, &spec).unwrap()
}

#[test]
fn a_full_disk_costs_a_later_hit_and_nothing_else() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(scratch.path()).unwrap();
    let requests = Requests { vocabulary: 331, positions_max: 256, control: 1, image: None };
    let model = Utf8PathBuf::from_path_buf(fixture("llama/A")).unwrap();
    let checkpoint = Checkpoint::open(&model).unwrap();
    let tensors: Vec<_> = checkpoint.in_file_order().into_iter().cloned().collect();
    let answer = |kib: &str| {
        let mut engine = limited(folder, kib);
        engine.set_deadline(Duration::from_secs(60)).unwrap();
        engine.load(&tensors).unwrap();
        let output = engine.generate(&requests.cache()).unwrap();
        let told = engine.drain_claims().unwrap().into_iter().filter_map(|(_, fact)| match fact {
            Fact::Claim(claim) if claim.what == "file-kv" => Some(claim.value),
            _ => None,
        });
        let told: Vec<String> = told.collect();
        engine.shutdown();
        (output, told)
    };
    let (full, told) = answer("1");
    assert_eq!(told.len(), 2, "one a rank: {told:?}");
    assert!(told[0].starts_with("4 blocks are not kept: File too large"), "{told:?}");
    assert_eq!(files(scratch.path()), 0, "nothing half-written");
    let (roomy, told) = answer("unlimited");
    assert_eq!(told, Vec::<String>::new());
    assert_eq!(files(scratch.path()), 8, "four blocks a rank");
    assert_eq!(full, roomy);
}
