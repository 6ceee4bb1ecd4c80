//! Layers: what each declares of its slots and sources, and the kernels that it launches.

mod adapted;
mod affine;
mod attention;
mod clamped_experts;
mod embedding;
mod expert_ranks;
mod forward;
mod latent_attention;
mod mlp;
mod moe;
mod norm;
mod router;
mod squared_mlp;
mod state_space;
mod tower;

pub(crate) use affine::Affine;
pub(crate) use attention::{Attention, HeadNorms};
pub(crate) use clamped_experts::ClampedExperts;
pub(crate) use embedding::{Embedding, Head};
pub(crate) use expert_ranks::ExpertRanks;
pub(crate) use forward::{Batch, Forward, Placed};
pub(crate) use latent_attention::LatentAttention;
pub(crate) use mlp::Mlp;
pub(crate) use moe::{ExpertNames, Moe};
pub(crate) use norm::{FinalNorm, Norm};
pub(crate) use router::Router;
pub(crate) use squared_mlp::SquaredMlp;
pub(crate) use state_space::StateMixer;
pub(crate) use tower::Tower;

/// What a layer reports: its device died, or a slot has no storage.
pub(crate) type LayerError = crate::ranks::Failure;
