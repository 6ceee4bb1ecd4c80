//! Mamba 2: state-space mixers alone.

use super::{Builder, Decoder, MixedLayer};

/// Declares a mamba2.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    Decoder::declare(builder, |builder, layer| {
        MixedLayer::declare(builder, layer, &format!("backbone.layers.{layer}"))
    })
}
