//! The engine against numbers that transformers computed, against itself, and with its faults.

#![expect(clippy::unwrap_used, reason = "a helper that cannot set up a test fails it")]

mod adapter_updates;
mod adapters;
mod cold;
mod degrees;
mod drafts;
mod faults;
mod fixtures;
mod images;
mod kernel_format;
mod partial;
mod placement;
mod refusals;
mod replicas;
mod sleep;
mod tiers;
mod update;
