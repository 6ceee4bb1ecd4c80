//! The command line of coldproof.
//!
//! What was typed ([`args`]) becomes what it means (`settings`), a command a file does it, and one
//! result feeds every output.

pub mod args;
mod commands;
mod engines;
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
    main_as(args, None).into()
}

/// As [`main`], for a program that is not this crate's binary: `own_command` (program and first
/// arguments) starts the same command line in a process of its own. Nothing stands for the running
/// executable.
pub fn main_as(
    args: impl IntoIterator<Item = OsString>,
    own_command: Option<Vec<OsString>>,
) -> Exit {
    let args: Vec<OsString> = args.into_iter().collect();
    let outcome = catch_unwind(AssertUnwindSafe(|| commands::run(&args, own_command)));
    outcome.unwrap_or(Exit::Bug)
}
