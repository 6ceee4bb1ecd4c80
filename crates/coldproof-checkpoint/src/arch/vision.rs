//! A vision tower and its projector: what `vision_config` and the fields beside it say.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::fields::Fields;
use super::{ConfigError, Processor};

/// The most bytes of an image's pixels, or of its embeddings in the tower, as F32.
const IMAGE_BYTES_MAX: u128 = 1 << 30;

/// What the outputs of a layer's first projection go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncoderActivation {
    /// `x * sigmoid(1.702 * x)`.
    QuickGelu,
    /// `x * Φ(x)`, of the normal distribution.
    Gelu,
}

/// A CLIP tower whose output a projector takes to the width of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vision {
    /// Width of the tower's residual stream.
    pub hidden_size: u64,
    /// Rows of a layer's first projection.
    pub intermediate_size: u64,
    /// Layers that a checkpoint holds.
    pub layers: u64,
    /// Layers that are computed: those up to the one whose output is taken.
    pub computed_layers: u64,
    /// Heads; divides `hidden_size`.
    pub heads: u64,
    /// Channels of an image.
    pub channels: u64,
    /// Rows and columns of an image.
    pub image_size: u64,
    /// Rows and columns of a patch; divides `image_size`.
    pub patch_size: u64,
    /// Added to the variance before its root.
    pub layer_norm_eps: f64,
    /// Of the layers.
    pub activation: EncoderActivation,
    /// Whether the class token's row is left out.
    pub drop_class: bool,
    /// Of the projector.
    pub projector_activation: EncoderActivation,
    /// The token that stands where an image's rows go.
    pub image_token: u64,
    /// How pixels are prepared.
    pub processor: Processor,
}

impl Vision {
    /// Reads the root of a configuration that has a tower.
    pub(super) fn read(root: Fields<'_>, vocabulary: u64) -> Result<Self, ConfigError> {
        let tower = root.object("vision_config")?.ok_or_else(|| root.missing("vision_config"))?;
        tower.only("model_type", &[json!("clip_vision_model")])?;
        root.only("vision_feature_select_strategy", &[json!("default"), json!("full")])?;
        root.only("multimodal_projector_bias", &[json!(true)])?;
        let layers = tower.required_size("num_hidden_layers")?;
        let taken = root.integer("vision_feature_layer")?.unwrap_or(-2);
        let vision = Self {
            hidden_size: tower.required_size("hidden_size")?,
            intermediate_size: tower.required_size("intermediate_size")?,
            layers,
            computed_layers: computed(root, taken, layers)?,
            heads: tower.required_size("num_attention_heads")?,
            channels: tower.size("num_channels")?.unwrap_or(3),
            image_size: tower.required_size("image_size")?,
            patch_size: tower.required_size("patch_size")?,
            layer_norm_eps: tower.positive("layer_norm_eps")?.unwrap_or(1e-5),
            activation: activation(tower, "hidden_act", EncoderActivation::QuickGelu)?,
            drop_class: root.text("vision_feature_select_strategy")? != Some("full"),
            projector_activation: activation(
                root,
                "projector_hidden_act",
                EncoderActivation::Gelu,
            )?,
            image_token: image_token(root, vocabulary)?,
            processor: Processor::default(),
        };
        vision.check(root, tower)?;
        Ok(vision)
    }

    /// Patches of an image.
    #[must_use]
    pub const fn patches(&self) -> u64 {
        let side = self.image_size / self.patch_size;
        side * side
    }

    /// Rows of the tower: the class token and every patch.
    #[must_use]
    pub const fn positions(&self) -> u64 {
        self.patches() + 1
    }

    /// Rows of an image in a prompt.
    #[must_use]
    pub const fn image_tokens(&self) -> u64 {
        if self.drop_class { self.patches() } else { self.positions() }
    }

    /// Values of an image.
    #[must_use]
    pub const fn pixels(&self) -> u64 {
        self.channels * self.image_size * self.image_size
    }

    /// Values of a patch.
    #[must_use]
    pub const fn patch_pixels(&self) -> u64 {
        self.channels * self.patch_size * self.patch_size
    }

    /// Width of a head.
    #[must_use]
    pub const fn head_dim(&self) -> u64 {
        self.hidden_size / self.heads
    }

    /// Elements of all parameters of the tower, at most.
    pub(super) fn parameters(&self) -> u128 {
        let wide = |value: u64| u128::from(value);
        let layer = 4 * wide(self.hidden_size) + 2 * wide(self.intermediate_size) + 16;
        let patches = wide(self.patch_pixels()) + wide(self.positions());
        (wide(self.layers) * layer + patches + 8) * wide(self.hidden_size)
    }

    fn check(&self, root: Fields<'_>, tower: Fields<'_>) -> Result<(), ConfigError> {
        let size = |field: String, value: u64, reason: String| {
            Err(ConfigError::Size { field, value: value.to_string(), reason })
        };
        if !self.image_size.is_multiple_of(self.patch_size) {
            let reason = format!("it does not divide image_size ({})", self.image_size);
            return size(tower.path("patch_size"), self.patch_size, reason);
        }
        if !self.hidden_size.is_multiple_of(self.heads) {
            let reason = format!("it does not divide hidden_size ({})", self.hidden_size);
            return size(tower.path("num_attention_heads"), self.heads, reason);
        }
        let wide = |value: u64| u128::from(value);
        let area = wide(self.image_size) * wide(self.image_size);
        let bytes = 4 * area * wide(self.channels).max(wide(self.hidden_size));
        if bytes > IMAGE_BYTES_MAX {
            let reason = format!("an image could take {bytes} bytes, above {IMAGE_BYTES_MAX}");
            return size(tower.path("image_size"), self.image_size, reason);
        }
        match root.size("image_seq_length")? {
            Some(stated) if stated != self.image_tokens() => {
                let reason = format!("an image has {} rows", self.image_tokens());
                size(root.path("image_seq_length"), stated, reason)
            }
            _ => Ok(()),
        }
    }
}

/// Layers up to the one whose output is taken; -1 is the last.
fn computed(root: Fields<'_>, taken: i64, layers: u64) -> Result<u64, ConfigError> {
    let from_the_end = || layers.checked_add(1)?.checked_sub(taken.unsigned_abs());
    let found = if taken < 0 { from_the_end() } else { Some(taken.unsigned_abs()) };
    found.filter(|&found| found <= layers).ok_or_else(|| ConfigError::Size {
        field: root.path("vision_feature_layer"),
        value: taken.to_string(),
        reason: format!("the tower has {layers} layers"),
    })
}

fn activation(
    fields: Fields<'_>,
    name: &str,
    usual: EncoderActivation,
) -> Result<EncoderActivation, ConfigError> {
    fields.only(name, &[json!("quick_gelu"), json!("gelu")])?;
    Ok(match fields.text(name)? {
        Some("quick_gelu") => EncoderActivation::QuickGelu,
        Some(_) => EncoderActivation::Gelu,
        None => usual,
    })
}

fn image_token(root: Fields<'_>, vocabulary: u64) -> Result<u64, ConfigError> {
    let names = ["image_token_index", "image_token_id"];
    let token = root.either_required_size(names)?;
    if token < vocabulary {
        return Ok(token);
    }
    Err(ConfigError::Size {
        field: names.join("` or `"),
        value: token.to_string(),
        reason: format!("the vocabulary has {vocabulary} tokens"),
    })
}
