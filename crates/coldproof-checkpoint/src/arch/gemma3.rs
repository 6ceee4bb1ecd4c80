//! `gemma3_text`: norms on both sides of attention and MLP, most layers over a window and with
//! rotary parameters of their own, a tied head.

use serde_json::json;

use super::fields::Fields;
use super::{ConfigError, Group, ModelConfig, Rope, RopeScaling, Window, decoder};

/// Every so many layers one attends to all positions, where nothing else is said.
const PATTERN: u64 = 6;
/// The base of layers with a window, where nothing else is said.
const LOCAL_THETA: f64 = 10_000.0;
/// The scores' factor is one over the root of this, where nothing else is said.
const QUERY_SCALAR: f64 = 256.0;

/// Of layers with a window, then of the others.
pub(super) fn ropes(fields: Fields<'_>) -> Result<(Rope, Option<Rope>), ConfigError> {
    let by_kind = match fields.object("rope_parameters")? {
        Some(parameters) => {
            (parameters.object("sliding_attention")?, parameters.object("full_attention")?)
        }
        None => (None, None),
    };
    match by_kind {
        (Some(local), Some(global)) => return Ok((Rope::of(local)?, Some(Rope::of(global)?))),
        (None, None) => {}
        (None, Some(_)) => return Err(fields.missing("rope_parameters.sliding_attention")),
        (Some(_), None) => return Err(fields.missing("rope_parameters.full_attention")),
    }
    let theta = fields.positive("rope_local_base_freq")?.unwrap_or(LOCAL_THETA);
    let global = Rope::read_or(fields, 1_000_000.0)?;
    Ok((Rope { theta, scaling: RopeScaling::Default }, Some(global)))
}

pub(super) fn window(fields: Fields<'_>, layers: u64) -> Result<Option<Window>, ConfigError> {
    let named = ["sliding_window_pattern", "_sliding_window_pattern"];
    let pattern = fields.either_size(named)?.unwrap_or(PATTERN);
    Window::read(fields, layers, |layer| !(layer + 1).is_multiple_of(pattern))
}

/// What the scores are divided by the root of.
pub(super) fn query_scalar(fields: Fields<'_>) -> Result<f64, ConfigError> {
    Ok(fields.positive("query_pre_attn_scalar")?.unwrap_or(QUERY_SCALAR))
}

pub(super) fn refuse(fields: Fields<'_>) -> Result<(), ConfigError> {
    fields.only("hidden_activation", &[json!("gelu_pytorch_tanh")])?;
    fields.only("hidden_act", &[json!("gelu_pytorch_tanh")])?;
    fields.only("attention_bias", &[json!(false)])?;
    fields.only("use_bidirectional_attention", &[json!(false)])?;
    fields.only("attn_logit_softcapping", &[])?;
    fields.only("final_logit_softcapping", &[])
}

pub(super) fn layer(config: &ModelConfig, layer: u64) -> Vec<Group> {
    let mut groups = decoder::norms(config, layer).to_vec();
    for name in ["pre_feedforward_layernorm", "post_feedforward_layernorm"] {
        groups.push(decoder::replicated(config, layer, name, &[config.hidden_size]));
    }
    groups.extend(decoder::attention(config, layer));
    groups.extend(decoder::qk_norms(config, layer));
    groups.extend(decoder::dense_mlp(config, layer));
    groups
}
