//! Where the experts of a layer are: as a rank states it, and as it is read from memory.

use serde::{Deserialize, Serialize};

use crate::words::{ExpertPlace, SlotName};

/// Where one rank says that the experts of a layer are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertPlacementFact {
    /// The module that holds them.
    pub layer: String,
    /// The slot that the forward reads them by: I32, for each expert of the model its place in this
    /// rank's stack, or a negative number where it is on another rank.
    pub map: SlotName,
    /// The version of the placement.
    pub version: u64,
    /// Where each of the model's is, by its number.
    pub places: Vec<ExpertPlace>,
}

/// The map of a layer's experts, read from a rank's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertMapFact {
    /// The module that holds the experts.
    pub layer: String,
    /// The slot that was read.
    pub map: SlotName,
    /// For each expert of the model its place in this rank's stack; absent where it is on another
    /// rank.
    pub places: Vec<Option<u64>>,
}
