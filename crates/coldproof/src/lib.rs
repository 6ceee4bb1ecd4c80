//! The command line of coldproof.
//!
//! What was typed ([`args`]) becomes what it means (`settings`), a command a file does it, and one
//! result feeds every output.

pub mod args;
mod commands;
mod error;
mod exit;
mod interrupt;
mod known;
mod out_dir;
mod output;
mod prepare;
mod progress;
mod settings;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

pub use error::Failure;
pub use exit::Exit;

/// Runs one command line, prints its result, and returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let outcome = catch_unwind(AssertUnwindSafe(|| commands::run(&args)));
    outcome.unwrap_or(Exit::Bug).into()
}
