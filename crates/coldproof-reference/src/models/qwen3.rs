//! Qwen3: llama with a norm of every query and key head.

use super::{Block, Builder, Decoder, FeedForward};
use crate::layers::HeadNorms;

/// Declares a qwen3.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        Block::pre_norm(builder, layer, HeadNorms::QueryAndKey, |builder| {
            FeedForward::dense(builder, layer)
        })
    })
}
