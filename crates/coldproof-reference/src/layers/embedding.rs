//! The vocabulary at both ends: embedding and output projection, cut by rows over the ranks.

use coldproof_checkpoint::arch::Family;
use coldproof_contract::words::{Address, Dtype, Policy, SlotKind, SlotName};

use super::{Forward, LayerError};
use crate::kernels::{Embed, Gather, Scale, SelectRows};
use crate::loader::{HookKind, Target};
use crate::models::{Builder, Dims};
use crate::slots::{SlotId, SlotSpec};

const HEAD: &str = "lm_head.weight";

/// The embedding table, and the factor of its rows where the family has one.
#[derive(Clone, Debug)]
pub(crate) struct Embedding {
    weight: SlotId,
    normalizer: Option<SlotId>,
}

impl Embedding {
    /// A table with its source.
    pub(crate) fn declare(builder: &mut Builder<'_>) -> Self {
        Self::declare_at(builder, name(builder.dims))
    }

    /// A table of that name.
    pub(crate) fn declare_at(builder: &mut Builder<'_>, name: &str) -> Self {
        let weight = table(builder, name);
        let factor = builder.dims.normalizer;
        Self { weight, normalizer: factor.map(|factor| declare_normalizer(builder, factor)) }
    }

    /// The residual stream of the batch's tokens.
    pub(crate) fn forward(&self, forward: &mut Forward<'_>) -> Result<Address, LayerError> {
        let (m, hidden) = (forward.batch.rows, forward.dims.hidden as usize);
        let shard_rows = forward.shard.vocabulary_rows(forward.dims.vocabulary) as usize;
        let (ids, table) = (forward.batch.ids, forward.slots.address(self.weight)?);
        let y = forward.buffer(m, hidden, "residual")?;
        forward.launch(Embed { ids, table, y, m, hidden, shard_rows })?;
        forward.launch(SelectRows { ids, y, m, hidden, shard_rows })?;
        if let Some(normalizer) = self.normalizer {
            let factor = forward.slots.address(normalizer)?;
            forward.launch(Scale { y, factor, m, width: hidden })?;
        }
        forward.place(y)?;
        Ok(y)
    }
}

/// The output projection.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    weight: SlotId,
}

impl Head {
    /// A table of its own, or another name of the embedding's.
    pub(crate) fn declare(builder: &mut Builder<'_>, embedding: Option<&Embedding>) -> Self {
        let Some(embedding) = embedding.filter(|_| builder.dims.tied) else {
            return Self::declare_at(builder, HEAD);
        };
        builder.slots.alias(SlotName::from(HEAD), embedding.weight);
        let owner = builder.source(name(builder.dims));
        builder.catalogue.repeat(HEAD.to_owned(), owner);
        Self { weight: embedding.weight }
    }

    /// A table of its own, of that name.
    pub(crate) fn declare_at(builder: &mut Builder<'_>, name: &str) -> Self {
        Self { weight: table(builder, name) }
    }

    /// Logits, F32 `[rows, vocabulary]`.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        rows: usize,
    ) -> Result<Address, LayerError> {
        let vocabulary = forward.dims.vocabulary;
        let shard = forward.shard.vocabulary_rows(vocabulary) as usize;
        let hidden = forward.dims.hidden as usize;
        let own =
            forward.column_parallel(self.weight, (x, hidden), (shard, "logits_shard"), rows)?;
        let y = forward.buffer(rows, vocabulary as usize, "logits")?;
        forward.launch(Gather { x: own, y, m: rows, shard, total: vocabulary as usize })?;
        Ok(y)
    }
}

/// A buffer that no checkpoint has: it is made with the model and never loaded.
fn declare_normalizer(builder: &mut Builder<'_>, factor: f32) -> SlotId {
    let (name, kind) = ("model.normalizer".to_owned(), SlotKind::Buffer);
    let spec = SlotSpec::unsourced(name, kind, Dtype::F32, &[1], Policy::Preserve);
    let buffer = builder.slots.declare(spec);
    builder.hook("model", HookKind::Normalizer { buffer, factor });
    buffer
}

/// What the family calls the embedding.
const fn name(dims: &Dims) -> &'static str {
    match dims.family {
        Family::Mamba2 => "backbone.embeddings.weight",
        _ => "model.embed_tokens.weight",
    }
}

fn table(builder: &mut Builder<'_>, name: &str) -> SlotId {
    let (vocabulary, hidden) = (builder.dims.vocabulary, builder.dims.hidden);
    let slot = builder.parameter(name, &[builder.shard.vocabulary_rows(vocabulary), hidden]);
    builder.sharded(name.to_owned(), &[vocabulary, hidden], slot, Target::Vocabulary);
    slot
}
