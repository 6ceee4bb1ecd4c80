//! Grouped-query attention over a paged cache, with a permuted output projection.

use coldproof_checkpoint::arch::AttentionBias;
use coldproof_contract::words::{Address, Dtype, Packing, Policy, SlotKind, SlotName};

use super::norm::stored;
use super::{Forward, LayerError};
use crate::kernels::{AddBias, KvWrite, LinearPermuted, PagedAttention, Rope, WORKSPACE_LOCKS};
use crate::loader::{HeadPart, HookKind, Target};
use crate::models::{Builder, Dims};
use crate::slots::{SlotId, SlotSpec};

/// Whether a family norms heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    /// No.
    None,
    /// Every query and every key head, before the rotation.
    QueryAndKey,
}

/// The output projection's kernel object: it owns what is no parameter.
#[derive(Clone, Debug)]
pub(super) struct OutputKernel {
    weight: SlotId,
    bias: Option<SlotId>,
    permutation: SlotId,
    workspace: SlotId,
}

/// An attention layer.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    qkv: SlotId,
    qkv_bias: Option<SlotId>,
    q_norm: Option<SlotId>,
    k_norm: Option<SlotId>,
    output: OutputKernel,
    cache: SlotId,
    query_heads: u64,
    kv_heads: u64,
    window: Option<u64>,
    sinks: Option<SlotId>,
}

impl Attention {
    /// The attention of this layer.
    pub(crate) fn declare(builder: &mut Builder<'_>, layer: u64, norms: HeadNorms) -> Self {
        let path = format!("model.layers.{layer}.self_attn");
        Self::declare_at(builder, layer, &path, norms)
    }

    /// The attention of this layer at this path.
    pub(crate) fn declare_at(
        builder: &mut Builder<'_>,
        layer: u64,
        path: &str,
        norms: HeadNorms,
    ) -> Self {
        let heads = builder.dims.heads();
        let (_, query_heads) = builder.shard.heads(heads.query);
        let (_, kv_heads) = builder.shard.heads(heads.key_value);
        let hidden = builder.dims.hidden;
        let qkv = fused_heads(builder, path, "weight", &[hidden]);
        builder.adapts(qkv);
        let biased = builder.dims.attention_bias != AttentionBias::None;
        let qkv_bias = biased.then(|| fused_heads(builder, path, "bias", &[]));
        let mut norm = |name: &str| {
            let name = format!("{path}.{name}.weight");
            (norms == HeadNorms::QueryAndKey).then(|| builder.replicated(&name, &[heads.dim]))
        };
        let (q_norm, k_norm) = (norm("q_norm"), norm("k_norm"));
        Self {
            qkv,
            qkv_bias,
            q_norm,
            k_norm,
            output: OutputKernel::declare(builder, &format!("{path}.o_proj"), heads.dim),
            cache: declare_cache(builder, path, kv_heads),
            query_heads,
            kv_heads,
            window: builder.dims.window_of(layer),
            sinks: builder.dims.sinks.then(|| declare_sinks(builder, path)),
        }
    }

    /// Whether a row attends to all positions before it.
    pub(crate) const fn is_global(&self) -> bool {
        self.window.is_none()
    }

    /// The layer's output, complete over the ranks.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        rotary: Option<Address>,
    ) -> Result<Address, LayerError> {
        let (m, hidden) = (forward.batch.rows, forward.dims.hidden as usize);
        let head_dim = forward.dims.head_dim as usize;
        let (q_heads, kv_heads) = (self.query_heads as usize, self.kv_heads as usize);
        let width = (q_heads + 2 * kv_heads) * head_dim;
        let qkv = forward.column_parallel(self.qkv, (x, hidden), (width, "qkv"), m)?;
        if let Some(bias) = self.qkv_bias {
            let bias = forward.slots.address(bias)?;
            forward.launch(AddBias { y: qkv, bias, m, n: width })?;
        }
        if let Some(table) = rotary {
            self.rotate(forward, qkv, table)?;
        }
        let paging = forward.paging(self.cache, self.kv_heads)?;
        forward.launch(KvWrite { qkv, paging, m, q_heads })?;
        let y = forward.buffer(m, q_heads * head_dim, "attended")?;
        let scale = forward.dims.score_scale;
        let window = self.window.map(|window| window as usize);
        let sinks = self.sinks.map(|sinks| forward.slots.address(sinks)).transpose()?;
        forward.launch(PagedAttention { qkv, paging, y, m, q_heads, scale, window, sinks })?;
        self.output.forward(forward, y, q_heads * head_dim)
    }

    /// Norms queries and keys where the family does, and turns them by their positions.
    fn rotate(
        &self,
        forward: &mut Forward<'_>,
        qkv: Address,
        table: Address,
    ) -> Result<(), LayerError> {
        let norm = |id: Option<SlotId>| id.map(|id| stored(forward, id)).transpose();
        let (q_norm, k_norm) = (norm(self.q_norm)?, norm(self.k_norm)?);
        let (positions, max_positions) =
            (forward.batch.positions, forward.dims.max_positions as usize);
        forward.launch(Rope {
            qkv,
            positions,
            table,
            q_norm,
            k_norm,
            m: forward.batch.rows,
            q_heads: self.query_heads as usize,
            kv_heads: self.kv_heads as usize,
            head_dim: forward.dims.head_dim as usize,
            max_positions,
            eps: forward.dims.eps,
        })
    }
}

