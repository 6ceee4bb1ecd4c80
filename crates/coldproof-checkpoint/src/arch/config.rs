//! `config.json` in both spellings: that of transformers 5 and the older one of most published
//! models.

use camino::Utf8Path;
use coldproof_contract::words::Dtype;
use serde::{Deserialize, Serialize};

use crate::container::{CONFIG_NAME, Checkpoint, DRAFT_CONFIG_NAME, read_small};
use crate::error::{CheckpointError, Fault};
use crate::json;

use super::fields::Fields;
use super::{
    ConfigError, Family, Grouping, Mixer, Mla, Processor, Rope, RopeScaling, StateSpace, Swiglu,
    Vision, Window, deepseek_v3, gemma3, mamba2, nemotron_h,
};

/// What the reference engine and the catalogue need to know of a model. All sizes are at least 1,
/// divide where they must, and their products fit 64 bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Which family.
    pub family: Family,
    /// Element type of the checkpoint.
    pub dtype: Dtype,
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Rows of a dense gate or up projection.
    pub intermediate_size: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Query heads; where nothing attends, those of the state space.
    pub heads: u64,
    /// Key-value heads; divides `heads`. Where nothing attends, groups of the state space.
    pub kv_heads: u64,
    /// Rows of a head, or of its rotary part alone where attention is latent; even.
    pub head_dim: u64,
    /// Positions that the rotary table covers.
    pub max_positions: u64,
    /// Added to the mean square before its root.
    pub rms_norm_eps: f64,
    /// Rotary parameters.
    pub rope: Rope,
    /// Rotary parameters of layers that attend to all positions, where they have their own.
    pub global_rope: Option<Rope>,
    /// Layers that attend to the last positions alone.
    pub window: Option<Window>,
    /// Scores are multiplied by one over its root: `head_dim` in most families.
    pub query_scalar: f64,
    /// Latent attention, in families that have it.
    pub mla: Option<Mla>,
    /// Whether the head shares the embedding's storage.
    pub tied: bool,
    /// Experts, for families that have them.
    pub moe: Option<Moe>,
    /// The experts' gate, where it is clamped.
    pub swiglu: Option<Swiglu>,
    /// The tower that images go through, in a family that has one.
    pub vision: Option<Vision>,
    /// State-space mixers, for families that have them.
    pub state_space: Option<StateSpace>,
    /// What each layer is, where it is one mixer behind one norm; else none.
    pub mixers: Vec<Mixer>,
    /// Layers behind the others that predict one token further each (MTP), numbered on.
    pub mtp_layers: u64,
    /// The draft model whose weights lie among the model's own, behind [`DRAFT`].
    ///
    /// [`DRAFT`]: super::DRAFT
    pub draft: Option<Box<Self>>,
}

/// What a dense gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// The approximation of GELU by a hyperbolic tangent.
    GeluTanh,
}

/// Which projections of attention have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// None.
    None,
    /// Queries, keys and values.
    Qkv,
    /// These and the output.
    All,
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moe {
    /// Experts of a sparse layer.
    pub experts: u64,
    /// Experts that a token takes; at most `experts`.
    pub experts_per_token: u64,
    /// Rows of an expert's gate or up projection.
    pub intermediate_size: u64,
    /// Whether the chosen weights are renormalised to a sum of 1.
    pub norm_topk_prob: bool,
    /// Every so many layers are sparse, counted from 1.
    pub sparse_step: u64,
    /// Layers that are dense whatever the step says.
    pub mlp_only_layers: Vec<u64>,
    /// Layers before this one are dense.
    pub first_sparse: u64,
    /// Experts that every token takes, side by side in one gated projection.
    pub shared_experts: u64,
    /// A choice by groups, in families that have it.
    pub grouping: Option<Grouping>,
}

/// The most parameters a model may have; products of sizes stay far below 2^64.
const PARAMETERS_MAX: u128 = 1 << 44;
/// The most bytes of a rotary table, which an engine allocates whatever the checkpoint holds.
const ROTARY_BYTES_MAX: u128 = 1 << 30;
/// The most sources a catalogue may list.
const SOURCES_MAX: u128 = 1 << 20;

