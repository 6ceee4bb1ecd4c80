//! A pre-norm decoder: what the families have in common.

use coldproof_contract::words::{Address, Dtype, Policy, SlotKind};

use super::Builder;
use crate::layers::{Attention, Embedding, FinalNorm, Forward, Head, LayerError, Mlp, Moe, Norm};
use crate::loader::HookKind;
use crate::slots::{SlotId, SlotSpec};

/// The second half of a decoder layer.
#[derive(Clone, Debug)]
pub(crate) enum FeedForward {
    /// One gated projection.
    Dense(Mlp),
    /// Some of many.
    Experts(Moe),
}

/// One decoder layer.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Before attention.
    pub(crate) input_norm: Norm,
    /// Attention over the paged cache.
    pub(crate) attention: Attention,
    /// Before the second half.
    pub(crate) post_norm: Norm,
    /// The second half.
    pub(crate) feed_forward: FeedForward,
}

/// A whole decoder.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    embedding: Embedding,
    rotary: SlotId,
    blocks: Vec<Block>,
    norm: FinalNorm,
    head: Head,
}

impl Decoder {
    /// Declares a decoder whose layers `block` declares.
    pub(crate) fn declare(
        builder: &mut Builder<'_>,
        block: impl Fn(&mut Builder<'_>, u64) -> Block,
    ) -> Self {
        let embedding = Embedding::declare(builder);
        let rotary = declare_rotary(builder);
        let blocks = (0..builder.dims.layers).map(|layer| block(builder, layer)).collect();
        let norm = FinalNorm::declare(builder);
        let head = Head::declare(builder, &embedding);
        Self { embedding, rotary, blocks, norm, head }
    }

    /// Logits, F32 `[rows, vocabulary]`, of every row of the batch or of its last one alone.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        last_row_alone: bool,
    ) -> Result<Address, LayerError> {
        let rotary = forward.slots.address(self.rotary)?;
        let residual = self.embedding.forward(forward)?;
        for block in &self.blocks {
            let kept = forward.mark();
            block.forward(forward, residual, rotary)?;
            forward.release(kept)?;
        }
        let rows = if last_row_alone { 1 } else { forward.batch.rows };
        let residual = forward.last_rows(residual, rows);
        let normed = self.norm.forward(forward, residual, rows)?;
        self.head.forward(forward, normed, rows)
    }
}

impl Block {
    /// Adds this layer to the residual stream in place.
    fn forward(
        &self,
        forward: &mut Forward<'_>,
        residual: Address,
        rotary: Address,
    ) -> Result<(), LayerError> {
        let normed = self.input_norm.forward(forward, residual)?;
        let attended = self.attention.forward(forward, normed, rotary)?;
        forward.add(residual, attended)?;
        let normed = self.post_norm.forward(forward, residual)?;
        let fed = match &self.feed_forward {
            FeedForward::Dense(mlp) => mlp.forward(forward, normed)?,
            FeedForward::Experts(moe) => moe.forward(forward, normed)?,
        };
        forward.add(residual, fed)
    }
}

fn declare_rotary(builder: &mut Builder<'_>) -> SlotId {
    let shape = [builder.dims.max_positions, builder.dims.head_dim];
    let table = builder.slots.declare(SlotSpec::unsourced(
        "model.rotary_emb.cos_sin_cache".to_owned(),
        SlotKind::Buffer,
        Dtype::F32,
        &shape,
        Policy::Preserve,
    ));
    builder.hook("model.rotary_emb", HookKind::Rotary { table });
    table
}
