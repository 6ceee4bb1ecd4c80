//! DeepSeek-V3: latent attention, dense first layers, experts chosen by groups beside others that
//! every token takes, and a layer that predicts the token after the next.

use super::{Block, Builder, Decoder, Drafter, FeedForward, Mixer, Mtp};
use crate::layers::{ExpertNames, Norm};

const NAMES: ExpertNames =
    ExpertNames { module: "mlp", parts: ["gate_proj", "up_proj", "down_proj"], fused: true };

/// Declares a deepseek_v3.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    let decoder = Decoder::declare(builder, block);
    let further = builder.dims.mtp_layers > 0 && builder.place.stage.is_last();
    match decoder.rotary().filter(|_| further) {
        Some(rotary) => {
            let mtp = Mtp::declare(builder, builder.dims.layers, rotary, block);
            decoder.drafted_by(Drafter::Mtp(Box::new(mtp)))
        }
        None => decoder,
    }
}

fn block(builder: &mut Builder<'_>, layer: u64) -> Block {
    let path = format!("model.layers.{layer}");
    Block {
        input_norm: Norm::declare(builder, &format!("{path}.input_layernorm")),
        mixer: Mixer::declare(builder, layer),
        attended_norm: None,
        post_norm: Norm::declare(builder, &format!("{path}.post_attention_layernorm")),
        feed_forward: FeedForward::experts(builder, layer, NAMES),
        fed_norm: None,
    }
}
