//! Every seeded fault is found, alone, whether the engine is honest or not; every twin is silent.
//! `docs/faults.md` is the table of what must be reported.

use serde_json::Value;

use crate::support::{coldproof, findings};

/// One row of the table in the documentation.
struct Row {
    id: String,
    category: String,
    code: String,
    object: String,
}

fn table() -> Vec<Row> {
    let text = include_str!("../../../../docs/faults.md");
    let cell = |cell: &str| cell.trim().trim_matches('`').to_owned();
    let rows =
        text.lines().filter(|line| ["| F", "| R4", "| R6"].iter().any(|id| line.starts_with(id)));
    rows.map(|line| {
        let cells: Vec<String> = line.trim_matches('|').split('|').map(cell).collect();
        Row {
            id: cells[0].clone(),
            category: cells[1].clone(),
            code: cells[2].clone(),
            object: cells[3].clone(),
        }
    })
    .collect()
}

/// What a lying engine's fault gives.
fn under_lies(row: Row) -> Vec<(String, String, String)> {
    let found =
        |category: &str, code: &str, object: String| (category.to_owned(), code.to_owned(), object);
    match row.code.as_str() {
        // A registry that names the old storage is a rebinding seen by the allocator alone.
        "slot-rebound" => vec![found("1", "address-stale", row.object)],
        // No receipt says that it was passed over: what it should have written is old.
        "source-unrouted" if row.id == "F6.01" => {
            vec![found("3", "application-missing", row.object)]
        }
        // The launch trace knows graphs, and no option by its name.
        "config-drift" => {
            let shown = if row.id == "F4.03" { "graph decode-4" } else { "captured graphs" };
            vec![found("4", "config-drift", shown.to_owned())]
        }
        // One that has both names there holds what was never written.
        "alias-split" => {
            let source = row.object.replace("conv_weights", "conv1d.weight");
            vec![found("3", "application-missing", source)]
        }
        // A layer that is said to be finished: what it did not compute is seen, each by itself.
        "finalised-never" => ["W_UK_T", "W_UV"]
            .map(|name| found("2", "derived-stale", format!("{}.{name}", row.object)))
            .into(),
        _ => vec![(row.category, row.code, row.object)],
    }
}

fn fault(id: &str, more: &[&str]) -> (i32, Value) {
    let mut args = vec!["prove", "--format", "json", "--fault", id];
    args.extend(more);
    let ran = coldproof(&args);
    (ran.code, ran.json())
}

#[test]
fn the_table_has_every_fault_that_the_engine_knows() {
    let known: Vec<String> =
        coldproof_reference::faults::FAULTS.iter().map(|row| row.id.to_string()).collect();
    let documented: Vec<String> = table().into_iter().map(|row| row.id).collect();
    assert_eq!(documented, known);
}

#[test]
fn each_fault_gives_its_finding_and_nothing_else() {
    for row in table() {
        let (code, verdict) = fault(&row.id, &[]);
        assert_eq!(code, 1, "{}", row.id);
        assert_eq!(findings(&verdict), [(row.category, row.code, row.object)], "{}", row.id);
    }
}

#[test]
fn each_fault_of_a_lying_engine_is_found_from_what_is_observed() {
    for row in table() {
        let (code, verdict) = fault(&row.id, &["--lying"]);
        let id = row.id.clone();
        assert_eq!(code, 1, "{id}");
        assert_eq!(findings(&verdict), under_lies(row), "{id}");
    }
}

fn twins_are_silent(more: &[&str]) {
    for row in table() {
        let (code, verdict) = fault(&format!("{}~", row.id), more);
        assert_eq!(findings(&verdict), [], "{}~ {more:?}", row.id);
        assert_eq!(code, 0, "{}~ {more:?}", row.id);
    }
}

#[test]
fn each_twin_is_silent() {
    twins_are_silent(&[]);
}

#[test]
fn each_twin_in_a_lying_engine_is_silent() {
    twins_are_silent(&["--lying"]);
}

