//! The main job: every family and a tied one, one rank and several.

use crate::support::{coldproof, findings, fixture, lane_proves, prove};

fn proves(family: &str, tp: &str) {
    proves_on(family, &["--tp", tp], tp);
}

/// Proves A to B of a family on a topology of so many ranks.
fn proves_on(family: &str, topology: &[&str], ranks: &str) {
    let ran = prove(family, topology);
    let verdict = ran.json();
    let on = format!("{family} {}", topology.join(" "));
    assert_eq!(findings(&verdict), [], "{on}");
    assert_eq!(ran.code, 0, "{on}: {}", ran.stdout);
    assert_eq!(verdict["schema"], "coldproof.verdict/1");
    assert_eq!(verdict["verdict"], "pass");
    let categories = verdict["categories"].as_array().unwrap();
    let numbers: Vec<u64> = categories.iter().filter_map(|c| c["category"].as_u64()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
    for category in categories {
        assert_eq!(category["status"], "pass", "{on}: {category}");
        assert!(category["checks"].as_u64().unwrap() > 0, "{on}: {category}");
    }
    let certificate = &verdict["certificate"];
    assert_eq!(certificate["proven"].as_object().unwrap().len(), 7, "{certificate}");
    assert_eq!(certificate["ranks"].as_array().unwrap().len().to_string(), ranks);
    assert_eq!(verdict["transition"]["status"], "pass");
    let unseen = verdict["unseen"].as_array().unwrap().iter().filter_map(|text| text.as_str());
    let graphs: Vec<&str> = unseen.filter(|text| text.starts_with("graph")).collect();
    assert!(graphs.is_empty(), "every captured graph is replayed: {graphs:?}");
    let steps = verdict["transition"]["steps"].as_array().unwrap();
    let names: Vec<&str> = steps.iter().filter_map(|step| step["step"].as_str()).collect();
    assert_eq!(
        names,
        ["pause", "sleep", "wake_weights", "update", "finalize", "wake_kv", "invalidate", "resume"]
    );
}

#[test]
fn deepseek_v3() {
    proves("deepseek_v3", "1");
    proves("deepseek_v3", "2");
    proves("deepseek_v3_yarn", "4");
}

#[test]
fn deepseek_v3_with_a_layer_that_predicts_further() {
    proves("deepseek_v3_mtp", "1");
    proves_on("deepseek_v3_mtp", &["--tp", "2", "--pp", "2"], "4");
    proves_on("deepseek_v3_mtp", &["--ep", "2"], "2");
}

#[test]
fn a_draft_model_is_proven_with_its_model() {
    proves_on("llama", &["--draft", "--tp", "2", "--pp", "2"], "4");
    proves_on("qwen3_moe", &["--draft", "--ep", "2"], "2");
    let [from, to] = ["A", "B"].map(|side| fixture(&format!("qwen2/{side}")));
    let drafts = ["--draft-from", from.to_str().unwrap(), "--draft-to", to.to_str().unwrap()];
    proves_on("gpt_oss", &drafts, "1");
}

#[test]
fn blocks_of_what_drafts_show_their_hit_and_each_model_may_be_updated_alone() {
    for (family, more) in [("llama", &["--draft"][..]), ("deepseek_v3_mtp", &[])] {
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("run");
        let lanes = ["--lane", "caches,partial", "--out", folder.to_str().unwrap()];
        let ran = prove(family, &[&lanes, more].concat());
        let verdict = ran.json();
        assert_eq!(ran.code, 0, "{family}: {}", ran.stdout);
        let proven = verdict["categories"][6]["reason"].to_string();
        assert!(proven.contains("that the draft's cache had served"), "{family}: {proven}");
        let evidence = std::fs::read_to_string(folder.join("evidence.jsonl")).unwrap();
        for text in ["\"cache\":\"draft-kv\"", "\"arm\":\"partial-d\"", "\"arm\":\"partial-t\""] {
            assert!(evidence.contains(text), "{family}: {text}");
        }
    }
}

#[test]
fn gemma3() {
    proves("gemma3", "1");
    proves("gemma3", "2");
}

#[test]
fn gpt_oss() {
    proves("gpt_oss", "1");
    proves("gpt_oss", "2");
}

#[test]
fn llama() {
    proves("llama", "1");
    proves("llama", "2");
}

#[test]
fn llama_tied() {
    proves("llama_tied", "1");
    proves("llama_tied", "2");
}

#[test]
fn llava() {
    proves("llava", "1");
    proves("llava", "2");
}

#[test]
fn images_are_on_the_first_stage_of_a_pipeline() {
    proves_on("llava", &["--pp", "2"], "2");
}

#[test]
fn each_cache_of_a_model_that_takes_images_shows_its_hit() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("run");
    let ran = prove("llava", &["--lane", "caches", "--out", folder.to_str().unwrap()]);
    let verdict = ran.json();
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    // Three requests hit the prefix cache and one the encoder's, each computed again on B.
    assert_eq!(verdict["categories"][6]["checks"], 4);
    let proven = verdict["categories"][6]["reason"].to_string();
    for text in ["that the encoder's cache had served", "served from the processor's cache"] {
        assert!(proven.contains(text), "{proven}");
    }
    let evidence = std::fs::read_to_string(folder.join("evidence.jsonl")).unwrap();
    for cache in ["prefix-kv", "encoder", "processor"] {
        assert!(evidence.contains(&format!(r#""cache":"{cache}""#)), "{cache} is declared");
    }
}

#[test]
fn mamba2() {
    proves("mamba2", "1");
    proves("mamba2", "2");
}

#[test]
fn mixtral() {
    proves("mixtral", "1");
    proves("mixtral", "2");
}

#[test]
fn nemotron_h() {
    proves("nemotron_h", "1");
    proves("nemotron_h", "2");
}

#[test]
fn qwen2() {
    proves("qwen2", "1");
    proves("qwen2", "2");
}

#[test]
fn qwen3() {
    proves("qwen3", "1");
    proves("qwen3", "2");
}

#[test]
fn qwen3_moe() {
    proves("qwen3_moe", "1");
    proves("qwen3_moe", "2");
}

#[test]
fn a_pipeline_of_two_stages() {
    proves_on("llama", &["--pp", "2"], "2");
    proves_on("llama", &["--tp", "2", "--pp", "2"], "4");
}

#[test]
fn a_tied_table_is_at_both_ends_of_a_pipeline_and_a_stage_may_be_empty() {
    proves_on("llama_tied", &["--pp", "3"], "3");
}

#[test]
fn experts_spread_over_two_ranks() {
    for family in ["deepseek_v3", "gpt_oss", "mixtral", "qwen3_moe"] {
        proves_on(family, &["--ep", "2"], "2");
    }
    proves_on("qwen3_moe", &["--tp", "2", "--pp", "2", "--ep", "2"], "8");
}

#[test]
fn four_ranks_share_two_kv_heads() {
    proves("qwen3_moe", "4");
}

#[test]
fn slots_are_delivered_to_every_rank_as_kernels_read_them() {
    let cases = [
        ("deepseek_v3", &["--tp", "2", "--ep", "2"][..]),
        ("gemma3", &["--pp", "2"]),
        ("gpt_oss", &["--tp", "2"]),
        ("llama", &[]),
        ("llama", &["--tp", "2", "--dp", "2"]),
        // A stage without a layer.
        ("llama_tied", &["--pp", "3"]),
        ("mamba2", &["--tp", "2"]),
        ("mixtral", &["--ep", "2"]),
        ("qwen3_moe", &["--tp", "2", "--pp", "2", "--ep", "2"]),
    ];
    lane_proves("kernel", &cases, |family, verdict| {
        assert_eq!(verdict["required"], serde_json::json!([2, 3]));
        for category in [1, 2] {
            assert_eq!(verdict["categories"][category]["status"], "pass", "{family}");
        }
        let topology = verdict["engine"]["topology"].as_object().unwrap();
        let ranks: u64 = topology.values().map(|axis| axis.as_u64().unwrap()).product();
        let certified = verdict["certificate"]["ranks"].as_array().unwrap();
        assert_eq!(certified.len() as u64, ranks, "{family} {topology:?}");
    });
}

#[test]
fn faults_of_a_delivery_in_kernel_format_are_found_on_every_rank() {
    let two = ["--lane", "kernel", "--tp", "2"];
    for (family, id, code) in
        [("qwen3_moe", "R23", "loader-stale"), ("gpt_oss", "R32", "shard-misplaced")]
    {
        for lying in [&[][..], &["--lying"]] {
            let ran = prove(family, &[&two[..], &["--fault", id], lying].concat());
            let findings = ran.json()["findings"].clone();
            assert_eq!(ran.code, 1, "{id}: {}", ran.stdout);
            assert_eq!(findings.as_array().unwrap().len(), 1, "{id}: {findings}");
            assert_eq!(findings[0]["code"], code, "{id}");
            assert_eq!(findings[0]["ranks"], serde_json::json!([0, 1]), "{id}");
            let twin = format!("{id}~");
            let ran = prove(family, &[&two[..], &["--fault", &twin], lying].concat());
            assert_eq!(ran.code, 0, "{twin}: {}", ran.stdout);
        }
    }
}

#[test]
fn some_slots_are_delivered_and_the_others_preserved() {
    for (family, more) in [("llama", &[][..]), ("llama_tied", &["--tp", "2"]), ("mixtral", &[])] {
        let ran = prove(family, &[&["--lane", "partial"], more].concat());
        let verdict = ran.json();
        assert_eq!(ran.code, 0, "{family}: {}", ran.stdout);
        assert_eq!(verdict["required"], serde_json::json!([4]));
        assert_eq!(verdict["categories"][3]["status"], "pass");
        assert!(verdict["certificate"].is_object(), "{family}");
    }
}

#[test]
fn the_generation_is_the_content_not_the_topology() {
    let one = prove("qwen3", &["--tp", "1"]).json();
    let two = prove("qwen3", &["--tp", "2"]).json();
    assert!(one["generation"].is_string());
    assert_eq!(one["generation"], two["generation"]);
    let back = coldproof(&[
        "prove".as_ref(),
        "--format=json".as_ref(),
        "--from".as_ref(),
        fixture("qwen3/B").as_os_str(),
        "--to".as_ref(),
        fixture("qwen3/A").as_os_str(),
    ]);
    assert_eq!(back.code, 0);
    assert_ne!(back.json()["generation"], one["generation"]);
}

#[test]
fn without_checkpoints_a_pair_is_made() {
    let ran = coldproof(&["prove", "--format", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert_eq!(ran.json()["verdict"], "pass");
}

#[test]
fn a_lane_alone_judges_what_it_sees_and_says_what_it_does_not() {
    let ran = prove("llama", &["--lane", "caches"]);
    let verdict = ran.json();
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert_eq!(verdict["required"], serde_json::json!([7]));
    assert_eq!(verdict["categories"][6]["status"], "pass");
    assert_eq!(verdict["categories"][4]["status"], "not_covered");
    assert_eq!(verdict["transition"]["status"], "not_covered");
}

#[test]
fn what_is_required_and_not_covered_is_undecided() {
    let ran = prove("llama", &["--lane", "caches", "--require", "5,7"]);
    assert_eq!(ran.code, 3, "{}", ran.stdout);
    assert_eq!(ran.json()["verdict"], "undecided");
}

#[test]
fn an_identity_update_is_proven_over_a_checkpoint_that_differs() {
    let (a, also_a) = (fixture("llama/A"), fixture("llama/A"));
    let ran = coldproof(&[
        "prove".as_ref(),
        "--format=json".as_ref(),
        "--from".as_ref(),
        a.as_os_str(),
        "--to".as_ref(),
        also_a.as_os_str(),
    ]);
    // The arm over P, which differs in every element, still shows it.
    assert_eq!(ran.code, 0, "{}", ran.stdout);
}

#[test]
fn the_text_has_a_line_a_category_and_a_summary() {
    let (from, to) = (fixture("llama/A"), fixture("llama/B"));
    let ran = coldproof(&[
        "prove".as_ref(),
        "--from".as_ref(),
        from.as_os_str(),
        "--to".as_ref(),
        to.as_os_str(),
    ]);
    assert_eq!(ran.code, 0);
    assert_eq!(ran.stderr, "");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("1 storage identity"), "{}", lines[0]);
    assert!(lines[7].starts_with("T transition"), "{}", lines[7]);
    assert!(ran.stdout.contains("the routing lane started tp 2 by itself"));
    assert_eq!(lines.last(), Some(&"PASS (required 1,2,3,4,5,6,7,transition)"));
    assert!(!ran.stdout.contains('\u{1b}'), "NO_COLOR is honoured");
}

#[test]
fn an_engine_that_will_not_resume_with_old_caches_is_one_finding() {
    let ran = prove("llama", &["--skip", "invalidate", "--lane", "caches,composite"]);
    let verdict = ran.json();
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    let one = ("transition", "order", "step `invalidate`");
    assert_eq!(findings(&verdict), [(one.0.to_owned(), one.1.to_owned(), one.2.to_owned())]);
    let actual = verdict["findings"][0]["actual"].as_str().unwrap();
    assert!(actual.contains("call `invalidate` before `resume`"), "{actual}");
    assert_eq!(verdict["categories"][6]["status"], "undecided");
}
