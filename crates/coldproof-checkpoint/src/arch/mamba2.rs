//! `mamba2`: a norm and a state-space mixer a layer, nothing that attends.
//!
//! As in transformers the gated norm is over all channels; vLLM norms by groups.

use serde_json::json;

use super::fields::Fields;
use super::outline::POSITIONS;
use super::{ConfigError, Family, Group, ModelConfig, StateSpace, decoder, state_space};

pub(super) fn read(fields: Fields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("hidden_act", &[json!("silu")])?;
    fields.only("rms_norm", &[json!(true)])?;
    state_space::refuse(fields)?;
    let space = StateSpace {
        heads: fields.required_size("num_heads")?,
        head_dim: fields.required_size("head_dim")?,
        groups: fields.required_size("n_groups")?,
        state_size: fields.required_size("state_size")?,
        kernel: fields.required_size("conv_kernel")?,
        conv_bias: fields.flag("use_conv_bias")?.unwrap_or(true),
        norm_groups: 1,
    };
    space.check(["num_heads", "n_groups", "state_size"])?;
    let hidden_size = fields.required_size("hidden_size")?;
    let wanted = hidden_size * fields.size("expand")?.unwrap_or(2);
    if wanted != space.inner() {
        return Err(ConfigError::Size {
            field: "num_heads".to_owned(),
            value: space.heads.to_string(),
            reason: format!(
                "num_heads x head_dim is {} and hidden_size x expand is {wanted}",
                space.inner()
            ),
        });
    }
    Ok(ModelConfig {
        intermediate_size: space.inner(),
        heads: space.heads,
        kv_heads: space.groups,
        head_dim: space.head_dim,
        max_positions: POSITIONS,
        rms_norm_eps: fields.required_positive("layer_norm_epsilon")?,
        state_space: Some(space),
        ..ModelConfig::bare(Family::Mamba2, fields, fields)?
    })
}

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let path = format!("backbone.layers.{layer}");
    let mut groups = vec![decoder::norm(config, [&path, &path])];
    groups.extend(state_space::groups(config, [&path, &path]));
    groups
}
