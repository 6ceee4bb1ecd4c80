//! The command line, run by an interpreter.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs one command line (program name first), prints its result, and returns its exit code.
///
/// A cold engine in a process of its own is `python -m coldproof` of the same interpreter.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, argv: Vec<OsString>) -> PyResult<u8> {
    let python: OsString = py.import("sys")?.getattr("executable")?.extract()?;
    let again = vec![python, "-m".into(), "coldproof".into()];
    Ok(py.detach(|| coldproof::main_as(argv, Some(again)).code()))
}
