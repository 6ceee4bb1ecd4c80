//! `cargo xtask test`: the one command that runs all tests on a machine that has only a Rust
//! toolchain and Python 3.11 or newer.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::house::House;
use crate::{faults, process, python, smollm2, tools, vllm};

/// A part of the tests that can be run alone.
#[derive(Clone, Copy, Debug)]
struct Suite {
    name: &'static str,
    run: fn(&House) -> Result<()>,
}

const SUITES: [Suite; 6] = [
    Suite { name: "rust", run: rust },
    Suite { name: "doc", run: doc },
    Suite { name: "python", run: fixtures },
    Suite { name: "faults", run: faults::check },
    Suite { name: "smollm2", run: smollm2::run },
    Suite { name: "vllm", run: vllm::run },
];

/// Runs all suites, or those that are named. A failure does not keep the others from running.
pub(crate) fn run(house: &House, names: &[String]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| SUITES.iter().all(|s| s.name != **name)) {
        bail!("no suite `{unknown}`; there are: {}", SUITES.map(|s| s.name).join(", "));
    }
    let chosen =
        SUITES.into_iter().filter(|s| names.is_empty() || names.iter().any(|n| n == s.name));
    let (mut passed, mut failed) = (0, Vec::new());
    for suite in chosen {
        eprintln!("── suite {}", suite.name);
        match (suite.run)(house) {
            Ok(()) => passed += 1,
            Err(error) => {
                eprintln!("suite {} FAILED: {error:#}", suite.name);
                failed.push(suite.name);
            }
        }
    }
    println!("suites: {passed} passed, {} failed", failed.len());
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

fn rust(house: &House) -> Result<()> {
    if let Some(nextest) = tools::find(house, tools::NEXTEST) {
        let arguments = ["nextest", "run", "--workspace", "--locked"];
        return process::run(Command::new(nextest).current_dir(&house.root).args(arguments));
    }
    eprintln!("cargo-nextest cannot be had: falling back to `cargo test`");
    let all = ["test", "--workspace", "--locked", "--lib", "--bins", "--tests", "--examples"];
    process::run(&mut process::cargo(&house.root, &all))
}

fn doc(house: &House) -> Result<()> {
    process::run(&mut process::cargo(&house.root, &["test", "--workspace", "--locked", "--doc"]))
}

/// Every fixture, read by Python's `safetensors`, equals in every byte what our reader says.
fn fixtures(house: &House) -> Result<()> {
    const FIXTURES: &str = "testdata/checkpoints";
    let python = python::environment(house)?;
    let build = ["build", "--locked", "-p", "coldproof-checkpoint", "--example", "dump_tensors"];
    process::run(&mut process::cargo(&house.root, &build))?;
    let program = house.target().join("debug").join("examples").join("dump_tensors");
    let mut dump = Command::new(program);
    dump.current_dir(&house.root);
    let pairs = fs::read_dir(house.root.join(FIXTURES));
    for family in pairs.with_context(|| format!("cannot list `{FIXTURES}`"))? {
        let family = family.with_context(|| format!("cannot list `{FIXTURES}`"))?.path();
        dump.args(["A", "B"].map(|label| family.join(label)).iter().filter(|path| path.is_dir()));
    }
    let seen = process::output(&mut dump).context("`dump_tensors` failed on a fixture")?;
    let listing = house.target().join("dump_tensors.tsv");
    fs::write(&listing, seen).with_context(|| format!("cannot write `{}`", listing.display()))?;
    let mut verify = Command::new(python);
    verify.current_dir(&house.root).arg("testdata/verify_safetensors.py").arg(listing);
    process::run(&mut verify)
}
