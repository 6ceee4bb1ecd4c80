//! Category 4, reload state preservation: what the forward reads survives or is rebuilt.

mod check;
mod experts;
mod launched;
mod rules;

pub(crate) use check::{check, lost};
pub use rules::{
    InventoryError, StateError, StateInventory, StateRule, StateSighting, StateSightings,
};
