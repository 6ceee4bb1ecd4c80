//! Who says so. Only what was observed leads to a pass.

use serde::{Deserialize, Serialize};

/// Where a fact comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provenance {
    /// The lane did it.
    Driven,
    /// The engine says it of itself.
    Claimed,
    /// A probe read it off memory, the allocator, a graph, the launch trace or the output.
    Observed,
}

/// A fact that an engine states of itself. A faulty engine may state it in good faith.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed<T>(pub T);

/// A fact that a probe observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed<T>(pub T);

impl<T> std::ops::Deref for Claimed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> std::ops::Deref for Observed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
