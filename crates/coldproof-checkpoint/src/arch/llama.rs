//! `llama`: grouped-query attention and a dense gated MLP, without biases.

use super::fields::Fields;
use super::{ConfigError, Group, ModelConfig, decoder};

/// Early configurations have no field for it: every query head then has its own.
pub(super) fn kv_heads(fields: Fields<'_>, heads: u64) -> Result<u64, ConfigError> {
    Ok(fields.size("num_key_value_heads")?.unwrap_or(heads))
}

/// Absent, it is the hidden size over the heads.
pub(super) fn head_dim(fields: Fields<'_>, hidden: u64, heads: u64) -> Result<u64, ConfigError> {
    if let Some(head_dim) = fields.size("head_dim")? {
        return Ok(head_dim);
    }
    if !hidden.is_multiple_of(heads) {
        return Err(ConfigError::Size {
            field: "num_attention_heads".to_owned(),
            value: heads.to_string(),
            reason: format!("it does not divide hidden_size ({hidden}), and head_dim is missing"),
        });
    }
    Ok(hidden / heads)
}

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = decoder::norms(config, layer).to_vec();
    groups.extend(decoder::attention(config, layer));
    groups.extend(decoder::dense_mlp(config, layer));
    groups
}
