//! Category 2, runtime value refresh: what is computed from weights follows them.

mod check;
mod rules;

pub(crate) use check::{check, read_text};
pub use rules::{DerivedError, DerivedGraph, Stale};
