//! The files that the rules read: all that git tracks or would track.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::process;

/// A text file.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    /// Its path from the root of the checkout, with slashes.
    pub(crate) path: String,
    /// What it holds.
    pub(crate) text: String,
}

impl SourceFile {
    /// Whether it is Rust.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it is a program. Settings in TOML are none: their tables cannot be broken.
    pub(crate) fn is_code(&self) -> bool {
        [".rs", ".py", ".sh", ".ci/run"].iter().any(|end| self.path.ends_with(end))
    }

    /// Whether it holds tests alone: a file or folder named for them.
    pub(crate) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, "tests" | "tests.rs"))
    }

    /// A file made up for a test.
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), text: text.into() }
    }
}

/// Every text file, in the order of paths.
pub(crate) fn read_all(root: &Path) -> Result<Vec<SourceFile>> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let listing =
        process::output(std::process::Command::new("git").current_dir(root).args(arguments))
            .context("`git ls-files` failed: tidy needs a git checkout")?;
    let listing = String::from_utf8(listing).context("a path is not UTF-8")?;
    let mut paths: Vec<&str> = listing.split_terminator('\0').collect();
    paths.sort_unstable();
    paths.dedup();
    let mut files = Vec::new();
    for path in paths {
        // A tracked file may have been removed and not yet committed.
        let Ok(bytes) = fs::read(root.join(path)) else { continue };
        if bytes.contains(&0) {
            continue;
        }
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile { path: path.to_owned(), text });
        }
    }
    Ok(files)
}
