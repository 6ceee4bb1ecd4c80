//! One verdict, many outputs.

mod junit;
mod terminal;

use std::io::Write;

use coldproof_contract::verdict::Verdict;

pub(crate) use junit::junit;
pub(crate) use terminal::{failure, verdict};

/// `verdict.json`.
#[must_use]
pub(crate) fn json(verdict: &Verdict) -> String {
    let mut text = serde_json::to_string_pretty(verdict).unwrap_or_default();
    text.push('\n');
    text
}

/// Prints a result. A closed stdout ends quietly.
pub(crate) fn print(text: &str) {
    let mut out = anstream::stdout().lock();
    // Whoever closed the pipe has read what they wanted.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
