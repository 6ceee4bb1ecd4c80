//! One verdict, many outputs.

mod junit;
mod terminal;

use std::io::Write;

use coldproof_contract::verdict::Verdict;

use crate::error::Failure;

pub(crate) use junit::junit;
pub(crate) use terminal::{failure, verdict};

/// `verdict.json`.
#[must_use]
pub(crate) fn json(verdict: &Verdict) -> String {
    let mut text = serde_json::to_string_pretty(verdict).unwrap_or_default();
    text.push('\n');
    text
}

/// Prints a result. A closed stdout ends quietly: whoever closed it has read what they wanted.
///
/// # Errors
/// Stdout cannot be written.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::output("stdout", &error))
        }
        _ => Ok(()),
    }
}
