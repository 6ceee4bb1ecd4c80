//! `cargo xtask tidy`: the rules of the house that no other tool knows.
//!
//! Each rule is a pure function of texts, so that its test can show a violation and the nearest
//! text that is none.

mod files;
mod imports;
mod lengths;
mod lexer;
mod modules;
mod pages;
mod words;

use std::fmt;

use anyhow::{Result, bail};

pub(crate) use files::{SourceFile, read_all};

use crate::house::House;
use crate::status;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    /// The file, from the root of the checkout.
    path: String,
    /// The line, from 1; 0 for the whole file.
    line: usize,
    /// What is wrong and how to mend it.
    text: String,
}

impl Violation {
    pub(crate) fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// Checks every tracked file.
pub(crate) fn run(house: &House) -> Result<()> {
    let files = read_all(&house.root)?;
    let mut violations: Vec<Violation> = files.iter().flat_map(|file| check(file, house)).collect();
    violations.extend(modules::check(&files));
    violations.extend(pages::check(&files));
    violations.extend(status::check(&files));
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => {
            println!("tidy: {} files, nothing to mend", files.len());
            Ok(())
        }
        count => bail!("tidy: {count} to mend"),
    }
}

fn check(file: &SourceFile, house: &House) -> Vec<Violation> {
    let mut found = words::places(file, &words::Machine::of(house));
    if file.is_code() {
        found.extend(lengths::lines(file));
        found.extend(words::unfinished(file));
    }
    if file.is_rust() {
        let code = lexer::Code::of(&file.text);
        found.extend(lengths::rust(file, &code));
        found.extend(words::engines(file, &code));
        found.extend(words::unsafe_code(file, &code));
        found.extend(imports::check(file, &code));
    }
    found
}
