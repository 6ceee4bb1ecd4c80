//! How an image's pixels are prepared: `preprocessor_config.json`, or the part of it that
//! transformers 5 keeps in `processor_config.json`.

use camino::Utf8Path;
use coldproof_contract::digest::content;
use serde::{Deserialize, Serialize};

use crate::container::{PROCESSOR_NAMES, read_small};
use crate::error::{CheckpointError, Fault};
use crate::json;

use super::ConfigError;
use super::fields::Fields;

/// The object of `processor_config.json` that the older file consists of.
const NESTED: &str = "image_processor";

/// `(value * rescale - mean) / std`, by channel. Images have the tower's size already: none is
/// resized or cropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Processor {
    /// Factor of a byte.
    pub rescale: f32,
    /// One for each channel.
    pub mean: Vec<f32>,
    /// One for each channel; positive.
    pub std: Vec<f32>,
}

impl Default for Processor {
    /// CLIP's.
    fn default() -> Self {
        Self {
            rescale: 1.0 / 255.0,
            mean: vec![0.481_454_66, 0.457_827_5, 0.408_210_73],
            std: vec![0.268_629_54, 0.261_302_6, 0.275_777_1],
        }
    }
}

impl Processor {
    /// Reads the file beside a checkpoint's weights; CLIP's where there is none.
    ///
    /// # Errors
    /// A file that cannot be read, a field of another kind, or not one value for each channel.
    pub(super) fn beside(directory: &Utf8Path, channels: u64) -> Result<Self, CheckpointError> {
        let found = PROCESSOR_NAMES.iter().map(|name| directory.join(name));
        let Some(path) = found.into_iter().find(|path| path.is_file()) else {
            let usual = Self::default();
            return usual
                .of_channels(channels)
                .map_err(|error| CheckpointError::file(directory, Fault::Config(error)));
        };
        let (text, _) = read_small(&path)?;
        let read = Self::parse(&text).and_then(|read| read.of_channels(channels));
        read.map_err(|error| CheckpointError::file(&path, Fault::Config(error)))
    }

    pub(super) fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let value = json::parse(text)?;
        let root = Fields::root(&value)?;
        let fields = root.object(NESTED)?.unwrap_or(root);
        let usual = Self::default();
        let rescaled = fields.flag("do_rescale")?.unwrap_or(true);
        let rescale = match fields.positive("rescale_factor")? {
            _ if !rescaled => 1.0,
            Some(factor) => factor as f32,
            None => usual.rescale,
        };
        if fields.flag("do_normalize")? == Some(false) {
            let (mean, std) = (vec![0.0; usual.mean.len()], vec![1.0; usual.std.len()]);
            return Ok(Self { rescale, mean, std });
        }
        let numbers = |name: &str, usual: Vec<f32>| -> Result<Vec<f32>, ConfigError> {
            let found = fields.numbers(name)?;
            Ok(found.map_or(usual, |found| found.into_iter().map(|n| n as f32).collect()))
        };
        let (mean, std) = (numbers("image_mean", usual.mean)?, numbers("image_std", usual.std)?);
        match std.iter().find(|std| !(std.is_normal() && **std > 0.0)) {
            None => Ok(Self { rescale, mean, std }),
            Some(std) => Err(ConfigError::Size {
                field: fields.path("image_std"),
                value: std.to_string(),
                reason: "it must be positive".to_owned(),
            }),
        }
    }

    fn of_channels(self, channels: u64) -> Result<Self, ConfigError> {
        for (field, values) in [("image_mean", &self.mean), ("image_std", &self.std)] {
            if values.len() as u64 != channels {
                return Err(ConfigError::Size {
                    field: field.to_owned(),
                    value: format!("{} long", values.len()),
                    reason: format!("an image has {channels} channels"),
                });
            }
        }
        Ok(self)
    }

    /// Which processor this is, among others.
    #[must_use]
    pub fn version(&self) -> String {
        let values = [self.rescale].into_iter().chain(self.mean.iter().copied());
        let values = values.chain(self.std.iter().copied());
        let bytes: Vec<u8> = values.flat_map(|value| value.to_bits().to_le_bytes()).collect();
        content(&bytes).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_say_the_same_and_what_is_absent_is_that_of_clip() {
        let old = br#"{"image_mean": [0.5, 0.25, 1], "image_std": [1, 2, 4],
            "rescale_factor": 0.5}"#;
        let read = Processor::parse(old).unwrap();
        assert_eq!((read.rescale, read.mean[1], read.std[2]), (0.5, 0.25, 4.0));
        let new = [&br#"{"image_processor": "#[..], old, b"}"].concat();
        assert_eq!(Processor::parse(&new).unwrap(), read);
        assert_eq!(Processor::parse(b"{}").unwrap(), Processor::default());
        let plain = br#"{"do_rescale": false, "rescale_factor": 0.5, "do_normalize": false}"#;
        let plain = Processor::parse(plain).unwrap();
        assert_eq!((plain.rescale, plain.mean, plain.std), (1.0, vec![0.0; 3], vec![1.0; 3]));
    }

    #[test]
    fn a_version_stands_for_every_value() {
        let usual = Processor::default();
        let mut other = usual.clone();
        other.std[1] += 0.5;
        assert_ne!(other.version(), usual.version());
        assert_eq!(Processor::default().version(), usual.version());
    }

    #[test]
    fn values_that_no_image_can_have_are_refused() {
        for text in [
            &br#"{"image_std": [1, 0, 1]}"#[..],
            br#"{"image_std": "x"}"#,
            br#"{"image_mean": [null]}"#,
            br#"{"rescale_factor": -1}"#,
        ] {
            assert!(Processor::parse(text).is_err(), "{}", String::from_utf8_lossy(text));
        }
        assert!(Processor::default().of_channels(1).is_err());
    }
}
