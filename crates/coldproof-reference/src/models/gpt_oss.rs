//! GPT-OSS: biases everywhere, a sink for each head, every other layer over a window, experts with
//! a clamped gate. All but the experts is in the dimensions.

use super::{Block, Builder, Decoder, FeedForward};
use crate::layers::HeadNorms;

/// Declares a gpt_oss.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        Block::pre_norm(builder, layer, HeadNorms::None, |builder| {
            FeedForward::clamped(builder, layer)
        })
    })
}
