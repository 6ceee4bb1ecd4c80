//! The `coldproof` binary: everything is in the library, so that other entry points call the same.

use std::process::ExitCode;

fn main() -> ExitCode {
    coldproof::main(std::env::args_os())
}
