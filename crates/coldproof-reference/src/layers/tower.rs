//! A CLIP vision tower: patches, a class token, and layers in which every row attends to every row.
//!
//! Its layers are cut over the ranks where these divide its heads, else every rank has all of them.

use coldproof_checkpoint::arch::Vision;
use coldproof_contract::words::Address;

use super::{Affine, Forward, LayerError};
use crate::kernels::{Activate, Add, EncoderAttention, LayerNorm, Linear, Patches, TowerRows};
use crate::loader::Shard;
use crate::models::{Builder, Dims, Names};
use crate::slots::SlotId;

/// Bytes of an F32.
const WORD_BYTES: u64 = 4;

const TOWER: Names = Names {
    slots: "vision_tower.vision_model.",
    sources: &[
        "vision_tower.",
        "model.vision_tower.",
        "vision_tower.vision_model.",
        "model.vision_tower.vision_model.",
    ],
};

/// A tower.
#[derive(Clone, Debug)]
pub(crate) struct Tower {
    class: SlotId,
    patch: SlotId,
    positions: SlotId,
    norm: Norm,
    /// Those up to the one whose output is taken.
    layers: Vec<Layer>,
    heads: usize,
}

/// A layer's norm.
#[derive(Clone, Copy, Debug)]
struct Norm {
    weight: SlotId,
    bias: SlotId,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    attention_norm: Norm,
    qkv: Affine,
    output: Affine,
    inner_norm: Norm,
    first: Affine,
    second: Affine,
}

/// Rows of the tower's residual stream.
#[derive(Clone, Copy)]
struct Rows<'v> {
    m: usize,
    width: usize,
    vision: &'v Vision,
}

impl Tower {
    /// The tower with everything that checkpoints hold of it.
    pub(crate) fn declare(builder: &mut Builder<'_>, vision: &Vision) -> Self {
        let ranks = builder.shard.ranks;
        let divides = vision.heads.is_multiple_of(ranks);
        let shard = if divides { builder.shard } else { Shard::WHOLE };
        let (hidden, size) = (vision.hidden_size, vision.patch_size);
        let mut whole = |name: &str, shape: &[u64]| {
            TOWER.replicated(builder, &format!("embeddings.{name}"), shape)
        };
        let class = whole("class_embedding", &[hidden]);
        let patch = whole("patch_embedding.weight", &[hidden, vision.channels, size, size]);
        let positions = whole("position_embedding.weight", &[vision.positions(), hidden]);
        let norm = Norm::declare(builder, "pre_layrnorm", hidden);
        let declared = (0..vision.layers).map(|layer| {
            Layer::declare(builder, &format!("encoder.layers.{layer}"), vision, shard)
        });
        let mut layers: Vec<Layer> = declared.collect();
        layers.truncate(vision.computed_layers as usize);
        Norm::declare(builder, "post_layernorm", hidden);
        let heads = (vision.heads / shard.ranks) as usize;
        Self { class, patch, positions, norm, layers, heads }
    }

    /// The rows that the projector takes, F32 `[image tokens, hidden]`.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        pixels: Address,
        vision: &Vision,
    ) -> Result<Address, LayerError> {
        let (m, width) = (vision.positions() as usize, vision.hidden_size as usize);
        let rows = Rows { m, width, vision };
        let residual = self.embed(forward, pixels, rows)?;
        self.norm.launch(forward, rows, residual, residual)?;
        for layer in &self.layers {
            let kept = forward.mark();
            layer.forward(forward, residual, rows, self.heads)?;
            forward.release(kept)?;
        }
        let skipped = if vision.drop_class { vision.hidden_size * WORD_BYTES } else { 0 };
        Ok(residual.plus(skipped))
    }

    fn embed(
        &self,
        forward: &mut Forward<'_>,
        pixels: Address,
        Rows { m, width, vision }: Rows<'_>,
    ) -> Result<Address, LayerError> {
        let (channels, k) = (vision.channels as usize, vision.patch_pixels() as usize);
        let (size, patch) = (vision.image_size as usize, vision.patch_size as usize);
        let y = forward.buffer(m, width, "tower")?;
        let cut = forward.buffer(m - 1, k, "patches")?;
        forward.launch(Patches { pixels, y: cut, channels, size, patch })?;
        let patches = forward.buffer(m - 1, width, "embedded_patches")?;
        let w = forward.slots.address(self.patch)?;
        let blocks = Dims::full_blocks();
        forward.launch(Linear { x: cut, w, y: patches, m: m - 1, k, n: width, blocks })?;
        let class = forward.slots.address(self.class)?;
        let positions = forward.slots.address(self.positions)?;
        forward.launch(TowerRows { patches, class, positions, y, m, width })?;
        Ok(y)
    }
}

