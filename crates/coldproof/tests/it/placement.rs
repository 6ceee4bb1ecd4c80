//! Experts that move between ranks of the embedded engine, in whole runs.

use crate::support::{coldproof, is_checked_again, lane_proves, prove};

const LANE: [&str; 2] = ["--lane", "placement"];

#[test]
fn experts_move_in_every_family_that_has_some_and_every_topology() {
    let cases: [(&str, &[&str]); 6] = [
        ("deepseek_v3", &["--ep", "2"]),
        ("deepseek_v3_mtp", &["--ep", "4"]),
        ("gpt_oss", &["--tp", "2", "--ep", "2"]),
        ("mixtral", &["--ep", "4"]),
        ("qwen3_moe", &["--tp", "2", "--pp", "2", "--ep", "2"]),
        ("qwen3_moe", &["--ep", "2", "--dp", "2"]),
    ];
    lane_proves("placement", &cases, |family, verdict| {
        let proven = verdict["categories"][4]["reason"].as_str().unwrap();
        assert!(proven.contains(" maps of experts as ordered, "), "{family}: {proven}");
    });
}

#[test]
fn all_lanes_move_experts_where_ranks_share_them() {
    let proven = |args: &[&str]| {
        let ran = coldproof(&[&["prove", "--format", "json"], args].concat());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stdout);
        ran.json()["categories"][4]["reason"].as_str().unwrap().to_owned()
    };
    let (spread, alone) = (proven(&["--ep", "2"]), proven(&[]));
    assert!(spread.starts_with("origin of every element decoded on 4 ranks"), "{spread}");
    assert!(spread.contains("; 12 maps of experts as ordered"), "{spread}");
    assert!(!alone.contains("maps of experts"), "{alone}");
}

#[test]
fn the_evidence_of_moved_experts_gives_the_same_verdict_again() {
    for fault in [("R63b", 1), ("R63c", 1), ("R63d", 1), ("R63c~", 0)] {
        is_checked_again("placement", fault);
    }
}

#[test]
fn experts_that_no_ranks_share_cannot_be_asked_to_move() {
    for args in [&["--ep", "1"][..], &[]] {
        let ran = coldproof(&[&["prove"], &LANE[..], args].concat());
        assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("--ep 2 or more"), "{}", ran.stderr);
    }
    // Beside another lane of its category too: nobody would miss it.
    let ran = prove("llama", &[&LANE[..], &["--lane", "routing"]].concat());
    assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
}
