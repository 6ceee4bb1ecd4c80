//! Gemma 3: both halves of a layer are normed before and after, and most layers see a window.

use super::{Block, Builder, Decoder, FeedForward, Mixer};
use crate::layers::{Attention, HeadNorms, Norm};

/// Declares a gemma3.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        let norm = |builder: &mut Builder<'_>, name: &str| {
            Norm::declare(builder, &format!("model.layers.{layer}.{name}_layernorm"))
        };
        Block {
            input_norm: norm(builder, "input"),
            mixer: Mixer::Heads(Attention::declare(builder, layer, HeadNorms::QueryAndKey)),
            attended_norm: Some(norm(builder, "post_attention")),
            post_norm: norm(builder, "pre_feedforward"),
            feed_forward: FeedForward::dense(builder, layer),
            fed_norm: Some(norm(builder, "post_feedforward")),
        }
    })
}
