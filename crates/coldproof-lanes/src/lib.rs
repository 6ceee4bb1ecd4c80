//! Lanes drive an engine through an update and record the evidence.
//!
//! An engine is behind two traits, [`engine::Engine`] for commands and claims and
//! [`engine::Probe`] for observation; a lane never judges what it sees.

pub mod adapter_swap;
mod adapter_updates;
pub mod adapters;
mod caches;
mod census;
mod composite;
mod control;
mod differential;
pub mod driver;
pub mod engine;
mod expert_maps;
pub mod factory;
pub mod inputs;
mod kernel_format;
pub mod lane;
mod names;
mod orders;
mod origins;
mod partial;
pub mod payload;
pub mod placement;
mod places;
pub mod protocol;
mod prune;
pub mod read_back;
pub mod recorder;
pub mod requests;
mod routing;
mod run;
mod session;
mod tiers;

pub use run::run;
