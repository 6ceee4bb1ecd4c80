//! `coldproof --explain CODE`: what a finding means and what to do.

use coldproof_contract::verdict::FindingCode;
use include_dir::{Dir, include_dir};

use crate::error::Failure;
use crate::exit::Exit;
use crate::output;

/// A page a code, as the documentation has it.
static PAGES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../docs/codes");

pub(super) fn run(code: &str) -> Result<Exit, Failure> {
    let known = FindingCode::ALL.iter().find(|known| known.name() == code);
    let text = known.and_then(|code| text(code.name())).ok_or_else(|| unknown(code))?;
    output::print(&text)?;
    Ok(Exit::Proven)
}

/// The page of a code, without the marks of the program that keeps its header.
fn text(name: &str) -> Option<String> {
    let page = PAGES.get_file(format!("{name}.md"))?.contents_utf8()?;
    let lines = page.lines().filter(|line| !line.starts_with("<!--"));
    Some(lines.flat_map(|line| [line, "\n"]).collect())
}

fn unknown(code: &str) -> Failure {
    let words: Vec<&str> = FindingCode::ALL.iter().map(|known| known.name()).collect();
    let message = format!("no finding has the code `{code}`");
    Failure::usage("--explain", message, format!("there are: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_that_says_what_to_do() {
        for code in FindingCode::ALL {
            let text = text(code.name()).unwrap_or_default();
            assert!(text.starts_with(&format!("# {}\n", code.name())), "{text}");
            assert!(text.contains("## What to do"), "{text}");
            assert!(!text.contains("<!--"), "{text}");
        }
        assert_eq!(text("no-such-code"), None);
    }
}
