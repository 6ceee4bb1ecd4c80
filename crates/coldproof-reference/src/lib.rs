//! An inference engine that is right and can be made wrong.
//!
//! The device layer, one simulated device a rank: [`arena`] (memory), [`kernels`] (what a forward
//! launches), [`graph`] (captured launches), [`collective`] and [`groups`] (ranks), [`trace`] (what
//! ran) and [`device`], their façade. The model side, on top of it: `models` (families) of
//! `layers`, `loader`, `caches` and `ranks` (a thread a device) behind [`engine`], [`adapters`]
//! beside them, and [`faults`], each with its twin.

pub mod adapters;
pub mod arena;
mod caches;
pub mod collective;
pub mod device;
pub mod engine;
pub mod faults;
pub mod graph;
pub mod groups;
pub mod kernels;
mod layers;
mod loader;
mod models;
mod ranks;
mod slots;
pub mod trace;
