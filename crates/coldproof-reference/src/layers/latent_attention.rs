//! Attention over latent keys and values (MLA), computed in the latent space with matrices that
//! post-load takes out of `kv_b_proj`.

use coldproof_checkpoint::arch::Mla;
use coldproof_contract::words::{Address, Dtype, Policy, SlotKind};

use super::attention::OutputKernel;
use super::{Forward, LayerError};
use crate::kernels::{
    Columns, HeadLinear, LatentAttention as Attend, LatentDims, LatentRope, LatentWrite, Paging,
    SliceNorm,
};
use crate::loader::{HookKind, Target};
use crate::models::{Builder, Dims};
use crate::slots::{SlotId, SlotSpec};

/// How queries are projected.
#[derive(Clone, Debug)]
enum Queries {
    /// Through a compressed row, beside that of keys and values.
    Compressed { fused: SlotId, norm: SlotId, expand: SlotId, rank: u64 },
    /// At once; keys and values are compressed alone.
    Direct { project: SlotId, compress: SlotId },
}

/// Matrices that no checkpoint holds: each head's own part of `kv_b_proj`.
#[derive(Clone, Debug)]
struct Absorbed {
    /// BF16 `[heads, nope, rank]`: from a query into the latent space.
    key: SlotId,
    /// BF16 `[heads, rank, value]`: from attended latents to a head's output.
    value: SlotId,
}

/// A latent attention layer.
#[derive(Clone, Debug)]
pub(crate) struct LatentAttention {
    queries: Queries,
    latent_norm: SlotId,
    absorbed: Absorbed,
    output: OutputKernel,
    cache: SlotId,
    heads: u64,
    mla: Mla,
}

impl LatentAttention {
    /// The attention of this layer.
    pub(crate) fn declare(builder: &mut Builder<'_>, layer: u64, mla: Mla) -> Self {
        let path = format!("model.layers.{layer}.self_attn");
        let (_, heads) = builder.shard.heads(builder.dims.query_heads);
        let queries = Queries::declare(builder, &path, &mla);
        let latent_norm =
            builder.replicated(&format!("{path}.kv_a_layernorm.weight"), &[mla.kv_lora_rank]);
        Self {
            queries,
            latent_norm,
            absorbed: Absorbed::declare(builder, &path, &mla),
            output: OutputKernel::declare(builder, &format!("{path}.o_proj"), mla.value_dim),
            cache: declare_cache(builder, &path, &mla),
            heads,
            mla,
        }
    }

    /// The layer's output, complete over the ranks.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        rotary: Address,
    ) -> Result<Address, LayerError> {
        let m = forward.batch.rows;
        let dims = self.dims();
        let (q, latents) = self.queries.forward(forward, x, dims, &self.mla)?;
        let keys = Columns { first: latents.first + dims.rank, ..latents };
        let normed = slice_norm(forward, self.latent_norm, latents, dims.rank, "latent")?;
        forward.launch(LatentRope {
            q,
            keys,
            positions: forward.batch.positions,
            table: rotary,
            m,
            dims,
            max_positions: forward.dims.max_positions as usize,
            interleaved: self.mla.interleaved,
        })?;
        let head_dim = dims.rank + dims.rope;
        let paging = Paging { head_dim, ..forward.paging(self.cache, 1)? };
        forward.launch(LatentWrite { latents: normed, keys, paging, m, dims })?;

        let query = dims.nope + dims.rope;
        let absorbed =
            self.by_head(forward, self.absorbed.key, (q, query), dims.nope, dims.rank)?;
        let y = forward.buffer(m, dims.heads * dims.rank, "attended_latents")?;
        let scale = forward.dims.score_scale;
        forward.launch(Attend { absorbed, q, paging, y, m, dims, scale })?;
        let value = self.mla.value_dim as usize;
        let y = self.by_head(forward, self.absorbed.value, (y, dims.rank), dims.rank, value)?;
        self.output.forward(forward, y, dims.heads * value)
    }

    const fn dims(&self) -> LatentDims {
        LatentDims {
            heads: self.heads as usize,
            nope: self.mla.nope_dim as usize,
            rope: self.mla.rope_dim as usize,
            rank: self.mla.kv_lora_rank as usize,
        }
    }

    /// The product of each head's first `k` columns with its own matrix.
    fn by_head(
        &self,
        forward: &mut Forward<'_>,
        weight: SlotId,
        (x, width): (Address, usize),
        k: usize,
        n: usize,
    ) -> Result<Address, LayerError> {
        let (m, heads) = (forward.batch.rows, self.heads as usize);
        let w = forward.slots.address(weight)?;
        let y = forward.buffer(m, heads * n, "by_head")?;
        let blocks = Dims::full_blocks();
        forward.launch(HeadLinear { x, w, y, m, heads, width, k, n, blocks })?;
        Ok(y)
    }
}

