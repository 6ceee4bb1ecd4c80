//! The checked shares nothing with the checker but words: the reference engine imports `words`,
//! `evidence` and `transaction` from the contract and no rule or check.

use super::lexer::{Code, is_word, line_of, words};
use super::{SourceFile, Violation};

const CHECKED: &str = "crates/coldproof-reference/src/";
const CONTRACT: &str = "coldproof_contract";
const ALLOWED: [&str; 3] = ["words", "evidence", "transaction"];

/// Imports of the reference engine, tests apart, that reach into the checker.
pub(crate) fn check(file: &SourceFile, code: &Code) -> Vec<Violation> {
    if !file.path.starts_with(CHECKED) || file.is_test() {
        return Vec::new();
    }
    let bare = code.bare_untested();
    let found = words(&bare, CONTRACT).flat_map(|index| {
        let line = line_of(&bare, index);
        let rooms = reached(&bare[index + CONTRACT.len()..]);
        rooms
            .into_iter()
            .filter(|room| !ALLOWED.contains(&room.as_str()))
            .map(move |room| (line, room))
    });
    found
        .map(|(line, room)| {
            let text = format!("`{CONTRACT}::{room}`: the engine shares {ALLOWED:?} alone");
            Violation::new(&file.path, line, text)
        })
        .collect()
}

/// The first names after the crate: one, or those of a group. The crate alone is a name too: it
/// could be renamed.
fn reached(rest: &str) -> Vec<String> {
    let Some(path) = rest.trim_start().strip_prefix("::") else { return vec!["self".to_owned()] };
    let path = path.trim_start();
    match path.strip_prefix('{') {
        None => vec![first_name(path)],
        Some(group) => group_items(group).into_iter().map(first_name).collect(),
    }
}

fn first_name(path: &str) -> String {
    let path = path.trim();
    let end = path.bytes().position(|byte| !is_word(byte)).unwrap_or(path.len());
    if end == 0 { path.chars().take(1).collect() } else { path[..end].to_owned() }
}

/// The items of a group whose brace is open, up to the brace that closes it.
fn group_items(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0_usize, 0, Vec::new());
    for (index, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => {
                items.push(&group[start..index]);
                break;
            }
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                items.push(&group[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    items.retain(|item| !item.trim().is_empty());
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile::new(path, text);
        check(&file, &Code::of(text)).into_iter().map(|found| found.line).collect()
    }

    const ENGINE: &str = "crates/coldproof-reference/src/a.rs";

    #[test]
    fn a_rule_in_the_engine_is_found_and_words_are_not() {
        let text = "\
use coldproof_contract::words::{Rank, Slot};
use coldproof_contract::{evidence::{Fact, routing}, transaction};
use coldproof_contract::routing::Piece;
use coldproof_contract::{words, digest::content};
use coldproof_contract::*;
use coldproof_contract as c;
// coldproof_contract::names
";
        assert_eq!(lines(ENGINE, text), [3, 4, 5, 6]);
    }

    #[test]
    fn the_engines_tests_and_other_crates_may() {
        let text = "#[cfg(test)]\nmod tests {\n use coldproof_contract::digest::content;\n}\n";
        assert_eq!(lines(ENGINE, text), [0; 0]);
        let text = "use coldproof_contract::digest::content;\n";
        assert_eq!(lines("crates/coldproof-reference/src/a/tests.rs", text), [0; 0]);
        assert_eq!(lines("crates/coldproof-lanes/src/a.rs", text), [0; 0]);
        assert_eq!(lines(ENGINE, text), [1]);
    }
}
