//! What an adapter's configuration says.

use serde_json::Value;

use crate::json;

use super::ConfigError;
use super::fields::Fields;

/// Fields that change what an adapter computes, where they say anything.
const NOT_COMPUTED: [&str; 12] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "fan_in_fan_out",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
];

/// `r` of an `adapter_config.json`.
///
/// # Errors
/// Malformed JSON, no rank, or one that is none.
pub(crate) fn adapter_rank(text: &[u8]) -> Result<u64, ConfigError> {
    let value = json::parse(text)?;
    Fields::root(&value)?.required_size("r")
}

/// The factor of `B A x` that an `adapter_config.json` asks for: `lora_alpha / r`, or
/// `lora_alpha / √r` with `use_rslora`.
///
/// # Errors
/// Malformed JSON, no rank or no `lora_alpha`, and whatever changes the mathematics otherwise.
pub(crate) fn adapter_scale(text: &[u8]) -> Result<f64, ConfigError> {
    let value = json::parse(text)?;
    let fields = Fields::root(&value)?;
    fields.only("peft_type", &["LORA".into()])?;
    fields.only("bias", &["none".into()])?;
    for name in NOT_COMPUTED {
        if let Some(said) = value.get(name).filter(|said| !says_nothing(said)) {
            return Err(ConfigError::Unsupported {
                field: name.to_owned(),
                value: said.to_string(),
                supported: "an adapter without it".to_owned(),
            });
        }
    }
    let rank = fields.required_size("r")? as f64;
    let alpha = fields.required_positive("lora_alpha")?;
    let stabilised = fields.flag("use_rslora")?.unwrap_or(false);
    Ok(alpha / if stabilised { rank.sqrt() } else { rank })
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_alpha_over_the_rank_or_its_root() {
        let scale = |text: &str| adapter_scale(text.as_bytes()).unwrap();
        assert_eq!(scale(r#"{"r":16,"lora_alpha":8}"#), 0.5);
        assert_eq!(scale(r#"{"r":16,"lora_alpha":8,"use_rslora":true}"#), 2.0);
        let silent = r#"{"r":4,"lora_alpha":4,"peft_type":"LORA","bias":"none","use_dora":false,
            "rank_pattern":{},"alpha_pattern":null,"modules_to_save":[]}"#;
        assert_eq!(scale(silent), 1.0);
    }

    #[test]
    fn what_changes_the_mathematics_is_refused_by_name() {
        for (field, value) in [
            ("use_dora", "true"),
            ("rank_pattern", r#"{"q_proj":4}"#),
            ("alpha_pattern", r#"{"q_proj":4}"#),
            ("bias", r#""all""#),
            ("modules_to_save", r#"["lm_head"]"#),
            ("fan_in_fan_out", "true"),
            ("peft_type", r#""LOHA""#),
            ("lora_alpha", "0"),
        ] {
            let text = if field == "lora_alpha" {
                r#"{"r":4,"lora_alpha":0}"#.to_owned()
            } else {
                format!(r#"{{"r":4,"lora_alpha":4,"{field}":{value}}}"#)
            };
            let error = adapter_scale(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
        let error = adapter_scale(br#"{"r":4}"#).unwrap_err().to_string();
        assert!(error.contains("`lora_alpha` is missing"), "{error}");
    }
}