impl Queries {
    fn declare(builder: &mut Builder<'_>, path: &str, mla: &Mla) -> Self {
        let (hidden, latent) = (builder.dims.hidden, mla.latent_dim());
        let Some(rank) = mla.q_lora_rank else {
            let project = by_heads(builder, path, "q_proj", mla.query_dim(), hidden);
            let name = format!("{path}.kv_a_proj_with_mqa.weight");
            let compress = builder.replicated(&name, &[latent, hidden]);
            [project, compress].into_iter().for_each(|weight| builder.adapts(weight));
            return Self::Direct { project, compress };
        };
        let name = format!("{path}.fused_qkv_a_proj.weight");
        let fused = builder.parameter(&name, &[rank + latent, hidden]);
        for (source, rows, first) in [("q_a_proj", rank, 0), ("kv_a_proj_with_mqa", latent, rank)] {
            let source = format!("{path}.{source}.weight");
            builder.sharded(source, &[rows, hidden], fused, Target::Stacked { first });
        }
        let norm = builder.replicated(&format!("{path}.q_a_layernorm.weight"), &[rank]);
        let expand = by_heads(builder, path, "q_b_proj", mla.query_dim(), rank);
        [fused, expand].into_iter().for_each(|weight| builder.adapts(weight));
        Self::Compressed { fused, norm, expand, rank }
    }

    /// Queries `[m, heads, nope + rope]`, and where latents with their shared keys lie.
    fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        dims: LatentDims,
        mla: &Mla,
    ) -> Result<(Address, Columns), LayerError> {
        let (m, hidden) = (forward.batch.rows, forward.dims.hidden as usize);
        let (queries, latent) =
            ((dims.heads * (dims.nope + dims.rope), "queries"), mla.latent_dim() as usize);
        match *self {
            Self::Compressed { fused, norm, expand, rank } => {
                let (rank, width) = (rank as usize, rank as usize + latent);
                let base = forward.column_parallel(fused, (x, hidden), (width, "latents"), m)?;
                let compressed = Columns { base, width, first: 0 };
                let normed = slice_norm(forward, norm, compressed, rank, "compressed_queries")?;
                let q = forward.column_parallel(expand, (normed, rank), queries, m)?;
                Ok((q, Columns { first: rank, ..compressed }))
            }
            Self::Direct { project, compress } => {
                let q = forward.column_parallel(project, (x, hidden), queries, m)?;
                let base =
                    forward.column_parallel(compress, (x, hidden), (latent, "latents"), m)?;
                Ok((q, Columns { base, width: latent, first: 0 }))
            }
        }
    }
}

impl Absorbed {
    fn declare(builder: &mut Builder<'_>, path: &str, mla: &Mla) -> Self {
        let (_, heads) = builder.shard.heads(builder.dims.query_heads);
        let rows = mla.nope_dim + mla.value_dim;
        let weight = by_heads(builder, path, "kv_b_proj", rows, mla.kv_lora_rank);
        let layer = format!("{path}.mla_attn.mla_attn");
        let inputs = [builder.name(weight)];
        let mut slot = |name: &str, shape: [u64; 3]| {
            let name = format!("{layer}.{name}");
            builder.slots.declare(SlotSpec::derived(name, Dtype::Bf16, &shape, &inputs))
        };
        let key = slot("W_UK_T", [heads, mla.nope_dim, mla.kv_lora_rank]);
        let value = slot("W_UV", [heads, mla.kv_lora_rank, mla.value_dim]);
        builder.hook(&layer, HookKind::Absorb { weight, key, value, mla: *mla });
        Self { key, value }
    }
}

/// A projection whose rows are cut by heads of this width.
fn by_heads(
    builder: &mut Builder<'_>,
    path: &str,
    name: &str,
    head_dim: u64,
    inputs: u64,
) -> SlotId {
    let heads = builder.dims.query_heads;
    let (_, local) = builder.shard.heads(heads);
    let name = format!("{path}.{name}.weight");
    let slot = builder.parameter(&name, &[local * head_dim, inputs]);
    builder.sharded(name, &[heads * head_dim, inputs], slot, Target::Column);
    slot
}

/// The norm of `n` columns from the first on.
fn slice_norm(
    forward: &mut Forward<'_>,
    weight: SlotId,
    Columns { base, width, first }: Columns,
    n: usize,
    purpose: &str,
) -> Result<Address, LayerError> {
    let (m, eps) = (forward.batch.rows, forward.dims.eps);
    let weight = forward.slots.address(weight)?;
    let y = forward.buffer(m, n, purpose)?;
    forward.launch(SliceNorm { x: base, weight, y, m, width, first, n, eps })?;
    Ok(y)
}

/// Latents and shared keys: every rank holds all of them, since no head has its own.
fn declare_cache(builder: &mut Builder<'_>, path: &str, mla: &Mla) -> SlotId {
    let kv = builder.kv;
    let spec = SlotSpec::unsourced(
        format!("{path}/kv_cache"),
        SlotKind::Scratch,
        Dtype::F32,
        &[kv.blocks, kv.block_size, mla.latent_dim()],
        Policy::Invalidate,
    );
    builder.paged(spec)
}
