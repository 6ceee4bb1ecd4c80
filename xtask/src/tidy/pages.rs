//! Every finding code has a page, and no page is without its code.

use std::collections::BTreeMap;

use super::lexer::{Code, words};
use super::{SourceFile, Violation};
use crate::codes;

/// Where codes are raised.
const CHECKS: &str = "crates/coldproof-contract/src/";

/// Pages that are missing, stale, empty or left over.
pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let texts: BTreeMap<&str, &str> =
        files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let Some(table) = texts.get(codes::TABLE) else {
        return vec![Violation::new(codes::TABLE, 0, "the table of codes is not there")];
    };
    let rows = match codes::rows(table) {
        Ok(rows) => rows,
        Err(error) => return vec![Violation::new(codes::TABLE, 0, error.to_string())],
    };
    let mut expected = BTreeMap::new();
    let contents = format!("{}/README.md", codes::folder());
    for row in &rows {
        expected.insert(format!("{}/{}.md", codes::folder(), row.code), row);
    }
    let mut found = Vec::new();
    for (path, row) in &expected {
        let problem = match texts.get(path.as_str()) {
            None => Some("not there: run `cargo xtask codes` and write it".to_owned()),
            Some(text) => codes::Page::of(text).problem(row, is_raised(files, &row.variant)),
        };
        found.extend(problem.map(|text| Violation::new(path, 0, text)));
    }
    if texts.get(contents.as_str()) != Some(&codes::contents(&rows).as_str()) {
        found.push(Violation::new(&contents, 0, "stale: run `cargo xtask codes`"));
    }
    let within = format!("{}/", codes::folder());
    let left_over = texts.keys().filter(|path| {
        path.starts_with(&within) && **path != contents && !expected.contains_key(**path)
    });
    found.extend(left_over.map(|path| Violation::new(path, 0, "no code has this page: delete it")));
    found
}

/// Whether the contract names a code outside the table and its tests.
fn is_raised(files: &[SourceFile], variant: &str) -> bool {
    let name = format!("FindingCode::{variant}");
    let checks = files.iter().filter(|file| {
        file.path.starts_with(CHECKS) && file.path != codes::TABLE && !file.is_test()
    });
    checks
        .filter(|file| file.text.contains(&name))
        .any(|file| words(&Code::of(&file.text).bare_untested(), &name).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\ncodes! {\n A, \"a\", STORAGE, \"R5\", \"Meaning.\";\n}\n";

    fn house(pages: &[(&str, String)]) -> Vec<String> {
        let raising = "fn check() { raise(FindingCode::A); }";
        let mut files = vec![
            SourceFile::new(codes::TABLE, TABLE),
            SourceFile::new("crates/coldproof-contract/src/storage/check.rs", raising),
        ];
        files.extend(pages.iter().map(|(path, text)| SourceFile::new(path, text.clone())));
        check(&files).into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn missing_and_left_over_pages_are_found_and_a_whole_set_is_not() {
        let rows = codes::rows(TABLE).unwrap();
        let prose = "## What it looks like\n\nSo.\n\n## What to do\n\nThis.\n";
        let page = codes::Page::of(prose).with_header(&rows[0]);
        let contents = codes::contents(&rows);
        let whole = [("docs/codes/a.md", page), ("docs/codes/README.md", contents)];
        assert_eq!(house(&whole), [""; 0]);
        assert_eq!(house(&whole[..1]), ["docs/codes/README.md"]);
        assert_eq!(house(&whole[1..]), ["docs/codes/a.md"]);
        let mut more = whole.to_vec();
        more.push(("docs/codes/b.md", String::new()));
        assert_eq!(house(&more), ["docs/codes/b.md"]);
    }

    #[test]
    fn a_code_is_raised_by_a_check_and_not_by_a_test_or_a_comment() {
        let raised = |path: &str, text: &str| is_raised(&[SourceFile::new(path, text)], "A");
        let path = "crates/coldproof-contract/src/storage/check.rs";
        assert!(raised(path, "raise(FindingCode::A)"));
        assert!(!raised(path, "raise(FindingCode::AB)"));
        assert!(!raised(path, "// FindingCode::A"));
        assert!(!raised(path, "#[cfg(test)]\nmod tests { fn a() { FindingCode::A; } }"));
        assert!(!raised("crates/coldproof-lanes/src/lane.rs", "FindingCode::A"));
        assert!(!raised(codes::TABLE, "FindingCode::A"));
    }
}
