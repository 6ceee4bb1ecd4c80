//! Whole runs on data-parallel replicas.

use serde_json::{Value, json};

use crate::support::{coldproof, findings, prove};

/// Everything is proven on these ranks, and recorded evidence is judged alike.
fn proves(family: &str, more: &[&str], topology: &Value, ranks: usize) {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("run");
    let ran = prove(family, &[more, &["--out", folder.to_str().unwrap()]].concat());
    let verdict = ran.json();
    assert_eq!(ran.code, 0, "{family} {more:?}: {}", ran.stdout);
    let open = verdict["categories"].as_array().unwrap().iter().filter(|c| c["status"] != "pass");
    assert_eq!(open.count(), 0, "{family} {more:?}: {}", ran.stdout);
    assert_eq!(verdict["engine"]["topology"], *topology);
    let all: Vec<usize> = (0..ranks).collect();
    assert_eq!(verdict["certificate"]["ranks"], json!(all));
    let evidence = folder.join("evidence.jsonl");
    let again = coldproof(&["check", "--format", "json", evidence.to_str().unwrap()]);
    assert_eq!((again.code, again.json()), (0, verdict));
}

#[test]
fn two_replicas_of_the_default_pair() {
    let ran = coldproof(&["prove", "--dp", "2", "--format", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    let verdict = ran.json();
    assert_eq!(verdict["certificate"]["ranks"], json!([0, 1]));
    // The routing lane has replicas too.
    assert_eq!(verdict["categories"][4]["topology"], json!({"tp": 2, "pp": 1, "ep": 1, "dp": 2}));
    // With one replica nobody speaks of any.
    let one = coldproof(&["prove", "--format", "json"]).json();
    assert_eq!(one["engine"]["topology"], json!({"tp": 1, "pp": 1, "ep": 1}));
    // Each slot is changed under a replay of its own replica: no more of them goes unseen.
    assert_eq!(verdict["unseen"], one["unseen"]);
    assert_eq!(verdict["generation"], one["generation"]);
}

#[test]
fn replicas_of_every_kind_of_ranks() {
    let four = |axis: &str| {
        let mut topology = json!({"tp": 1, "pp": 1, "ep": 1, "dp": 2});
        topology[axis] = 2.into();
        topology
    };
    proves("llama", &["--tp", "2", "--dp", "2"], &four("tp"), 4);
    proves("llama", &["--pp", "2", "--dp", "2"], &four("pp"), 4);
    proves("qwen3_moe", &["--ep", "2", "--dp", "2"], &four("ep"), 4);
}

#[test]
fn adapters_are_served_by_every_replica() {
    let ran = prove("llama", &["--lane", "adapters", "--dp", "2"]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    let (one, two) = (prove("llama", &["--lane", "adapters"]).json(), ran.json());
    let checks = |verdict: &Value| verdict["categories"][6]["checks"].as_u64().unwrap();
    assert_eq!(checks(&two), 2 * checks(&one));
}

#[test]
fn a_replica_that_an_update_passes_over_is_named_with_its_ranks() {
    // The routing lane looks once all sentinels were sent.
    for (more, transaction) in [
        (&["--tp", "2"][..], "transaction 2"),
        (&["--tp", "2", "--lying"], "transaction 2"),
        (&["--lane", "routing"], "transaction 5"),
    ] {
        let ran = prove("llama", &[more, &["--fault", "R43"]].concat());
        assert_eq!(ran.code, 1, "{more:?}: {}", ran.stdout);
        let verdict = ran.json();
        let [category, code, object] =
            ["transition", "mixed-generation", transaction].map(str::to_owned);
        assert_eq!(findings(&verdict), [(category, code, object)], "{more:?}");
        assert_eq!(verdict["findings"][0]["ranks"], json!([2, 3]), "{more:?}");
        let twin = prove("llama", &[more, &["--fault", "R43~"]].concat());
        assert_eq!(twin.code, 0, "{more:?}: {}", twin.stdout);
    }
}

#[test]
fn a_fault_of_every_replica_is_found_on_the_ranks_of_each() {
    let ran = coldproof(&["prove", "--fault", "F7.02", "--dp", "2", "--format", "json"]);
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert_eq!(ran.json()["findings"][0]["ranks"], json!([0, 1]));
    let lane = ["--lane", "differential", "--fault", "F3.06", "--dp", "2", "--format", "json"];
    let ran = coldproof(&[&["prove"], &lane[..]].concat());
    assert_eq!(ran.json()["findings"][0]["ranks"], json!([0, 1]), "{}", ran.stdout);
}
