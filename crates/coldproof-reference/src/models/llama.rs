//! Llama: grouped-query attention with rotary embedding, and a gated projection.

use super::{Block, Builder, Decoder, FeedForward};
use crate::layers::HeadNorms;

/// Declares a llama.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        Block::pre_norm(builder, layer, HeadNorms::None, |builder| {
            FeedForward::dense(builder, layer)
        })
    })
}
