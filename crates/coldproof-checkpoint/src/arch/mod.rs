//! Families of models: `config.json` to the sources that a checkpoint must hold and the slots where
//! they belong.

mod adapter;
mod catalogue;
mod config;
mod decoder;
mod deepseek_v3;
mod draft;
mod error;
mod experts;
mod fields;
mod gemma3;
mod gpt_oss;
mod llama;
mod llava;
mod mamba2;
mod mixtral;
mod mla;
mod mtp;
mod nemotron_h;
mod outline;
mod processor;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rope;
mod state_space;
#[cfg(test)]
mod tests;
mod vision;
mod window;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub(crate) use adapter::{adapter_rank, adapter_scale};
pub use catalogue::{Catalogue, Group, Spelling, SpellingName, TiedSource};
pub use config::{Activation, AttentionBias, ModelConfig, Moe};
pub use deepseek_v3::Grouping;
pub use draft::DRAFT;
pub use error::ConfigError;
pub use gpt_oss::Swiglu;
pub use mla::Mla;
pub use outline::Outline;
pub use processor::Processor;
pub use rope::{Mscale, Rope, RopeScaling};
pub use state_space::{Mixer, StateSpace};
pub use vision::{EncoderActivation, Vision};
pub use window::Window;

use fields::Fields;

