//! Qwen3: llama with a norm of every query and key head.

use super::{Block, Builder, Decoder, FeedForward};
use crate::layers::{Attention, HeadNorms, Mlp, Norm};

/// Declares a qwen3.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        let path = format!("model.layers.{layer}");
        Block {
            input_norm: Norm::declare(builder, &format!("{path}.input_layernorm")),
            attention: Attention::declare(builder, &path, HeadNorms::QueryAndKey),
            post_norm: Norm::declare(builder, &format!("{path}.post_attention_layernorm")),
            feed_forward: FeedForward::Dense(Mlp::declare(builder, &path)),
        }
    })
}
