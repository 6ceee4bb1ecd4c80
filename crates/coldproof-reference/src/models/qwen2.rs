//! Qwen2: llama with a bias of queries, keys and values.

use super::{Builder, Decoder, llama};

/// Declares a qwen2: attention takes the biases that its dimensions name.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    llama::declare(builder)
}
