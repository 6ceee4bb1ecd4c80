//! The suite on a real model: SmolLM2-135M, a tied llama with 9 heads and 3 kv heads.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::house::House;
use crate::{process, python};

/// Ends a `prove` that hangs. It takes well under two minutes on two cores.
const PROVE_LIMIT: Duration = Duration::from_secs(600);
const MAKE: &str = "testdata/smollm2/make.py";

/// Cold logits of A and B against `expected.json`, then `prove` from A to B.
pub(crate) fn run(house: &House) -> Result<()> {
    let python = python::environment(house)?;
    let (a, b) = (house.smollm2().join("A"), house.smollm2().join("B"));
    make_a(house, &python, &a)?;
    let build = ["build", "--release", "--locked", "-p", "coldproof"];
    process::run(&mut process::cargo(&house.root, &build))?;
    let coldproof = house.target().join("release").join("coldproof");
    if b.exists() {
        fs::remove_dir_all(&b).with_context(|| format!("cannot remove `{}`", b.display()))?;
    }
    let mut perturb = Command::new(&coldproof);
    process::run(perturb.arg("perturb").args([&a, &b]).args(["--seed", "7"]))?;
    let mut check = Command::new(&python);
    check.current_dir(&house.root).arg("testdata/smollm2/check.py");
    process::run(check.arg(&coldproof).args([&a, &b]))?;
    let mut prove = Command::new(&coldproof);
    prove.arg("prove").arg("--from").arg(&a).arg("--to").arg(&b);
    let took = process::run_within(&mut prove, PROVE_LIMIT)?;
    eprintln!("`prove` on SmolLM2-135M took {:.1} s", took.as_secs_f64());
    Ok(())
}

/// Makes A unless the same script made it before.
fn make_a(house: &House, python: &Path, a: &Path) -> Result<()> {
    let script = house.root.join(MAKE);
    let recipe = fs::read_to_string(&script).with_context(|| format!("cannot read `{MAKE}`"))?;
    let stamp = house.smollm2().join("make.stamp");
    if fs::read_to_string(&stamp).is_ok_and(|made_by| made_by == recipe) {
        return Ok(());
    }
    process::run(Command::new(python).arg(&script).arg(a))?;
    fs::write(&stamp, recipe).with_context(|| format!("cannot write `{}`", stamp.display()))
}
