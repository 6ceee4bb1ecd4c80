//! The files beside the weights that a derived checkpoint needs to be loaded like its original.

use std::io::Write;

use camino::Utf8Path;

use crate::container::{sync_directory, write_whole};
use crate::error::CheckpointError;

/// Copied where they exist.
const NAMES: [&str; 14] = [
    "config.json",
    "draft_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Copies configuration and tokenizer from one checkpoint's directory to another's.
pub(crate) fn copy_companions(from: &Utf8Path, to: &Utf8Path) -> Result<(), CheckpointError> {
    for name in NAMES {
        let source = from.join(name);
        if !source.is_file() {
            continue;
        }
        let bytes = std::fs::read(&source)
            .map_err(|error| CheckpointError::io(&source, "read it", error))?;
        let target = to.join(name);
        write_whole(&target, |out| {
            out.write_all(&bytes).map_err(|error| CheckpointError::io(&target, "write it", error))
        })?;
    }
    sync_directory(to)
}
