//! Programs that tasks use where the machine has them, and install for themselves where not.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::house::House;
use crate::process;

/// A program in a package of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    /// The package and the program, for example `cargo-nextest`.
    name: &'static str,
    /// The version that is installed where there is none.
    version: &'static str,
    /// What answers with success where it is installed.
    probe: &'static [&'static str],
}

/// The test runner.
pub(crate) const NEXTEST: Tool =
    Tool { name: "cargo-nextest", version: "0.9.128", probe: &["nextest", "--version"] };

/// Licences, sources and duplicates of dependencies.
pub(crate) const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", probe: &["--version"] };

/// The program, installed first where needed. Nothing where it cannot be had.
pub(crate) fn find(house: &House, tool: Tool) -> Option<PathBuf> {
    let installed = house.tools().join("bin").join(tool.name);
    let on_path = PathBuf::from(tool.name);
    if let Some(found) = [installed.clone(), on_path].into_iter().find(|path| works(path, tool)) {
        return Some(found);
    }
    eprintln!("installing {} {} (some minutes, once)", tool.name, tool.version);
    let root = house.tools();
    let arguments = ["install", "--locked", "--quiet", tool.name, "--version", tool.version];
    let mut install = process::cargo(&house.root, &arguments);
    // The tool works on little input: building it fast matters more than running it fast.
    install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_LTO", "off");
    install.arg("--root").arg(&root);
    match process::run(&mut install) {
        Ok(()) => works(&installed, tool).then_some(installed),
        Err(error) => {
            eprintln!("{error:#}");
            None
        }
    }
}

fn works(program: &Path, tool: Tool) -> bool {
    process::output(Command::new(program).args(tool.probe)).is_some()
}
