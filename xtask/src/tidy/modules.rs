//! No Rust file that its parent does not name: such a file is not compiled, and nothing says so.

use std::collections::BTreeMap;

use super::lexer::{Code, words};
use super::{SourceFile, Violation};

/// Folders whose files and whose folders' `main.rs` are roots of their own.
const ROOT_FOLDERS: [&str; 4] = ["bin", "tests", "examples", "benches"];

/// Files that no `mod` names.
pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let rust: BTreeMap<&str, &str> = files
        .iter()
        .filter(|file| file.is_rust())
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    let unknown = rust.keys().filter(|path| !is_root(path)).filter_map(|path| {
        let (parents, name) = parents(path);
        let usual = parents.iter().filter_map(|parent| rust.get(parent.as_str()));
        // Each root of a folder of roots may name what lies beside it.
        let folder = parents[0].trim_end_matches("mod.rs");
        let beside = rust.iter().filter(|(root, _)| {
            is_root(root) && root.strip_prefix(folder).is_some_and(|file| !file.contains('/'))
        });
        let is_named = usual.chain(beside.map(|(_, text)| text)).any(|text| names(text, name));
        (!is_named).then(|| {
            let text = format!("no `mod {name};` in {}: add it, or delete the file", parents[0]);
            Violation::new(path, 0, text)
        })
    });
    unknown.collect()
}

fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [.., "src", "lib.rs" | "main.rs"] | [.., "build.rs"] => true,
        [.., folder, _] if ROOT_FOLDERS.contains(folder) && is_package_folder(&parts, 2) => true,
        [.., folder, _, "main.rs"] => ROOT_FOLDERS.contains(folder) && is_package_folder(&parts, 3),
        _ => false,
    }
}

/// Whether the folder `back` parts from the end stands beside `src`, or is `src/bin`.
fn is_package_folder(parts: &[&str], back: usize) -> bool {
    let folder = parts.len() - back;
    let within_src = parts[..folder].contains(&"src");
    if parts[folder] == "bin" { folder > 0 && parts[folder - 1] == "src" } else { !within_src }
}

/// Where a file's `mod` may stand, most usual first, and the name it has there.
fn parents(path: &str) -> (Vec<String>, &str) {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.trim_end_matches(".rs");
    let (folder, name) = if stem == "mod" {
        folder.rsplit_once('/').unwrap_or(("", folder))
    } else {
        (folder, stem)
    };
    let mut parents: Vec<String> =
        ["mod.rs", "lib.rs", "main.rs"].iter().map(|file| format!("{folder}/{file}")).collect();
    parents.push(format!("{folder}.rs"));
    if folder.ends_with("/src") {
        parents.swap(0, 1);
    }
    (parents, name)
}

/// Whether a text has `mod name;`.
fn names(text: &str, name: &str) -> bool {
    let bare = Code::of(text).bare;
    words(&bare, "mod").any(|index| {
        let rest = bare[index + 3..].trim_start();
        rest.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(';'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<SourceFile> =
            files.iter().map(|&(path, text)| SourceFile::new(path, text)).collect();
        check(&files).into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn a_file_that_nothing_names_is_found_and_named_ones_are_not() {
        let found = unknown(&[
            ("c/src/lib.rs", "mod a;\npub mod b;\n// mod d;\nmod dd;"),
            ("c/src/a.rs", "#[cfg(test)]\nmod tests;"),
            ("c/src/a/tests.rs", ""),
            ("c/src/b/mod.rs", "mod x;"),
            ("c/src/b/x.rs", ""),
            ("c/src/b/y.rs", ""),
            ("c/src/d.rs", ""),
            ("c/src/dd.rs", ""),
        ]);
        assert_eq!(found, ["c/src/b/y.rs", "c/src/d.rs"]);
    }

    #[test]
    fn programs_and_test_binaries_are_roots_and_their_parts_are_not() {
        let found = unknown(&[
            ("c/src/main.rs", ""),
            ("c/src/bin/tool.rs", ""),
            ("c/tests/it/main.rs", "mod a;"),
            ("c/tests/it/a.rs", ""),
            ("c/tests/it/b.rs", ""),
            ("c/benches/gate.rs", "mod peer;"),
            ("c/benches/peer/mod.rs", ""),
            ("c/benches/other/mod.rs", ""),
            ("c/examples/dump.rs", ""),
            ("c/src/tests/c.rs", ""),
        ]);
        assert_eq!(found, ["c/benches/other/mod.rs", "c/src/tests/c.rs", "c/tests/it/b.rs"]);
    }
}
