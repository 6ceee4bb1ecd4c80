//! Mixtral: llama whose every layer chooses some of many experts.

use super::{Block, Builder, Decoder, FeedForward};
use crate::layers::{ExpertNames, HeadNorms};

const NAMES: ExpertNames =
    ExpertNames { module: "block_sparse_moe", parts: ["w1", "w3", "w2"], fused: false };

/// Declares a mixtral.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        Block::pre_norm(builder, layer, HeadNorms::None, |builder| {
            FeedForward::experts(builder, layer, NAMES)
        })
    })
}
