//! Families: one file each, about as long as its mathematics.

mod builder;
mod decoder;
mod deepseek_v3;
mod dims;
mod drafter;
mod gemma3;
mod gpt_oss;
mod llama;
mod llava;
mod mamba2;
mod mixtral;
mod mtp;
mod names;
mod nemotron_h;
mod qwen2;
mod qwen3;
mod qwen3_moe;

pub(crate) use builder::{Builder, KvShape};
pub(crate) use decoder::{Block, Decoder, FeedForward, MixedLayer, Mixer, Outputs};
pub(crate) use dims::{Dims, Drafts, Experts, Rotary};
pub(crate) use drafter::{DraftModel, Drafter};
pub(crate) use llava::{ENCODER_ENTRIES, Vision};
pub(crate) use mtp::Mtp;
pub(crate) use names::Names;
