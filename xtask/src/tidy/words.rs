//! Words that do not belong: unfinished work, engines in the contract, places of one machine.

use super::lexer::{Code, line_of, words};
use super::{SourceFile, Violation};
use crate::house::House;

/// Joined here, so that this file does not hold them.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const ENGINES: [&str; 7] =
    ["vllm", "sglang", "torch", "tensorrt", "lmdeploy", "megatron", "transformers"];
const CONTRACT: &str = "crates/coldproof-contract/";
/// The crates that look into an interpreter's objects and call an accelerator's driver.
const NATIVE: [&str; 2] = ["crates/coldproof-python/", "crates/coldproof-device/"];
const HOMES: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/wo", "rk/")];
/// Who may be linked to. Hosts of package registries are settings of a machine.
const HOSTS: [&str; 10] = [
    "github.com",
    "www.apache.org",
    "www.w3.org",
    "doc.rust-lang.org",
    "docs.rs",
    "nexte.st",
    "arxiv.org",
    "json-schema.org",
    "localhost",
    "127.0.0.1",
];

/// Work that was left for later.
pub(crate) fn unfinished(file: &SourceFile) -> Vec<Violation> {
    let found = UNFINISHED.iter().flat_map(|&word| {
        words(&file.text, word).map(move |index| {
            let text = format!("`{word}`: do it, or file an issue and name what is open in docs/");
            Violation::new(&file.path, line_of(&file.text, index), text)
        })
    });
    found.collect()
}

/// An engine's name in the contract's code. A comment may name the source of a behaviour.
pub(crate) fn engines(file: &SourceFile, code: &Code) -> Vec<Violation> {
    if !file.path.starts_with(CONTRACT) {
        return Vec::new();
    }
    let lower = code.uncommented.to_ascii_lowercase();
    let found = ENGINES.iter().flat_map(|&engine| {
        let lower = &lower;
        lower.match_indices(engine).map(move |(index, _)| {
            let text = format!("`{engine}`: the contract knows no engine by name");
            Violation::new(&file.path, line_of(lower, index), text)
        })
    });
    found.collect()
}

/// `unsafe` anywhere but where an interpreter or a driver leaves no other way.
pub(crate) fn unsafe_code(file: &SourceFile, code: &Code) -> Vec<Violation> {
    if NATIVE.iter().any(|native| file.path.starts_with(native)) {
        return Vec::new();
    }
    let found = words(&code.bare, "unsafe").map(|index| {
        let text = format!("`unsafe`: only {NATIVE:?} may");
        Violation::new(&file.path, line_of(&code.bare, index), text)
    });
    found.collect()
}

/// Folders of the machine that runs this.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    folders: Vec<String>,
}

impl Machine {
    /// The checkout and the home of this machine.
    pub(crate) fn of(house: &House) -> Self {
        let home = std::env::var("HOME").ok();
        let root = house.root.to_str().map(str::to_owned);
        // A folder right under the root is too common a word.
        let folders = [root, home].into_iter().flatten();
        Self { folders: folders.filter(|folder| folder.matches('/').count() > 1).collect() }
    }
}

/// Absolute paths of a machine, and links to hosts that are not on the list.
pub(crate) fn places(file: &SourceFile, machine: &Machine) -> Vec<Violation> {
    let mut found = Vec::new();
    let folders = HOMES.into_iter().chain(machine.folders.iter().map(String::as_str));
    for folder in folders {
        for (index, _) in file.text.match_indices(folder) {
            if is_path_start(&file.text, index) {
                let text = format!("`{folder}`: a path of one machine");
                found.push(Violation::new(&file.path, line_of(&file.text, index), text));
            }
        }
    }
    for scheme in [concat!("http", "://"), concat!("https", "://")] {
        for (index, _) in file.text.match_indices(scheme) {
            let host: String = file.text[index + scheme.len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || matches!(c, '.' | '-'))
                .collect();
            // No host, or a placeholder such as `HOST`.
            let is_open = host.chars().all(|c| c.is_ascii_uppercase());
            if !is_open && !HOSTS.contains(&host.as_str()) {
                let text = format!("`{host}`: not a host that the project links to");
                found.push(Violation::new(&file.path, line_of(&file.text, index), text));
            }
        }
    }
    found
}

/// Whether a slash begins a path, and is not in the middle of one.
fn is_path_start(text: &str, index: usize) -> bool {
    let before = text[..index].chars().next_back();
    before.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '.' | '_' | '-' | '*' | '}' | '~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(mut found: Vec<Violation>) -> Vec<usize> {
        found.sort();
        found.into_iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn unfinished_work_is_found_and_words_that_hold_it_are_not() {
        let text = format!("// mastodon\n// {} later\n// {}S_A\n", UNFINISHED[0], UNFINISHED[2]);
        assert_eq!(lines(unfinished(&SourceFile::new("a.rs", text))), [2]);
    }

    #[test]
    fn an_engine_is_named_in_a_comment_alone_and_in_the_contract_not_at_all() {
        let text =
            "// as vLLM does\nlet a = \"ok\"; /* torch */\nlet b = \"vLLM\";\nfn torch_a() {}\n";
        let within = |path: &str| {
            let file = SourceFile::new(path, text);
            lines(engines(&file, &Code::of(text)))
        };
        assert_eq!(within("crates/coldproof-contract/src/a.rs"), [3, 4]);
        assert_eq!(within("crates/coldproof-lanes/src/a.rs"), [0; 0]);
    }

    #[test]
    fn unsafe_code_is_found_and_the_word_and_the_native_crates_are_not() {
        let text = "// unsafe\nlet a = \"unsafe\";\nfn unsafely() {}\nunsafe { f() }\n";
        let within = |path: &str| {
            let file = SourceFile::new(path, text);
            lines(unsafe_code(&file, &Code::of(text)))
        };
        assert_eq!(within("crates/coldproof-lanes/src/a.rs"), [4]);
        assert_eq!(within("crates/coldproof-python/src/a.rs"), [0; 0]);
        assert_eq!(within("crates/coldproof-device/src/a.rs"), [0; 0]);
    }

    #[test]
    fn a_path_of_a_machine_is_found_and_a_relative_one_is_not() {
        let machine = Machine { folders: vec!["/opt/checkout".to_owned()] };
        let text = format!(
            "net{work}x\ncd {work}x\n\"{root}\"\nsrc/opt/checkout\n`/opt/checkout/a`\n~{root}\n",
            work = HOMES[3],
            root = HOMES[0],
        );
        assert_eq!(lines(places(&SourceFile::new("a.md", text), &machine)), [2, 3, 5]);
    }

    #[test]
    fn a_link_to_an_unknown_host_is_found_and_a_placeholder_is_not() {
        let scheme = concat!("http", "s://");
        let text = format!("{scheme}github.com/a\n{scheme}HOST:PORT\n{scheme}packages.example/a\n");
        assert_eq!(lines(places(&SourceFile::new("a.md", text), &Machine::default())), [3]);
    }
}
