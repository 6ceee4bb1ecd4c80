//! Checkpoints: safetensors by positioned reads, the catalogue of model families, two-way name
//! accounting, digests, perturbation and sentinels.
//!
//! A checkpoint is hostile input: every size read from a file is checked before it is used, and
//! each fault has its own name. Nothing is memory-mapped: a trainer may rewrite a file at any time.

mod adapter;
mod adapter_sources;
pub mod arch;
mod companions;
mod compose;
mod container;
mod digests;
mod dtype;
mod error;
mod json;
mod lora;
mod mix;
mod name_map;
mod perturb;
mod respell;
mod sentinel;
mod ties;
mod widen;
mod zeros;

pub use adapter::{ADAPTER_FILES, Adapter};
pub use adapter_sources::{AdapterSource, adapter_sources};
pub use compose::compose;
pub use container::{
    Checkpoint, FileIdentity, Layout, TensorReader, TensorRef, TensorSpec, write_checkpoint,
};
pub use digests::{CheckpointDigest, digest_checkpoint, digest_unsigned};
pub use error::{CheckpointError, Fault};
pub use json::JsonError;
pub use lora::{Factors, Lora, factor_name};
pub use mix::mix;
pub use name_map::{Accounting, Ambiguous, Mismatched, Missing, NameMap, RedundantAlias};
pub use perturb::{UlpMove, perturb, perturb_apart, perturb_ulp};
pub use respell::{respell, rules_in, rules_of, with_alias};
pub use sentinel::{Origin, SentinelPlan, digit_of};
pub use ties::{redundant_differs, ties_of};
pub use widen::widen;
