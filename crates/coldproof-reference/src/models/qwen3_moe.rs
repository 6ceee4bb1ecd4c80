//! Qwen3-MoE: qwen3 whose sparse layers choose some of many experts.

use super::{Block, Builder, Decoder, FeedForward};
use crate::layers::{ExpertNames, HeadNorms};

const NAMES: ExpertNames =
    ExpertNames { module: "mlp", parts: ["gate_proj", "up_proj", "down_proj"], fused: true };

/// Declares a qwen3_moe.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        Block::pre_norm(builder, layer, HeadNorms::QueryAndKey, |builder| {
            FeedForward::experts(builder, layer, NAMES)
        })
    })
}
