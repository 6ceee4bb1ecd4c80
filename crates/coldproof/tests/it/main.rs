//! Whole-program tests: the binary, run as a user runs it.

#![expect(clippy::unwrap_used, reason = "a test whose case cannot be set up has failed")]

mod adapters;
mod check;
mod disk;
mod faults;
mod hostile;
mod killed;
mod known;
mod placement;
mod prove;
mod replicas;
mod support;
mod tiers;
mod tools;
mod usage;
