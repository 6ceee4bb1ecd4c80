//! What can be said of a model whose family the catalogue does not know.

use camino::Utf8Path;

use crate::container::{CONFIG_NAME, read_small};
use crate::error::{CheckpointError, Fault};
use crate::json;

use super::ConfigError;
use super::fields::Fields;

/// Positions of a model that states none, such as one without attention.
pub(super) const POSITIONS: u64 = 4_096;

/// The few fields that every decoder's `config.json` has, whatever the family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// `model_type`.
    pub model_type: String,
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Positions that a sequence may have.
    pub max_positions: u64,
}

impl Outline {
    /// Reads `config.json` in the directory of a checkpoint. Of a model with several parts, the
    /// text part counts.
    ///
    /// # Errors
    /// A file that cannot be read, malformed JSON, no `model_type`, no vocabulary.
    pub fn read(directory: &Utf8Path) -> Result<Self, CheckpointError> {
        let path = directory.join(CONFIG_NAME);
        let (text, _) = read_small(&path)?;
        Self::of(&text).map_err(|error| CheckpointError::file(&path, Fault::Config(error)))
    }

    fn of(text: &[u8]) -> Result<Self, ConfigError> {
        let value = json::parse_configuration(text)?;
        let root = Fields::root(&value)?;
        let text = root.object("text_config")?.unwrap_or(root);
        let model_type = root.text("model_type")?.ok_or_else(|| root.missing("model_type"))?;
        Ok(Self {
            model_type: model_type.to_owned(),
            vocab_size: text.required_size("vocab_size")?,
            max_positions: text.size("max_position_embeddings")?.unwrap_or(POSITIONS),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_part_counts_where_there_is_one() {
        let plain = br#"{"model_type":"mamba2","vocab_size":7}"#;
        let outline = Outline::of(plain).unwrap();
        assert_eq!((outline.vocab_size, outline.max_positions), (7, POSITIONS));
        let parts = br#"{"model_type":"gemma3","vocab_size":1,
            "text_config":{"vocab_size":9,"max_position_embeddings":64}}"#;
        let outline = Outline::of(parts).unwrap();
        assert_eq!((outline.model_type.as_str(), outline.vocab_size), ("gemma3", 9));
        assert_eq!(outline.max_positions, 64);
    }

    #[test]
    fn without_a_type_or_a_vocabulary_it_is_no_model() {
        for text in [&br#"{"vocab_size":7}"#[..], br#"{"model_type":"x"}"#, b"[]", b"{"] {
            assert!(Outline::of(text).is_err());
        }
    }
}
