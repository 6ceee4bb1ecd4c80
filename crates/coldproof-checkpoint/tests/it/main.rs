//! The checkpoint crate from the outside: fixtures, hostile files, round trips.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

mod digests;
mod fixtures;
mod fuzz;
mod hostile;
#[path = "../../../coldproof-contract/tests/checks/support/mutate.rs"]
mod mutate;
mod perturbed;
mod scale;
mod sentinels;
mod support;
mod tied;
mod written;
