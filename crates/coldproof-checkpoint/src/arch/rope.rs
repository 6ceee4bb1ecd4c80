//! Rotary position embedding: its parameters in both spellings, and its frequencies.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ConfigError;
use super::fields::Fields;

/// The base that transformers takes where a configuration names none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Rotary parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the wavelengths.
    pub theta: f64,
    /// How frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// How frequencies are stretched. Other types of transformers are refused by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "kebab-case")]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high ones kept, those between interpolated.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// Context length before the stretch.
        original_max_positions: u64,
    },
}

impl Rope {
    pub(super) fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        Self::read_or(fields, DEFAULT_THETA)
    }

    /// The parameters of one kind of layers.
    pub(super) fn of(fields: Fields<'_>) -> Result<Self, ConfigError> {
        let theta = fields.positive("rope_theta")?.unwrap_or(DEFAULT_THETA);
        Ok(Self { theta, scaling: RopeScaling::read(fields)? })
    }

    /// As [`Rope::read`], with the family's own base where the configuration names none.
    pub(super) fn read_or(fields: Fields<'_>, usual: f64) -> Result<Self, ConfigError> {
        let outer_theta = fields.positive("rope_theta")?;
        let parameters = fields.object("rope_parameters")?;
        let scaling = fields.object("rope_scaling")?;
        let inner_theta = match parameters {
            Some(parameters) => parameters.positive("rope_theta")?,
            None => None,
        };
        if let (Some(outer), Some(inner)) = (outer_theta, inner_theta)
            && outer != inner
        {
            return Err(ConfigError::Disagree {
                first: "rope_theta".to_owned(),
                first_value: outer.to_string(),
                second: "rope_parameters.rope_theta".to_owned(),
                second_value: inner.to_string(),
            });
        }
        fields.only("partial_rotary_factor", &[json!(1), json!(1.0)])?;
        let scaling = match (parameters, scaling) {
            (Some(new), Some(old)) => {
                let (new, old) = (RopeScaling::read(new)?, RopeScaling::read(old)?);
                if new != old {
                    return Err(ConfigError::Disagree {
                        first: "rope_parameters".to_owned(),
                        first_value: format!("{new:?}"),
                        second: "rope_scaling".to_owned(),
                        second_value: format!("{old:?}"),
                    });
                }
                new
            }
            (Some(only), None) | (None, Some(only)) => RopeScaling::read(only)?,
            (None, None) => RopeScaling::Default,
        };
        Ok(Self { theta: inner_theta.or(outer_theta).unwrap_or(usual), scaling })
    }

    /// The `head_dim / 2` inverse frequencies, in radians a position, rounded once to f32.
    #[must_use]
    pub fn inverse_frequencies(&self, head_dim: u64) -> Vec<f32> {
        let frequency =
            |pair: u64| 1.0 / libm::pow(self.theta, (2 * pair) as f64 / head_dim as f64);
        (0..head_dim / 2).map(|pair| self.scaling.stretch(frequency(pair)) as f32).collect()
    }
}

impl RopeScaling {
    fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        fields.only("partial_rotary_factor", &[json!(1), json!(1.0)])?;
        let (name, kind) =
            fields.either_text(["rope_type", "type"])?.unwrap_or(("rope_type", "default"));
        match kind {
            "default" => Ok(Self::Default),
            "linear" => Ok(Self::Linear { factor: fields.required_positive("factor")? }),
            "llama3" => {
                let low_freq_factor = fields.required_positive("low_freq_factor")?;
                let high_freq_factor = fields.required_positive("high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    return Err(ConfigError::Size {
                        field: fields.path("high_freq_factor"),
                        value: high_freq_factor.to_string(),
                        reason: format!("it must exceed low_freq_factor ({low_freq_factor})"),
                    });
                }
                Ok(Self::Llama3 {
                    factor: fields.required_positive("factor")?,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_positions: fields
                        .required_size("original_max_position_embeddings")?,
                })
            }
            other => Err(ConfigError::Unsupported {
                field: fields.path(name),
                value: format!("`{other}`"),
                supported: "`default`, `linear`, `llama3`".to_owned(),
            }),
        }
    }

    fn stretch(&self, frequency: f64) -> f64 {
        match *self {
            Self::Default => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                let context = original_max_positions as f64;
                if wavelength < context / high_freq_factor {
                    frequency
                } else if wavelength > context / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (context / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }
}
