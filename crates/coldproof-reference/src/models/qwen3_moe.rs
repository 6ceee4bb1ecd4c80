//! Qwen3-MoE: qwen3 whose sparse layers choose some of many experts.

use super::{Block, Builder, Decoder, FeedForward};
use crate::layers::{Attention, HeadNorms, Mlp, Moe, Norm};

/// Declares a qwen3_moe.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        let path = format!("model.layers.{layer}");
        let experts = builder.dims.experts.clone();
        let sparse = experts.filter(|experts| experts.layers.get(layer as usize) == Some(&true));
        Block {
            input_norm: Norm::declare(builder, &format!("{path}.input_layernorm")),
            attention: Attention::declare(builder, &path, HeadNorms::QueryAndKey),
            post_norm: Norm::declare(builder, &format!("{path}.post_attention_layernorm")),
            feed_forward: match sparse {
                Some(experts) => FeedForward::Experts(Moe::declare(builder, &path, &experts)),
                None => FeedForward::Dense(Mlp::declare(builder, &path)),
            },
        }
    })
}
