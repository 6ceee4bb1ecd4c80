//! Families of models: `config.json` to the sources that a checkpoint must hold and the slots where
//! they belong.

mod adapter;
mod catalogue;
mod config;
mod decoder;
mod error;
mod fields;
mod llama;
mod outline;
mod qwen3;
mod qwen3_moe;
mod rope;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(crate) use adapter::adapter_rank;
pub use catalogue::{Catalogue, Group, Spelling, SpellingName, TiedSource};
pub use config::{ModelConfig, Moe};
pub use error::ConfigError;
pub use outline::Outline;
pub use rope::{Rope, RopeScaling};

use fields::Fields;

/// A family of models, by transformers' `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Llama, with or without a tied head.
    Llama,
    /// Qwen3, dense.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen3, Self::Qwen3Moe];

    /// The spelling of `config.json`.
    #[must_use]
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
        }
    }

    const fn is_moe(self) -> bool {
        matches!(self, Self::Qwen3Moe)
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
            Self::Llama => llama::kv_heads(fields, heads),
            Self::Qwen3 | Self::Qwen3Moe => fields.required_size("num_key_value_heads"),
        }
    }

    fn head_dim(self, fields: Fields<'_>, hidden: u64, heads: u64) -> Result<u64, ConfigError> {
        match self {
            Self::Llama => llama::head_dim(fields, hidden, heads),
            // The families' default changed between versions of transformers: none is assumed.
            Self::Qwen3 | Self::Qwen3Moe => fields.required_size("head_dim"),
        }
    }

    fn layer(self, config: &ModelConfig, layer: u64) -> Vec<Group> {
        match self {
            Self::Llama => llama::layer(config, layer),
            Self::Qwen3 => qwen3::layer(config, layer),
            Self::Qwen3Moe => qwen3_moe::layer(config, layer),
        }
    }
}
