//! Whole-program tests: the binary, run as a user runs it.

mod check;
mod faults;
mod hostile;
mod prove;
mod support;
mod tools;
mod usage;
