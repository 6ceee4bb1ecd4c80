//! A model and its draft model as one checkpoint: what an engine that decodes speculatively loads,
//! and what one update delivers.

use std::io::Write;

use camino::Utf8Path;

use crate::arch::DRAFT;
use crate::companions::copy_companions;
use crate::container::{
    CONFIG_NAME, Checkpoint, DRAFT_CONFIG_NAME, Layout, TensorSpec, read_small, write_checkpoint,
    write_whole,
};
use crate::error::{CheckpointError, Fault};

/// Writes a model's tensors beside those of its draft model, whose names get [`DRAFT`] before them.
///
/// # Errors
/// A file that cannot be read or written, or a checkpoint that changed meanwhile.
pub fn compose(
    model: &Checkpoint,
    draft: &Checkpoint,
    out: &Utf8Path,
) -> Result<(), CheckpointError> {
    let own = model.tensors().values().map(TensorSpec::from);
    let drafts = draft.tensors().values().map(|tensor| TensorSpec {
        name: format!("{DRAFT}{}", tensor.name),
        ..TensorSpec::from(tensor)
    });
    write_checkpoint(out, &Layout::single(own.chain(drafts).collect()), |spec| {
        let drafted = spec.name.strip_prefix(DRAFT).and_then(|name| draft.get(name));
        let absent = || Fault::PairDiffers { what: "neither of the two has it".to_owned() };
        let lost = || CheckpointError::tensor(model.directory(), &spec.name, absent());
        model.get(&spec.name).or(drafted).ok_or_else(lost)?.read()
    })?;
    copy_companions(model.directory(), out)?;
    let (text, _) = read_small(&draft.directory().join(CONFIG_NAME))?;
    let path = out.join(DRAFT_CONFIG_NAME);
    write_whole(&path, |file| {
        file.write_all(&text).map_err(|error| CheckpointError::io(&path, "write it", error))
    })?;
    model.verify_unchanged()?;
    draft.verify_unchanged()
}
