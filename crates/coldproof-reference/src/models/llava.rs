//! LLaVA: a CLIP tower, a projector, and a llama that reads an image's rows in the place of tokens.

use coldproof_checkpoint::arch::Vision as VisionConfig;
use coldproof_contract::words::{Address, Dtype, Policy, SlotKind};

use super::{Builder, Decoder, Names, llama};
use crate::arena::Region;
use crate::kernels::{Activate, Copy};
use crate::layers::{Affine, Forward, LayerError, Tower};
use crate::slots::{SlotId, SlotSpec};

/// Images whose rows the encoder's cache holds.
pub(crate) const ENCODER_ENTRIES: u32 = 8;
/// Bytes of an F32.
const WORD_BYTES: u64 = 4;

const TEXT: &str = "language_model.";
const PROJECTOR: Names = Names {
    slots: "multi_modal_projector.",
    sources: &["multi_modal_projector.", "model.multi_modal_projector."],
};

/// What images go through before the model.
#[derive(Clone, Debug)]
pub(crate) struct Vision {
    tower: Tower,
    first: Affine,
    second: Affine,
    /// Rows of the images that requests hold and of those that are kept.
    cache: SlotId,
}

/// Declares a llava, whose images are on the first pipeline stage.
pub(crate) fn declare(builder: &mut Builder<'_>) -> Decoder {
    let decoder = llama::declare(builder);
    builder.nest(TEXT);
    for name in builder.catalogue.names() {
        let Some(own) = name.strip_prefix(TEXT) else { continue };
        let other = match own.strip_prefix("model.") {
            Some(rest) => format!("model.{TEXT}{rest}"),
            None => own.to_owned(),
        };
        builder.catalogue.spell(&name, other);
    }
    let first = builder.place.stage.is_first();
    match builder.dims.vision.clone().filter(|_| first) {
        Some(vision) => decoder.behind(Vision::declare(builder, &vision)),
        None => decoder,
    }
}

impl Vision {
    fn declare(builder: &mut Builder<'_>, vision: &VisionConfig) -> Self {
        let (narrow, wide) = (vision.hidden_size, builder.dims.hidden);
        let shard = builder.shard;
        let shape = [u64::from(ENCODER_ENTRIES), vision.image_tokens(), wide];
        let cache = SlotSpec::unsourced(
            "vision_tower/encoder_cache".to_owned(),
            SlotKind::Scratch,
            Dtype::F32,
            &shape,
            Policy::Invalidate,
        );
        Self {
            tower: Tower::declare(builder, vision),
            first: Affine::column(builder, PROJECTOR, "linear_1", [wide, narrow], shard),
            second: Affine::row(builder, PROJECTOR, "linear_2", [wide, wide], shard),
            cache: builder.slots.declare(SlotSpec { region: Region::KvCache, ..cache }),
        }
    }

    /// Computes an image's rows from its prepared pixels into an entry of the cache.
    pub(crate) fn encode(
        &self,
        forward: &mut Forward<'_>,
        pixels: Address,
        entry: u32,
    ) -> Result<(), LayerError> {
        let Some(vision) = forward.dims.vision.clone() else { return Ok(()) };
        let rows = self.tower.forward(forward, pixels, &vision)?;
        let m = vision.image_tokens() as usize;
        let inner = self.first.forward(forward, rows, m)?;
        let width = self.first.outputs();
        let activation = vision.projector_activation;
        forward.launch(Activate { activation, y: inner, m, width })?;
        let source = self.second.forward(forward, inner, m)?;
        let target = self.entry(forward, entry)?;
        let bytes = (vision.image_tokens() * forward.dims.hidden * WORD_BYTES) as usize;
        forward.launch(Copy { source, target, bytes, rows: m })
    }

    /// Where the rows of an entry lie.
    pub(crate) fn entry(&self, forward: &Forward<'_>, entry: u32) -> Result<Address, LayerError> {
        let tokens = forward.dims.vision.as_ref().map_or(0, VisionConfig::image_tokens);
        let bytes = tokens * forward.dims.hidden * WORD_BYTES;
        Ok(forward.slots.address(self.cache)?.plus(u64::from(entry) * bytes))
    }
}
