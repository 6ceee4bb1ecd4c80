//! The tasks of the house: `cargo xtask test | check | tidy | codes | status | faults`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a task speaks to the terminal")]

mod check;
mod codes;
mod faults;
mod house;
mod process;
mod python;
mod smollm2;
mod status;
mod test;
mod tidy;
mod tools;
mod vllm;

use std::process::ExitCode;

use house::House;

const USAGE: &str = "\
usage: cargo xtask TASK

  test [SUITE]...   all tests, or only these suites: rust, doc, python, faults,
                    smollm2, vllm
  check             fmt, clippy, tidy and deny
  tidy              the rules of the house that no other tool knows
  codes             write docs/codes/ anew from the table of finding codes; prose is kept
  status            write docs/rfc-status.md anew from docs/rfc-status.toml
  faults            write docs/faults-by-family.md anew from what is found now";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let house = House::here();
    let outcome = match (task.as_str(), rest.is_empty()) {
        ("test", _) => test::run(&house, &rest),
        ("check", true) => check::run(&house),
        ("tidy", true) => tidy::run(&house),
        ("codes", true) => codes::run(&house),
        ("status", true) => status::run(&house),
        ("faults", true) => faults::run(&house),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
