//! The stream of a device: launches run at once, or are recorded.

use super::Graph;

/// What a launch does now.
#[derive(Debug, Default)]
pub(crate) enum Stream {
    /// It runs.
    #[default]
    Eager,
    /// It is recorded and does not run.
    Capture(Graph),
}

impl Stream {
    /// A stream that records a graph of that name.
    pub(crate) fn capture(name: &str) -> Self {
        Self::Capture(Graph { name: name.to_owned(), nodes: Vec::new(), pool: Vec::new() })
    }
}