impl ModelConfig {
    /// Reads `config.json` in the directory of a checkpoint, and of a family that takes images the
    /// processor's configuration beside it. Read after [`Checkpoint::open`], it is
    /// among the files of [`Checkpoint::verify_unchanged`].
    ///
    /// [`Checkpoint::open`]: crate::Checkpoint::open
    /// [`Checkpoint::verify_unchanged`]: crate::Checkpoint::verify_unchanged
    ///
    /// # Errors
    /// A file that cannot be read, and all errors of [`ModelConfig::parse`].
    pub fn read(directory: &Utf8Path) -> Result<Self, CheckpointError> {
        let path = directory.join(CONFIG_NAME);
        let (text, _) = read_small(&path)?;
        let mut config = Self::parse(&text)
            .map_err(|error| CheckpointError::file(&path, Fault::Config(error)))?;
        if let Some(vision) = &mut config.vision {
            vision.processor = Processor::beside(directory, vision.channels)?;
        }
        let mtp = config.mtp_layers > 0;
        if let Some(checkpoint) = mtp.then(|| Checkpoint::open(directory).ok()).flatten() {
            config = config.fitted(&checkpoint);
        }
        if config.mtp_layers > 1 {
            let error = ConfigError::Unsupported {
                field: "num_nextn_predict_layers".to_owned(),
                value: config.mtp_layers.to_string(),
                supported: "0, 1".to_owned(),
            };
            return Err(CheckpointError::file(&path, Fault::Config(error)));
        }
        let path = directory.join(DRAFT_CONFIG_NAME);
        if path.is_file() {
            let (text, _) = read_small(&path)?;
            let draft = Self::parse(&text).and_then(|draft| config.drafted_by(draft));
            config = draft.map_err(|error| CheckpointError::file(&path, Fault::Config(error)))?;
        }
        Ok(config)
    }

