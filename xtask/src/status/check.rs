//! The data names each row once and nothing that is not there, and the page is made of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{DATA, Instance, PAGE, Row, Status, page, rows};
use crate::tidy::{SourceFile, Violation};

const FAULTS: &str = "docs/faults.md";
/// Every row that must be there: its list, the digits of a number, the first and the last.
const IDS: [(&str, usize, u8, u8); 12] = [
    ("F1", 2, 1, 17),
    ("F2", 2, 1, 2),
    ("F3", 2, 1, 7),
    ("F4", 2, 1, 6),
    ("F5", 2, 1, 1),
    ("F6", 2, 1, 2),
    ("F7", 2, 1, 4),
    ("D", 2, 1, 5),
    ("P", 2, 1, 2),
    ("L", 1, 1, 5),
    ("E", 2, 30, 30),
    ("N", 2, 1, 8),
];
/// Lists of what is asked for, which name no fault.
const ASKED: [&str; 3] = ["P.", "L.", "E."];

/// What is wrong with the data, and whether the page is made of it.
pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let texts: BTreeMap<&str, &str> =
        files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let Some(data) = texts.get(DATA) else {
        return vec![Violation::new(DATA, 0, "not there: it says what is known of each row")];
    };
    let rows = match rows(data) {
        Ok(rows) => rows,
        Err(error) => return vec![Violation::new(DATA, 0, format!("{error:#}"))],
    };
    let mut problems = ids(&rows);
    for row in &rows {
        let of_row = row.instance.iter().flat_map(|instance| problem(row, instance, &texts));
        problems.extend(of_row.map(|text| format!("{}: {text}", row.id)));
        if row.instance.is_empty() {
            problems.push(format!("{}: no instance; say at least that it is open", row.id));
        }
    }
    let mut found: Vec<Violation> =
        problems.into_iter().map(|text| Violation::new(DATA, 0, text)).collect();
    if texts.get(PAGE) != Some(&page::of(&rows).as_str()) {
        found.push(Violation::new(PAGE, 0, "stale: run `cargo xtask status`"));
    }
    found
}

/// Rows that are missing, or there twice, or of no list.
fn ids(rows: &[Row]) -> Vec<String> {
    let wanted: BTreeSet<String> = IDS
        .iter()
        .flat_map(|&(list, digits, first, last)| {
            (first..=last).map(move |number| format!("{list}.{number:0digits$}"))
        })
        .collect();
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for row in rows {
        if !seen.insert(row.id.clone()) {
            problems.push(format!("{}: there twice", row.id));
        }
        if !wanted.contains(&row.id) && !row.id.starts_with("N.") {
            problems.push(format!("{}: no such row; what is found later is N.09 and up", row.id));
        }
    }
    problems.extend(wanted.difference(&seen).map(|id| format!("{id}: the row is missing")));
    problems
}

fn problem(row: &Row, instance: &Instance, texts: &BTreeMap<&str, &str>) -> Vec<String> {
    let status = instance.status;
    let mut problems: Vec<String> =
        instance.evidence.iter().filter_map(|item| absent(item, texts)).collect();
    let asked = ASKED.iter().any(|list| row.id.starts_with(list));
    match (&instance.fault, status) {
        (Some(fault), Status::Modelled) if !is_listed(fault, texts) => {
            problems.push(format!("`{fault}` is no fault of `{FAULTS}`"));
        }
        (None, Status::Modelled) => problems.push("modelled by no `fault`".to_owned()),
        (Some(_), _) if status != Status::Modelled => {
            problems.push(format!("has a `fault` and is {status}, not modelled"));
        }
        _ => {}
    }
    if status.is_shown() && instance.evidence.is_empty() {
        problems.push(format!("{status} without evidence"));
    }
    if status.is_shown() && instance.engine.is_empty() && status != Status::Provided {
        problems.push(format!("{status}, and no `engine` says on what"));
    }
    if status == Status::NoHardware && instance.remark.is_empty() {
        problems.push("no hardware, and no remark says which".to_owned());
    }
    if status == Status::Provided && !asked {
        problems.push(format!("provided is for rows of {}", ASKED.join(", ")));
    }
    problems
}

/// Why a piece of evidence shows nothing: the file is not there, or has no such test.
fn absent(item: &str, texts: &BTreeMap<&str, &str>) -> Option<String> {
    let (file, name) = item.split_once("::").unwrap_or((item, ""));
    let Some(text) = texts.get(file) else {
        return Some(format!("`{file}` is no text file of the repository"));
    };
    let is_program = [".rs", ".py"].iter().any(|end| file.ends_with(end));
    match (is_program, name) {
        (true, "") => Some(format!("`{file}` without a test: name it, `{file}::TEST`")),
        (true, name) => {
            let is_there =
                ["fn", "def"].iter().any(|word| text.contains(&format!("{word} {name}(")));
            (!is_there).then(|| format!("`{file}` has no test `{name}`"))
        }
        (false, name) => {
            (!text.contains(name)).then(|| format!("`{file}` says nothing of `{name}`"))
        }
    }
}

