//! Category 7, cache coherence: nothing of an old generation is served as new.

mod adapters;
mod check;
mod factors;
mod rules;
mod tiers;

pub(crate) use check::check;
pub(crate) use factors::check_factors;
pub use rules::{CacheChoice, CacheError, CacheInventory, CacheSighting};
