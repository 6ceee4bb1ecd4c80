//! Slots: named storages that the forward reads.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A slot's name within its rank: owner path, then name, joined by a dot. What no module owns
/// follows a slash: `model.layers.0.mlp.experts/kernel.workspace`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotName(pub String);

impl SlotName {
    /// The module path that owns the slot.
    #[must_use]
    pub fn owner(&self) -> &str {
        match self.0.split_once('/') {
            Some((owner, _)) => owner,
            None => self.0.rsplit_once('.').map_or("", |(owner, _)| owner),
        }
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for SlotName {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// What a slot is to the forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotKind {
    /// Written by a loader from checkpoint sources.
    Parameter,
    /// Computed or kept by the model, in no checkpoint.
    Buffer,
    /// Computed from other slots by post-load, with declared inputs.
    Derived,
    /// Written and read within one forward; its state between forwards may matter.
    Scratch,
    /// Another name of a storage that a slot owns.
    Alias,
    /// An object whose bytes cannot be read; tracked by identity alone.
    Opaque,
}

/// What an update does to a piece of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Recomputed or rewritten from the new weights.
    Refresh,
    /// Emptied.
    Invalidate,
    /// Kept bit for bit.
    Preserve,
}