impl OutputKernel {
    /// Of heads that are this wide.
    pub(super) fn declare(builder: &mut Builder<'_>, path: &str, head_dim: u64) -> Self {
        let (hidden, heads) = (builder.dims.hidden, builder.dims.query_heads);
        let (_, local) = builder.shard.heads(heads);
        let columns = local * head_dim;
        let name = format!("{path}.weight");
        let order = SlotName(format!("{path}/kernel.act_perm"));
        let packing = Packing::ColumnsPermuted { permutation: order.clone() };
        let weight = builder.packed(&name, &[hidden, columns], packing);
        let shape = [hidden, heads * head_dim];
        builder.sharded(name, &shape, weight, Target::Row);
        builder.adapts(weight);
        let biased = builder.dims.attention_bias == AttentionBias::All;
        let bias = biased.then(|| builder.replicated(&format!("{path}.bias"), &[hidden]));
        let inputs = [builder.name(weight)];
        let spec = SlotSpec::derived(order.0, Dtype::I32, &[columns], &inputs);
        let permutation = builder.slots.declare(spec);
        let workspace = builder.slots.declare(SlotSpec::unsourced(
            format!("{path}/kernel.workspace"),
            SlotKind::Scratch,
            Dtype::I32,
            &[WORKSPACE_LOCKS as u64],
            Policy::Refresh,
        ));
        builder.hook(path, HookKind::Permute { weight, permutation, workspace });
        Self { weight, bias, permutation, workspace }
    }

    /// The output, complete over the ranks, of `k` inputs on this one.
    pub(super) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        k: usize,
    ) -> Result<Address, LayerError> {
        let (m, n) = (forward.batch.rows, forward.dims.hidden as usize);
        let w = forward.slots.address(self.weight)?;
        let permutation = forward.slots.address(self.permutation)?;
        let workspace = forward.slots.address(self.workspace)?;
        let y = forward.buffer(m, n, "projected")?;
        let blocks = Dims::row_blocks(forward.shard);
        forward.launch(LinearPermuted { x, w, permutation, workspace, y, m, k, n, blocks })?;
        forward.all_reduce(y, m)?;
        forward.adapt(self.weight, x, y, m)?;
        if let Some(bias) = self.bias {
            let bias = forward.slots.address(bias)?;
            forward.launch(AddBias { y, bias, m, n })?;
        }
        Ok(y)
    }
}

/// The parameter `kind` of q, k and v in one slot; rows have this shape.
fn fused_heads(builder: &mut Builder<'_>, path: &str, kind: &str, row: &[u64]) -> SlotId {
    let heads = builder.dims.heads();
    let (_, query_heads) = builder.shard.heads(heads.query);
    let (_, kv_heads) = builder.shard.heads(heads.key_value);
    let rows = (query_heads + 2 * kv_heads) * heads.dim;
    let slot = builder.parameter(&format!("{path}.qkv_proj.{kind}"), &[&[rows], row].concat());
    for (source, part, count) in [
        ("q_proj", HeadPart::Query, heads.query),
        ("k_proj", HeadPart::Key, heads.key_value),
        ("v_proj", HeadPart::Value, heads.key_value),
    ] {
        let shape = [&[count * heads.dim], row].concat();
        builder.sharded(
            format!("{path}.{source}.{kind}"),
            &shape,
            slot,
            Target::Heads(part, heads),
        );
    }
    slot
}

/// The sinks of this rank's heads, and the kernel's copy of them in f32.
fn declare_sinks(builder: &mut Builder<'_>, path: &str) -> SlotId {
    let heads = builder.dims.query_heads;
    let (_, local) = builder.shard.heads(heads);
    let name = format!("{path}.sinks");
    let weight = builder.parameter(&name, &[local]);
    builder.sharded(name, &[heads], weight, Target::Column);
    let inputs = [builder.name(weight)];
    let spec = SlotSpec::derived(format!("{path}/kernel.sinks_f32"), Dtype::F32, &[local], &inputs);
    let copy = builder.slots.declare(spec);
    let kernel = "paged_attention.f32_sinks";
    builder.hook(path, HookKind::Widen { weight, copy, less_one: false, kernel });
    copy
}

fn declare_cache(builder: &mut Builder<'_>, path: &str, kv_heads: u64) -> SlotId {
    let kv = builder.kv;
    let shape = [kv.blocks, 2, kv.block_size, kv_heads, builder.dims.head_dim];
    let spec = SlotSpec::unsourced(
        format!("{path}/kv_cache"),
        SlotKind::Scratch,
        Dtype::F32,
        &shape,
        Policy::Invalidate,
    );
    builder.paged(spec)
}
