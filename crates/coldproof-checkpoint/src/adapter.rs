//! An adapter (LoRA) in a folder, as PEFT writes it. What it is, is its content.

use camino::Utf8Path;

use coldproof_contract::digest::content;
use coldproof_contract::words::Hex128;

use crate::arch::adapter_rank;
use crate::container::{ADAPTER_NAME, Checkpoint, read_small};
use crate::digests::digest_checkpoint;
use crate::error::{CheckpointError, Fault};

/// File name of an adapter's configuration.
pub(crate) const CONFIG: &str = "adapter_config.json";
/// The files of an adapter.
pub const ADAPTER_FILES: [&str; 2] = [CONFIG, ADAPTER_NAME];

/// An adapter whose files were read and found sound.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// `r` of its configuration: columns of its smaller factors.
    pub rank: u64,
    /// Digest of its tensors' digest and the bytes of its configuration.
    pub content: Hex128,
}

impl Adapter {
    /// Reads `adapter_model.safetensors` and `adapter_config.json` in a folder.
    ///
    /// # Errors
    /// A file that is missing or broken, one that changed meanwhile, no rank.
    pub fn read(folder: &Utf8Path) -> Result<Self, CheckpointError> {
        let weights = Checkpoint::open_adapter(folder)?;
        let path = folder.join(CONFIG);
        let (config, _) = read_small(&path)?;
        Self::of(&weights, &path, &config)
    }

    /// Of these weights and the configuration at this path.
    pub(crate) fn of(
        weights: &Checkpoint,
        path: &Utf8Path,
        config: &[u8],
    ) -> Result<Self, CheckpointError> {
        let rank = adapter_rank(config)
            .map_err(|error| CheckpointError::file(path, Fault::Config(error)))?;
        let whole = [digest_checkpoint(weights)?.digest.as_bytes(), config].concat();
        Ok(Self { rank, content: content(&whole) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One tensor of two bytes.
    fn adapter(bytes: [u8; 2], config: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let header = br#"{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header);
        file.extend_from_slice(&bytes);
        std::fs::write(folder.path().join(ADAPTER_NAME), file).unwrap();
        std::fs::write(folder.path().join(CONFIG), config).unwrap();
        folder
    }

    fn read(folder: &tempfile::TempDir) -> Result<Adapter, CheckpointError> {
        Adapter::read(Utf8Path::from_path(folder.path()).unwrap())
    }

    #[test]
    fn an_adapter_is_its_tensors_and_its_configuration_wherever_it_lies() {
        let one = read(&adapter([1, 2], r#"{"r":8}"#)).unwrap();
        assert_eq!(one.rank, 8);
        assert_eq!(one.content, read(&adapter([1, 2], r#"{"r":8}"#)).unwrap().content);
        assert_ne!(one.content, read(&adapter([1, 3], r#"{"r":8}"#)).unwrap().content);
        let scaled = read(&adapter([1, 2], r#"{"r":8,"lora_alpha":16}"#)).unwrap();
        assert_ne!(one.content, scaled.content);
    }

    #[test]
    fn what_is_no_adapter_is_refused_by_its_file() {
        let file = |folder: &tempfile::TempDir| read(folder).unwrap_err().file;
        assert!(file(&adapter([1, 2], "{}")).ends_with(CONFIG));
        let folder = adapter([1, 2], r#"{"r":8}"#);
        std::fs::remove_file(folder.path().join(ADAPTER_NAME)).unwrap();
        assert!(file(&folder).ends_with("adapter_model.safetensors"));
    }
}