#[test]
fn two_faults_at_once_give_two_findings() {
    let (code, verdict) = fault("F2.01,F3.06", &[]);
    assert_eq!(code, 1);
    let codes: Vec<String> = findings(&verdict).into_iter().map(|(_, code, _)| code).collect();
    assert_eq!(codes, ["derived-stale", "application-missing"]);
    let (_, verdict) = fault("F4.02,F7.02", &["--lying"]);
    let codes: Vec<String> = findings(&verdict).into_iter().map(|(_, code, _)| code).collect();
    assert_eq!(codes, ["state-lost", "cache-stale"]);
}

#[test]
fn a_finding_says_where_it_began_and_where_it_went_wrong() {
    let (_, verdict) = fault("F1.05", &[]);
    let finding = &verdict["findings"][0];
    let events = finding["events"].as_array().unwrap();
    let what: Vec<&str> = events.iter().filter_map(|event| event["what"].as_str()).collect();
    assert_eq!(what, ["bound", "captured", "freed"]);
    assert_eq!(finding["requirement"], "R5");
    assert!(finding["why"].as_str().unwrap().contains("graph `decode-1` retains 0x"));
}

#[test]
fn an_unknown_fault_is_bad_usage() {
    let ran = coldproof(&["prove", "--fault", "F9.99"]);
    assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("F9.99"), "{}", ran.stderr);
}

#[test]
fn a_fault_without_its_object_is_bad_usage() {
    for (family, id, parameter) in [
        ("llama", "F3.01", "experts.w13_weight"),
        ("llama", "F1.01", "kv_b_proj"),
        ("deepseek_v3", "F3.06", "qkv_proj"),
        // Experts have one spelling.
        ("gpt_oss", "F6.02", "experts.w13_weight"),
    ] {
        let ran = crate::support::prove(family, &["--fault", id]);
        assert_eq!(ran.code, 2, "{family} {id}: {}{}", ran.stdout, ran.stderr);
        let text = format!("{}{}", ran.stdout, ran.stderr);
        assert!(text.contains(parameter) && text.contains("give checkpoints"), "{text}");
    }
}

#[test]
fn a_fault_in_what_a_family_has_not_is_bad_usage() {
    let model = |side: &str| crate::support::fixture(&format!("mamba2/{side}"));
    let (from, to) = (model("A"), model("B"));
    for id in ["F1.05", "F3.06", "F4.02", "F7.02"] {
        let ran = coldproof(&[
            "prove".as_ref(),
            "--fault".as_ref(),
            id.as_ref(),
            "--from".as_ref(),
            from.as_os_str(),
            "--to".as_ref(),
            to.as_os_str(),
        ]);
        assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
        let text = format!("{id} needs `");
        assert!(ran.stderr.contains(&text), "{}", ran.stderr);
        assert!(ran.stderr.contains("this `mamba2` has none"), "{}", ran.stderr);
    }
}

#[test]
fn faults_are_listed_and_run_as_a_command() {
    let listed = coldproof(&["faults", "list", "--format", "json"]).json();
    let known: Vec<&Value> = listed["rows"].as_array().unwrap().iter().map(|r| &r["id"]).collect();
    let documented: Vec<String> = table().into_iter().map(|row| row.id).collect();
    assert_eq!(known, documented.iter().collect::<Vec<_>>());
    let ran = coldproof(&["faults", "run", "--id", "F2.01", "--format", "json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let row = &ran.json()["rows"][0];
    assert_eq!((&row["id"], &row["category"]), (&"F2.01".into(), &2.into()));
    assert_eq!((&row["detected"], &row["twin_clean"]), (&true.into(), &true.into()));
    assert_eq!(row["object"], "model.norm/kernel.weight_f32");
    let unknown = coldproof(&["faults", "run", "--id", "F9.99"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("F1.01"), "{}", unknown.stderr);
    assert_eq!(coldproof(&["faults", "run", "--from", "A"]).code, 2);
}