/// A family of models, by transformers' `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// DeepSeek-V3: latent attention, shared experts.
    DeepseekV3,
    /// Gemma 3, text alone.
    Gemma3Text,
    /// GPT-OSS, not quantised.
    GptOss,
    /// Llama, with or without a tied head.
    Llama,
    /// LLaVA: a llama behind a vision tower.
    Llava,
    /// Mamba 2.
    Mamba2,
    /// Mixtral: llama with experts.
    Mixtral,
    /// Nemotron-H: state spaces, attention and MLPs, without experts.
    NemotronH,
    /// Qwen2, dense.
    Qwen2,
    /// Qwen3, dense.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 11] = [
        Self::DeepseekV3,
        Self::Gemma3Text,
        Self::GptOss,
        Self::Llama,
        Self::Llava,
        Self::Mamba2,
        Self::Mixtral,
        Self::NemotronH,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen3Moe,
    ];

    /// The spelling of `config.json`.
    #[must_use]
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::DeepseekV3 => "deepseek_v3",
            Self::Gemma3Text => "gemma3_text",
            Self::GptOss => "gpt_oss",
            Self::Llama => "llama",
            Self::Llava => "llava",
            Self::Mamba2 => "mamba2",
            Self::Mixtral => "mixtral",
            Self::NemotronH => "nemotron_h",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
        }
    }

    /// The fields of the text part.
    fn text(self, root: Fields<'_>) -> Result<Fields<'_>, ConfigError> {
        if self != Self::Llava {
            return Ok(root);
        }
        let text = root.object("text_config")?.ok_or_else(|| root.missing("text_config"))?;
        llava::refuse(root, text)?;
        Ok(text)
    }

    fn moe(self, fields: Fields<'_>) -> Result<Option<Moe>, ConfigError> {
        match self {
            Self::DeepseekV3 => deepseek_v3::moe(fields).map(Some),
            Self::GptOss | Self::Mixtral => mixtral::moe(fields).map(Some),
            Self::Qwen3Moe => Moe::read(fields).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether engines at large keep sources at the catalogue's slots, in its order and as they
    /// are; where they do not, what a cold load shows is the placement there. vLLM turns the
    /// experts of gpt_oss, widens the corrections of deepseek_v3 and, on CPU, the biases of qwen2,
    /// by its source it leaves parts of llava's tower out, and of a state space it keeps no `A_log`
    /// but what its loader makes of it.
    #[must_use]
    pub const fn placed_alike(self) -> bool {
        !matches!(
            self,
            Self::DeepseekV3
                | Self::GptOss
                | Self::Llava
                | Self::Mamba2
                | Self::NemotronH
                | Self::Qwen2
        )
    }

    fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        let found = fields.text("model_type")?.ok_or_else(|| fields.missing("model_type"))?;
        Self::ALL.into_iter().find(|family| family.model_type() == found).ok_or_else(|| {
            let known = Self::ALL.map(|family| format!("`{}`", family.model_type()));
            ConfigError::Unsupported {
                field: "model_type".to_owned(),
                value: format!("`{found}`"),
                supported: known.join(", "),
            }
        })
    }

    fn kv_heads(self, fields: Fields<'_>, heads: u64) -> Result<u64, ConfigError> {
        match self {
            Self::DeepseekV3 => deepseek_v3::kv_heads(fields, heads),
            Self::Llama | Self::Llava => llama::kv_heads(fields, heads),
            _ => fields.required_size("num_key_value_heads"),
        }
    }

    fn head_dim(self, fields: Fields<'_>, hidden: u64, heads: u64) -> Result<u64, ConfigError> {
        match self {
            // What is rotated of a head, as in transformers.
            Self::DeepseekV3 => fields.required_size("qk_rope_head_dim"),
            Self::Llama | Self::Llava | Self::Mixtral | Self::Qwen2 => {
                llama::head_dim(fields, hidden, heads)
            }
            // The families' default changed between versions of transformers: none is assumed.
            _ => fields.required_size("head_dim"),
        }
    }

    /// Rotary parameters, and those of layers that attend to all positions, if they have others.
    fn ropes(self, fields: Fields<'_>) -> Result<(Rope, Option<Rope>), ConfigError> {
        match self {
            Self::DeepseekV3 => Ok((Rope::read_scaled(fields)?, None)),
            Self::Gemma3Text => gemma3::ropes(fields),
            _ => Ok((Rope::read(fields)?, None)),
        }
    }

    /// Dimensions of latent attention, in families that have it.
    fn mla(self, fields: Fields<'_>) -> Result<Option<Mla>, ConfigError> {
        match self {
            Self::DeepseekV3 => Mla::read(fields).map(Some),
            _ => Ok(None),
        }
    }

    fn window(self, fields: Fields<'_>, layers: u64) -> Result<Option<Window>, ConfigError> {
        match self {
            Self::Gemma3Text => gemma3::window(fields, layers),
            Self::GptOss => gpt_oss::window(fields, layers),
            _ => Ok(None),
        }
    }

    /// What each layer is, where it is one mixer behind one norm.
    fn mixers(self, fields: Fields<'_>, layers: u64) -> Result<Vec<Mixer>, ConfigError> {
        match self {
            Self::Mamba2 => Ok((0..layers).map(|_| Mixer::StateSpace).collect()),
            Self::NemotronH => nemotron_h::mixers(fields),
            _ => Ok(Vec::new()),
        }
    }

    /// Refuses features of the family that would change what is computed.
    fn refuse(self, fields: Fields<'_>) -> Result<(), ConfigError> {
        match self {
            Self::DeepseekV3 => return deepseek_v3::refuse(fields),
            Self::Gemma3Text => return gemma3::refuse(fields),
            Self::GptOss => return gpt_oss::refuse(fields),
            // No other field says whether it is used.
            Self::Mixtral => fields.only("sliding_window", &[])?,
            _ => {}
        }
        fields.only("hidden_act", &[json!("silu")])?;
        fields.only("attention_bias", &[json!(false)])?;
        fields.only("mlp_bias", &[json!(false)])?;
        fields.only("use_sliding_window", &[json!(false)])?;
        fields.only_all("layer_types", &json!("full_attention"))
    }

    fn layer(self, config: &ModelConfig, layer: u64) -> Vec<Group> {
        match self {
            Self::DeepseekV3 => deepseek_v3::layer(config, layer),
            Self::Gemma3Text => gemma3::layer(config, layer),
            Self::GptOss => gpt_oss::layer(config, layer),
            Self::Llama | Self::Llava => llama::layer(config, layer),
            Self::Mamba2 => mamba2::layer(config, layer),
            Self::Mixtral => mixtral::layer(config, layer),
            Self::NemotronH => nemotron_h::layer(config, layer),
            Self::Qwen2 => qwen2::layer(config, layer),
            Self::Qwen3 => qwen3::layer(config, layer),
            Self::Qwen3Moe => qwen3_moe::layer(config, layer),
        }
    }
}