/// Whether the table of seeded faults has a row with this id.
fn is_listed(fault: &str, texts: &BTreeMap<&str, &str>) -> bool {
    let table = texts.get(FAULTS).copied().unwrap_or_default();
    table.lines().any(|line| {
        line.strip_prefix("| ").is_some_and(|rest| {
            rest.split('|').next().is_some_and(|cell| cell.trim().trim_matches('`') == fault)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house(data: &str) -> Vec<SourceFile> {
        let page = rows(data).map(|rows| page::of(&rows)).unwrap_or_default();
        vec![
            SourceFile::new(DATA, data),
            SourceFile::new(PAGE, page),
            SourceFile::new(FAULTS, "| fault |\n|---|\n| F1.05 | 1 |\n| F1.08 | 1 |\n"),
            SourceFile::new("a/tests/it.rs", "#[test]\nfn finds() {}\nfn finds_more() {}\n"),
            SourceFile::new("b/test_it.py", "def test_it(prove: Prove) -> None:\n"),
            SourceFile::new("docs/run.jsonl", "{}\n"),
        ]
    }

    /// All rows, open but for `instance` of `id`.
    fn data(id: &str, instance: &str) -> String {
        let mut all = String::new();
        for (list, digits, first, last) in IDS {
            for number in first..=last {
                let this = format!("{list}.{number:0digits$}");
                let known = if this == id { instance } else { "status = \"open\"" };
                let row = format!("[[row]]\nid = \"{this}\"\nrow = \"a\"\nwrong = \"b\"\n");
                all.push_str(&format!("{row}[[row.instance]]\n{known}\n"));
            }
        }
        all
    }

    fn problems(id: &str, instance: &str) -> Vec<String> {
        check(&house(&data(id, instance))).iter().map(|found| found.to_string()).collect()
    }

    const SHOWN: &str = "engine = \"vLLM 1\"\nevidence = [\"a/tests/it.rs::finds\"]";

    #[test]
    fn a_whole_table_has_nothing_to_mend() {
        assert_eq!(problems("", ""), [""; 0]);
        for word in ["candidate", "reproduced", "cleared"] {
            assert_eq!(problems("F1.05", &format!("status = \"{word}\"\n{SHOWN}")), [""; 0]);
        }
        let modelled = format!("status = \"modelled\"\nfault = \"F1.05\"\n{SHOWN}");
        assert_eq!(problems("F1.05", &modelled), [""; 0]);
        let provided = "status = \"provided\"\nevidence = [\"b/test_it.py::test_it\"]";
        assert_eq!(problems("L.1", provided), [""; 0]);
        let recorded = "status = \"cleared\"\nengine = \"e\"\nevidence = [\"docs/run.jsonl\"]";
        assert_eq!(problems("N.06", recorded), [""; 0]);
    }

    #[test]
    fn evidence_that_is_not_there_is_found() {
        let with = |item: &str| {
            let engine = "status = \"reproduced\"\nengine = \"e\"";
            problems("F1.05", &format!("{engine}\nevidence = [\"{item}\"]"))
        };
        assert_eq!(with("b/test_it.py::test_it"), [""; 0]);
        let prefix = "docs/rfc-status.toml: F1.05: ";
        for (item, problem) in [
            ("c/it.rs::finds", "`c/it.rs` is no text file of the repository"),
            // The beginning of a test's name is not its name.
            ("a/tests/it.rs::find", "`a/tests/it.rs` has no test `find`"),
            ("a/tests/it.rs", "`a/tests/it.rs` without a test: name it, `a/tests/it.rs::TEST`"),
            ("docs/run.jsonl::late", "`docs/run.jsonl` says nothing of `late`"),
        ] {
            assert_eq!(with(item), [format!("{prefix}{problem}")]);
        }
    }

    #[test]
    fn a_fault_that_is_not_listed_models_nothing() {
        let with =
            |fault: &str| problems("F1.05", &format!("status = \"modelled\"\n{SHOWN}{fault}"));
        assert_eq!(with("\nfault = \"F1.08\""), [""; 0]);
        assert_eq!(with("\nfault = \"F1.0\"").len(), 1);
        assert_eq!(with("").len(), 1);
        let open = "status = \"open\"\nfault = \"F1.05\"";
        assert_eq!(problems("F1.05", open).len(), 1);
    }

    #[test]
    fn a_word_without_what_it_stands_on_is_found() {
        assert_eq!(problems("F1.05", "status = \"reproduced\"").len(), 2);
        assert_eq!(problems("F1.05", "status = \"no-hardware\"").len(), 1);
        assert_eq!(problems("F1.05", "status = \"no-hardware\"\nremark = \"SM100\""), [""; 0]);
        assert_eq!(problems("F1.05", &format!("status = \"provided\"\n{SHOWN}")).len(), 1);
    }

    #[test]
    fn each_row_is_there_once() {
        let whole = data("", "");
        let row = |id: &str| {
            let head = format!("[[row]]\nid = \"{id}\"\nrow = \"a\"\nwrong = \"b\"\n");
            format!("{head}[[row.instance]]\nstatus = \"open\"\n")
        };
        let count = |data: &str| check(&house(data)).len();
        assert_eq!(count(&whole), 0);
        assert_eq!(count(&whole.replacen(&row("F3.04"), "", 1)), 1);
        assert_eq!(count(&format!("{whole}{}", row("F3.04"))), 1);
        assert_eq!(count(&format!("{whole}{}", row("F8.01"))), 1);
        assert_eq!(count(&format!("{whole}{}", row("N.09"))), 0);
    }

    #[test]
    fn a_page_that_says_something_else_is_stale() {
        let mut files = house(&data("", ""));
        files[1] = SourceFile::new(PAGE, "# Another\n");
        let found: Vec<String> = check(&files).iter().map(|found| found.to_string()).collect();
        assert_eq!(found, ["docs/rfc-status.md: stale: run `cargo xtask status`"]);
        files.remove(0);
        assert_eq!(check(&files).len(), 1);
    }
}
