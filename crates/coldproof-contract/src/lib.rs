//! The rules of a correct live weight update, as plain data and pure functions.
//!
//! Seven rooms, one for each category of weight-reload failure, hold the same three files: `facts`
//! (what a check reads), `rules` (types that make a wrong state unrepresentable) and `check`
//! (facts in, findings out). Nothing here does I/O, reads a clock, starts a thread, depends on hash
//! order, or knows an engine by name.

pub mod caches;
pub mod derived;
pub mod digest;
pub mod evidence;
pub mod lifecycle;
pub mod names;
mod order;
pub mod routing;
pub mod state;
pub mod storage;
pub mod transaction;
pub mod transition;
pub mod verdict;
pub mod words;
