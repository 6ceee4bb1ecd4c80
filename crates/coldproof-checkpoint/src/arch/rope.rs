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
    /// Low frequencies divided by `factor`, high ones kept, a ramp between; cosines and sines
    /// multiplied by [`Rope::magnitude`].
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Turns within the old context from which frequencies are high.
        beta_fast: f64,
        /// Turns within the old context up to which frequencies are low.
        beta_slow: f64,
        /// Context length before the stretch.
        original_max_positions: u64,
        /// Whether the ramp begins and ends at whole pairs.
        truncate: bool,
    },
}

impl Rope {
    pub(super) fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        Self::read_or(fields, DEFAULT_THETA)
    }

    /// The parameters of one kind of layers.
    pub(super) fn of(fields: Fields<'_>) -> Result<Self, ConfigError> {
        let theta = base(&fields)?.unwrap_or(DEFAULT_THETA);
        Ok(Self { theta, scaling: RopeScaling::read(fields)? })
    }

    /// As [`Rope::read`], with the family's own base where the configuration names none.
    pub(super) fn read_or(fields: Fields<'_>, usual: f64) -> Result<Self, ConfigError> {
        let outer_theta = base(&fields)?;
        let parameters = fields.object("rope_parameters")?;
        let scaling = fields.object("rope_scaling")?;
        let inner_theta = match parameters {
            Some(parameters) => base(&parameters)?,
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
        let ramp = self.ramp(head_dim);
        let stretched = |pair: u64| match self.scaling {
            RopeScaling::Yarn { factor, .. } => {
                let low = ((pair as f64 - ramp.0) / (ramp.1 - ramp.0)).clamp(0.0, 1.0);
                frequency(pair) * (low / factor + (1.0 - low))
            }
            _ => self.scaling.stretch(frequency(pair)),
        };
        (0..head_dim / 2).map(|pair| stretched(pair) as f32).collect()
    }

    /// Factor of cosines and sines.
    #[must_use]
    pub fn magnitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { factor, .. } if factor > 1.0 => {
                (0.1 * libm::log(factor) + 1.0) as f32
            }
            _ => 1.0,
        }
    }

    /// The pairs between which yarn goes from high to low frequencies.
    fn ramp(&self, head_dim: u64) -> (f64, f64) {
        let RopeScaling::Yarn { beta_fast, beta_slow, original_max_positions, truncate, .. } =
            self.scaling
        else {
            return (0.0, 1.0);
        };
        let (context, dim) = (original_max_positions as f64, head_dim as f64);
        let pair = |turns: f64| {
            let wavelength = context / (turns * 2.0 * std::f64::consts::PI);
            dim * libm::log(wavelength) / (2.0 * libm::log(self.theta))
        };
        let (mut first, mut last) = (pair(beta_fast), pair(beta_slow));
        if truncate {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, last) = (first.max(0.0), last.min(dim - 1.0));
        // As transformers does it, so that there is no division by zero.
        (first, if first == last { last + 0.001 } else { last })
    }
}

/// The base of the frequencies. Powers of one are all alike, and its logarithm divides nothing.
fn base(fields: &Fields<'_>) -> Result<Option<f64>, ConfigError> {
    let theta = fields.positive("rope_theta")?;
    match theta {
        Some(theta) if theta <= 1.0 => Err(ConfigError::Size {
            field: fields.path("rope_theta"),
            value: theta.to_string(),
            reason: "it must exceed 1".to_owned(),
        }),
        theta => Ok(theta),
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
            "yarn" => {
                for other in ["attention_factor", "mscale", "mscale_all_dim"] {
                    fields.only(other, &[])?;
                }
                let beta_fast = fields.positive("beta_fast")?.unwrap_or(32.0);
                let beta_slow = fields.positive("beta_slow")?.unwrap_or(1.0);
                if beta_fast <= beta_slow {
                    return Err(ConfigError::Size {
                        field: fields.path("beta_fast"),
                        value: beta_fast.to_string(),
                        reason: format!("it must exceed beta_slow ({beta_slow})"),
                    });
                }
                Ok(Self::Yarn {
                    factor: fields.required_positive("factor")?,
                    beta_fast,
                    beta_slow,
                    original_max_positions: fields
                        .required_size("original_max_position_embeddings")?,
                    truncate: fields.flag("truncate")?.unwrap_or(true),
                })
            }
            other => Err(ConfigError::Unsupported {
                field: fields.path(name),
                value: format!("`{other}`"),
                supported: "`default`, `linear`, `llama3`, `yarn`".to_owned(),
            }),
        }
    }

    fn stretch(&self, frequency: f64) -> f64 {
        match *self {
            Self::Default | Self::Yarn { .. } => frequency,
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
