//! Engines behind the two traits.

mod absent;
mod reference;

pub use absent::Absent;
pub use reference::Reference;
