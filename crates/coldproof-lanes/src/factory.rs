//! How a run gets its engines.

use crate::engine::{EngineUnderTest, Reply, StartSpec};

/// Starts engines. The engine under test and the cold one come through different doors: no fault
/// and no lie reaches the cold one.
pub trait EngineFactory: Sync {
    /// How many engines of so many ranks may run beside each other. More than one says that the
    /// engine can do the same in every lane, and that `start` may be called by several threads.
    fn together(&self, _ranks: u32) -> usize {
        1
    }

    /// Starts the engine under test for one arm.
    ///
    /// # Errors
    /// It could not be started.
    fn start(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>>;

    /// Starts an independent engine in its own process.
    ///
    /// # Errors
    /// It could not be started.
    fn start_cold(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>>;
}
