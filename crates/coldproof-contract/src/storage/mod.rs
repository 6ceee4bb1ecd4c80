//! Category 1, storage identity: an address that a graph retains does not change.

mod check;
mod facts;
mod recaptured;
mod replays;
mod retained;
mod rules;
#[cfg(test)]
mod staleness;

pub(crate) use check::check;
pub use retained::{Class, Fate, MemoryEvent, MemoryLog, Owner, Owners, Retained};
pub use rules::{
    Change, Field, Hold, Outcome, Registry, RegistryDraft, RegistryError, Sighting, SlotIndex,
    Snapshot,
};