    /// Without the layers that predict further tokens where a checkpoint has no tensor of them:
    /// configurations say that there are some whether or not they were saved.
    #[must_use]
    pub fn fitted(mut self, checkpoint: &Checkpoint) -> Self {
        if !checkpoint.tensors().keys().any(|source| self.is_draft(source)) {
            self.mtp_layers = 0;
        }
        self
    }

    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// Malformed JSON, a missing or impossible field, or a feature that is not computed here.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let value = json::parse_configuration(text)?;
        let root = Fields::root(&value)?;
        let family = Family::read(root)?;
        let fields = family.text(root)?;
        fields.only("quantization_config", &[])?;
        let mut config = match family {
            Family::Mamba2 => mamba2::read(fields)?,
            Family::NemotronH => nemotron_h::read(fields)?,
            _ => Self::decoder(family, root, fields)?,
        };
        config.check_sizes()?;
        config.window = family.window(fields, config.layers)?;
        config.mixers = family.mixers(fields, config.layers)?;
        Ok(config)
    }

    /// A decoder whose layers are attention and MLP.
    fn decoder(family: Family, root: Fields<'_>, fields: Fields<'_>) -> Result<Self, ConfigError> {
        family.refuse(fields)?;
        let heads = fields.required_size("num_attention_heads")?;
        let hidden_size = fields.required_size("hidden_size")?;
        let (rope, global_rope) = family.ropes(fields)?;
        let kv_heads = family.kv_heads(fields, heads)?;
        let head_dim = family.head_dim(fields, hidden_size, heads)?;
        let mla = family.mla(fields)?;
        let bare = Self::bare(family, root, fields)?;
        Ok(Self {
            intermediate_size: fields.required_size("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            max_positions: fields.required_size("max_position_embeddings")?,
            rms_norm_eps: fields.required_positive("rms_norm_eps")?,
            query_scalar: match (family, &mla) {
                (Family::Gemma3Text, _) => gemma3::query_scalar(fields)?,
                (_, Some(mla)) => deepseek_v3::query_scalar(mla, &rope),
                _ => head_dim as f64,
            },
            rope,
            global_rope,
            mla,
            moe: family.moe(fields)?,
            swiglu: match family {
                Family::GptOss => Some(Swiglu::read(fields)?),
                _ => None,
            },
            vision: match family {
                Family::Llava => Some(Vision::read(root, bare.vocab_size)?),
                _ => None,
            },
            ..bare
        })
    }

    /// What every model has, around layers that are not read yet.
    pub(super) fn bare(
        family: Family,
        root: Fields<'_>,
        fields: Fields<'_>,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            family,
            dtype: read_dtype(root).or_else(|error| read_dtype(fields).map_err(|_| error))?,
            vocab_size: fields.required_size("vocab_size")?,
            hidden_size: fields.required_size("hidden_size")?,
            intermediate_size: 1,
            layers: match family {
                // It has a list of them.
                Family::NemotronH => 1,
                _ => fields.required_size("num_hidden_layers")?,
            },
            heads: 1,
            kv_heads: 1,
            head_dim: 2,
            max_positions: 1,
            rms_norm_eps: 1.0,
            rope: Rope { theta: 10_000.0, scaling: RopeScaling::Default },
            global_rope: None,
            window: None,
            query_scalar: 1.0,
            mla: None,
            tied: fields.flag("tie_word_embeddings")?.unwrap_or(family == Family::Gemma3Text),
            moe: None,
            swiglu: None,
            vision: None,
            state_space: None,
            mixers: Vec::new(),
            mtp_layers: match family {
                Family::DeepseekV3 => fields.count("num_nextn_predict_layers")?.unwrap_or(0),
                _ => 0,
            },
            draft: None,
        })
    }

    /// The experts of layer `layer`, or nothing where it is dense.
    #[must_use]
    pub fn moe_of(&self, layer: u64) -> Option<&Moe> {
        let sparse = |moe: &&Moe| {
            layer >= moe.first_sparse
                && (layer + 1).is_multiple_of(moe.sparse_step)
                && !moe.mlp_only_layers.contains(&layer)
        };
        self.moe.as_ref().filter(sparse)
    }

    /// What layer `layer` is, where it is one mixer behind one norm.
    #[must_use]
    pub fn mixer_of(&self, layer: u64) -> Option<Mixer> {
        self.mixers.get(usize::try_from(layer).ok()?).copied()
    }

    /// Whether any layer attends.
    #[must_use]
    pub fn attends(&self) -> bool {
        self.mixers.is_empty() || self.mixers.contains(&Mixer::Attention)
    }

    /// Whether positions are turned into rotations.
    #[must_use]
    pub const fn rotates(&self) -> bool {
        !matches!(self.family, Family::Mamba2 | Family::NemotronH)
    }

    /// Whether queries and keys are normalised by head.
    #[must_use]
    pub const fn qk_norm(&self) -> bool {
        matches!(self.family, Family::Gemma3Text | Family::Qwen3 | Family::Qwen3Moe)
    }

    /// Which projections of attention have a bias.
    #[must_use]
    pub const fn attention_bias(&self) -> AttentionBias {
        match self.family {
            Family::GptOss => AttentionBias::All,
            Family::Qwen2 => AttentionBias::Qkv,
            _ => AttentionBias::None,
        }
    }

    /// Whether each query head has a sink: a score without a value.
    #[must_use]
    pub const fn sinks(&self) -> bool {
        matches!(self.family, Family::GptOss)
    }

    /// Whether the weights of norms are stored less one, and the embedding is scaled by the root of
    /// the hidden size.
    #[must_use]
    pub const fn gemma_norms(&self) -> bool {
        matches!(self.family, Family::Gemma3Text)
    }

    /// What a dense gate goes through.
    #[must_use]
    pub const fn activation(&self) -> Activation {
        match self.family {
            Family::Gemma3Text => Activation::GeluTanh,
            _ => Activation::Silu,
        }
    }

    /// Positions that a row of layer `layer` attends to, or nothing where that is all of them.
    #[must_use]
    pub fn window_of(&self, layer: u64) -> Option<u64> {
        let window = self.window.as_ref()?;
        let slides = usize::try_from(layer).ok().and_then(|layer| window.layers.get(layer));
        (slides == Some(&true)).then_some(window.positions)
    }

    fn check_sizes(&self) -> Result<(), ConfigError> {
        let size = |field: &str, value: u64, reason: String| {
            Err(ConfigError::Size { field: field.to_owned(), value: value.to_string(), reason })
        };
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason = format!("it does not divide num_attention_heads ({})", self.heads);
            return size("num_key_value_heads", self.kv_heads, reason);
        }
        if self.rotates() && !self.head_dim.is_multiple_of(2) {
            let reason = "rotary embedding needs an even number of rows".to_owned();
            return size("head_dim", self.head_dim, reason);
        }
        if let Some(moe) = &self.moe {
            if moe.experts_per_token > moe.experts {
                let reason = format!("there are {} experts", moe.experts);
                return size("num_experts_per_tok", moe.experts_per_token, reason);
            }
            deepseek_v3::check_grouping(moe)?;
        }
        let experts = self.moe.as_ref().map_or(0, |moe| u128::from(moe.experts));
        let tower = self.vision.as_ref().map_or(0, |vision| u128::from(vision.layers));
        let layers = u128::from(self.layers) + u128::from(self.mtp_layers);
        let sources = layers * (18 + 3 * experts) + tower * 16;
        if sources > SOURCES_MAX {
            let reason = format!("the model would have {sources} sources, above {SOURCES_MAX}");
            return size("num_hidden_layers", self.layers, reason);
        }
        let parameters = self.parameters();
        if parameters > PARAMETERS_MAX {
            let reason =
                format!("the sizes together give {parameters} elements, above {PARAMETERS_MAX}");
            return size("hidden_size", self.hidden_size, reason);
        }
        // F32, cosines and sines.
        let table = u128::from(self.max_positions) * u128::from(self.head_dim) * 4;
        if self.rotates() && table > ROTARY_BYTES_MAX {
            let reason = format!(
                "its rotary table would take {table} bytes at a head_dim of {}, above \
                 {ROTARY_BYTES_MAX}; a smaller max_position_embeddings is needed",
                self.head_dim
            );
            return size("max_position_embeddings", self.max_positions, reason);
        }
        Ok(())
    }

    /// About as many parameters as the sizes make, and not fewer.
    fn parameters(&self) -> u128 {
        let wide = |value: u64| u128::from(value);
        let moe = |of: fn(&Moe) -> u64| self.moe.as_ref().map_or(0, |moe| wide(of(moe)));
        let experts = moe(|moe| moe.experts) + moe(|moe| moe.shared_experts);
        let expert_rows = moe(|moe| moe.intermediate_size);
        // Each product is below 2^86, and there are at most 2^20 layers.
        let attention = match &self.mla {
            Some(mla) => mla.elements(self.hidden_size, self.heads),
            None => 4 * wide(self.heads) * wide(self.head_dim) * wide(self.hidden_size),
        };
        let space = self.state_space.as_ref();
        let space = space.map_or(0, |space| wide(space.projected_rows()) + wide(space.inner()));
        let mlp = wide(self.intermediate_size) + experts * (expert_rows + 1);
        let rows = space + 3 * mlp;
        let layer = attention + rows * wide(self.hidden_size);
        let tower = self.vision.as_ref().map_or(0, Vision::parameters);
        let tables = 2 * wide(self.vocab_size) * wide(self.hidden_size);
        let further = (layer + tables + 2 * wide(self.hidden_size) * wide(self.hidden_size))
            * wide(self.mtp_layers);
        layer * wide(self.layers) + further + tables + tower
    }
}

impl Moe {
    pub(super) fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        Ok(Self {
            experts: fields.either_required_size(["num_experts", "num_local_experts"])?,
            experts_per_token: fields.required_size("num_experts_per_tok")?,
            intermediate_size: fields.required_size("moe_intermediate_size")?,
            norm_topk_prob: fields.flag("norm_topk_prob")?.unwrap_or(false),
            sparse_step: fields.size("decoder_sparse_step")?.unwrap_or(1),
            mlp_only_layers: fields.indices("mlp_only_layers")?,
            first_sparse: 0,
            shared_experts: 0,
            grouping: None,
        })
    }
}

fn read_dtype(fields: Fields<'_>) -> Result<Dtype, ConfigError> {
    match fields.either_text(["dtype", "torch_dtype"])? {
        Some((_, "bfloat16")) => Ok(Dtype::Bf16),
        Some((_, "float16")) => Ok(Dtype::F16),
        Some((_, "float32")) => Ok(Dtype::F32),
        Some((field, other)) => Err(ConfigError::Unsupported {
            field: field.to_owned(),
            value: format!("`{other}`"),
            supported: "`bfloat16`, `float16`, `float32`".to_owned(),
        }),
        None => Err(fields.missing("dtype` or `torch_dtype")),
    }
}
