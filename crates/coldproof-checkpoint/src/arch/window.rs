//! Layers that attend to the last positions alone.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::fields::Fields;

/// Attention over the last positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Positions that a row attends to, its own among them.
    pub positions: u64,
    /// Which layers attend like this.
    pub layers: Vec<bool>,
}

impl Window {
    /// Reads `layer_types` and `sliding_window`; where there are no types, `usual` says which
    /// layers slide.
    pub(super) fn read(
        fields: Fields<'_>,
        layers: u64,
        usual: impl Fn(u64) -> bool,
    ) -> Result<Option<Self>, ConfigError> {
        let kinds = fields.texts("layer_types")?;
        let layers = match kinds {
            None => (0..layers).map(usual).collect(),
            Some(kinds) if kinds.len() as u64 == layers => {
                kinds.into_iter().map(|kind| slides(fields, kind)).collect::<Result<Vec<_>, _>>()?
            }
            Some(kinds) => {
                return Err(ConfigError::Size {
                    field: fields.path("layer_types"),
                    value: format!("{} long", kinds.len()),
                    reason: format!("there are {layers} layers"),
                });
            }
        };
        if !layers.contains(&true) {
            return Ok(None);
        }
        Ok(Some(Self { positions: fields.required_size("sliding_window")?, layers }))
    }
}

fn slides(fields: Fields<'_>, kind: &str) -> Result<bool, ConfigError> {
    match kind {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(ConfigError::Unsupported {
            field: fields.path("layer_types"),
            value: format!("`{other}`"),
            supported: "`sliding_attention`, `full_attention`".to_owned(),
        }),
    }
}
