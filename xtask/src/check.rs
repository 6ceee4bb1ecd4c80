//! `cargo xtask check`: everything that needs no run of the product.

use std::process::Command;

use anyhow::Result;

use crate::house::House;
use crate::{process, python, tidy, tools};

/// Where Python files lie.
const PYTHON: [&str; 5] =
    ["python", "testdata", "scripts", "examples", "crates/coldproof-device/kernels"];

/// Formatting, lints, the house rules, the Python files and their types, and the dependencies.
pub(crate) fn run(house: &House) -> Result<()> {
    process::run(&mut process::cargo(&house.root, &["fmt", "--all", "--check"]))?;
    tidy::run(house)?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    process::run(&mut process::cargo(&house.root, &clippy))?;
    let python = python::environment(house)?;
    for task in [&["check"][..], &["format", "--check"]] {
        let mut command = Command::new(&python);
        command.current_dir(&house.root).args(["-m", "ruff"]).args(task).args(PYTHON);
        process::run(&mut command)?;
    }
    process::run(Command::new(&python).current_dir(&house.root).args(["-m", "mypy"]))?;
    deny(house)
}

/// Advisories are left out: their database is a repository that not every machine can reach.
fn deny(house: &House) -> Result<()> {
    let Some(program) = tools::find(house, tools::DENY) else {
        eprintln!("SKIPPED deny: cargo-deny is neither installed nor to be had (offline?)");
        return Ok(());
    };
    let arguments = ["check", "--hide-inclusion-graph", "bans", "licenses", "sources"];
    process::run(Command::new(program).current_dir(&house.root).args(arguments))
}
