//! A layer that predicts the token after the next (multi-token prediction), as DeepSeek-V3 has it:
//! each token beside the model's hidden row before it goes through one decoder layer and a head.

use coldproof_contract::words::Address;

use super::{Block, Builder};
use crate::kernels::Join;
use crate::layers::{Embedding, Forward, Head, LayerError, Norm};
use crate::slots::SlotId;

/// The layer, with its own table of embeddings and its own head.
///
/// Row `i` is of the token at position `i + 1` and the hidden row of position `i`, in the place of
/// position `i`, as in vLLM. A row that begins a sequence is computed like any other.
#[derive(Clone, Debug)]
pub(crate) struct Mtp {
    embedding: Embedding,
    embedded_norm: Norm,
    hidden_norm: Norm,
    joined: SlotId,
    block: Block,
    rotary: SlotId,
    norm: Norm,
    head: Head,
}

impl Mtp {
    /// The layer of this number, which `block` declares.
    pub(crate) fn declare(
        builder: &mut Builder<'_>,
        layer: u64,
        rotary: SlotId,
        block: impl Fn(&mut Builder<'_>, u64) -> Block,
    ) -> Self {
        let path = |name: &str| format!("model.layers.{layer}.{name}");
        let hidden = builder.dims.hidden;
        Self {
            embedding: Embedding::declare_at(builder, &path("embed_tokens.weight")),
            embedded_norm: Norm::declare(builder, &path("enorm")),
            hidden_norm: Norm::declare(builder, &path("hnorm")),
            joined: builder.replicated(&path("eh_proj.weight"), &[hidden, 2 * hidden]),
            block: block(builder, layer),
            rotary,
            norm: Norm::declare(builder, &path("shared_head.norm")),
            head: Head::declare_at(builder, &path("shared_head.head.weight")),
        }
    }

    /// Logits, F32 `[1, vocabulary]`, of the token after the batch's last row.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        hidden: Address,
    ) -> Result<Address, LayerError> {
        let (m, width) = (forward.batch.rows, forward.dims.hidden as usize);
        let embedded = self.embedding.forward(forward)?;
        let a = self.embedded_norm.forward(forward, embedded)?;
        let b = self.hidden_norm.forward(forward, hidden)?;
        let y = forward.buffer(m, 2 * width, "joined")?;
        forward.launch(Join { a, b, y, m, width })?;
        let joined = (y, 2 * width);
        let residual = forward.column_parallel(self.joined, joined, (width, "residual"), m)?;
        let table = forward.slots.address(self.rotary)?;
        self.block.forward(forward, residual, Some(table))?;
        let normed = self.norm.forward(forward, residual)?;
        let last = forward.last_rows(normed, 1);
        self.head.forward(forward, last, 1)
    }
}
