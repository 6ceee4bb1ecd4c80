//! DeepSeek-V3: latent attention, dense first layers, experts chosen by groups beside others that
//! every token takes.

use super::{Block, Builder, Decoder, FeedForward, Mixer};
use crate::layers::{ExpertNames, Norm};

const NAMES: ExpertNames =
    ExpertNames { module: "mlp", parts: ["gate_proj", "up_proj", "down_proj"], fused: true };

/// Declares a deepseek_v3.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        let path = format!("model.layers.{layer}");
        Block {
            input_norm: Norm::declare(builder, &format!("{path}.input_layernorm")),
            mixer: Mixer::declare(builder, layer),
            attended_norm: None,
            post_norm: Norm::declare(builder, &format!("{path}.post_attention_layernorm")),
            feed_forward: FeedForward::experts(builder, layer, NAMES),
            fed_norm: None,
        }
    })
}
