//! Category 7, cache coherence: nothing of an old generation is served as new.

mod adapters;
mod check;
mod rules;
mod tiers;

pub(crate) use check::check;
pub use rules::{CacheChoice, CacheError, CacheInventory, CacheSighting};
