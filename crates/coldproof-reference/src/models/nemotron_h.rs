//! Nemotron-H: state-space mixers, some attention without rotation, MLPs without a gate; its
//! sources have other names than its slots, which the builder knows.

use super::{Builder, Decoder, MixedLayer};

/// Declares a nemotron_h.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        MixedLayer::declare(builder, layer, &format!("model.layers.{layer}"))
    })
}