impl Layer {
    fn declare(builder: &mut Builder<'_>, path: &str, vision: &Vision, shard: Shard) -> Self {
        let (hidden, inner) = (vision.hidden_size, vision.intermediate_size);
        let (square, parts) = ([hidden, hidden], ["q_proj", "k_proj", "v_proj"]);
        let qkv = format!("{path}.self_attn.qkv_proj");
        let output = format!("{path}.self_attn.out_proj");
        let (first, second) = (format!("{path}.mlp.fc1"), format!("{path}.mlp.fc2"));
        Self {
            attention_norm: Norm::declare(builder, &format!("{path}.layer_norm1"), hidden),
            qkv: Affine::fused(builder, TOWER, (&qkv, &parts), square, shard),
            output: Affine::row(builder, TOWER, &output, square, shard),
            inner_norm: Norm::declare(builder, &format!("{path}.layer_norm2"), hidden),
            first: Affine::column(builder, TOWER, &first, [inner, hidden], shard),
            second: Affine::row(builder, TOWER, &second, [hidden, inner], shard),
        }
    }

    /// Adds this layer to the residual stream in place.
    fn forward(
        &self,
        forward: &mut Forward<'_>,
        residual: Address,
        rows: Rows<'_>,
        heads: usize,
    ) -> Result<(), LayerError> {
        let Rows { m, width, vision } = rows;
        let head_dim = vision.head_dim();
        let normed = forward.buffer(m, width, "norm")?;
        self.attention_norm.launch(forward, rows, residual, normed)?;
        let qkv = self.qkv.forward(forward, normed, m)?;
        let y = forward.buffer(m, heads * head_dim as usize, "attended")?;
        let scale = (1.0 / (head_dim as f64).sqrt()) as f32;
        let head_dim = head_dim as usize;
        forward.launch(EncoderAttention { qkv, y, m, heads, head_dim, scale })?;
        let attended = self.output.forward(forward, y, m)?;
        forward.launch(Add { a: residual, b: attended, y: residual, m, width })?;
        self.inner_norm.launch(forward, rows, residual, normed)?;
        let inner = self.first.forward(forward, normed, m)?;
        let (activation, width) = (vision.activation, self.first.outputs());
        forward.launch(Activate { activation, y: inner, m, width })?;
        let fed = self.second.forward(forward, inner, m)?;
        forward.launch(Add { a: residual, b: fed, y: residual, m, width: rows.width })
    }
}

impl Norm {
    fn declare(builder: &mut Builder<'_>, path: &str, width: u64) -> Self {
        let mut part = |kind: &str| TOWER.replicated(builder, &format!("{path}.{kind}"), &[width]);
        Self { weight: part("weight"), bias: part("bias") }
    }

    fn launch(
        self,
        forward: &mut Forward<'_>,
        Rows { m, width, vision }: Rows<'_>,
        x: Address,
        y: Address,
    ) -> Result<(), LayerError> {
        let weight = forward.slots.address(self.weight)?;
        let bias = forward.slots.address(self.bias)?;
        let eps = vision.layer_norm_eps as f32;
        forward.launch(LayerNorm { x, weight, bias, y, m, width, eps })
    }
}
