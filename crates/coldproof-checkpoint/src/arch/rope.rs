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
        /// Factors of its own, in families that have them.
        mscale: Option<Mscale>,
    },
}

/// How strongly yarn multiplies, where the configuration says so.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mscale {
    /// Of cosines and sines, before `all` is divided out.
    pub rotated: f64,
    /// Of queries and of keys, whole.
    pub all: f64,
}

impl Mscale {
    /// Both or none: with one of them, transformers and vLLM compute different factors.
    fn read(fields: Fields<'_>) -> Result<Option<Self>, ConfigError> {
        match (fields.positive("mscale")?, fields.positive("mscale_all_dim")?) {
            (Some(rotated), Some(all)) => Ok(Some(Self { rotated, all })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(fields.missing("mscale_all_dim")),
            (None, Some(_)) => Err(fields.missing("mscale")),
        }
    }
}

/// The usual growth of yarn's magnitude.
fn growth(factor: f64, mscale: f64) -> f64 {
    if factor > 1.0 { 0.1 * mscale * libm::log(factor) + 1.0 } else { 1.0 }
}

impl Rope {
    pub(super) fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        Self::read_or(fields, DEFAULT_THETA)
    }

    /// Of a family that has [`Mscale`].
    pub(super) fn read_scaled(fields: Fields<'_>) -> Result<Self, ConfigError> {
        Self::read_with(fields, DEFAULT_THETA, Mscale::read)
    }

    /// The parameters of one kind of layers.
    pub(super) fn of(fields: Fields<'_>) -> Result<Self, ConfigError> {
        let theta = base(&fields)?.unwrap_or(DEFAULT_THETA);
        Ok(Self { theta, scaling: RopeScaling::read(fields, no_mscale)? })
    }

    /// As [`Rope::read`], with the family's own base where the configuration names none.
    pub(super) fn read_or(fields: Fields<'_>, usual: f64) -> Result<Self, ConfigError> {
        Self::read_with(fields, usual, no_mscale)
    }

    fn read_with(fields: Fields<'_>, usual: f64, mscale: ReadMscale) -> Result<Self, ConfigError> {
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
                let (new, old) = (RopeScaling::read(new, mscale)?, RopeScaling::read(old, mscale)?);
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
            (Some(only), None) | (None, Some(only)) => RopeScaling::read(only, mscale)?,
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
            RopeScaling::Yarn { factor, mscale: None, .. } => growth(factor, 1.0) as f32,
            RopeScaling::Yarn { factor, mscale: Some(mscale), .. } => {
                (growth(factor, mscale.rotated) / growth(factor, mscale.all)) as f32
            }
            _ => 1.0,
        }
    }

    /// Factor of scores: that of whole queries times that of whole keys.
    #[must_use]
    pub fn score_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { factor, mscale: Some(mscale), .. } => {
                let one = growth(factor, mscale.all);
                one * one
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

/// Reads yarn's own factors, or refuses them.
type ReadMscale = fn(Fields<'_>) -> Result<Option<Mscale>, ConfigError>;

fn no_mscale(fields: Fields<'_>) -> Result<Option<Mscale>, ConfigError> {
    fields.only("mscale", &[])?;
    fields.only("mscale_all_dim", &[])?;
    Ok(None)
}

impl RopeScaling {
    fn read(fields: Fields<'_>, mscale: ReadMscale) -> Result<Self, ConfigError> {
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
                fields.only("attention_factor", &[])?;
                let mscale = mscale(fields)?;
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
                    mscale,
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
