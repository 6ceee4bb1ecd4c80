//! One checkpoint as a run takes it: opened, accounted for by name, and computable.

use camino::Utf8Path;
use coldproof_checkpoint::arch::{Catalogue, ModelConfig};
use coldproof_checkpoint::{Accounting, Checkpoint, redundant_differs, rules_of};
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::Dtype;

use super::failure;
use crate::error::Failure;

/// The fewest positions that the fixed requests fit in.
const POSITIONS_MIN: u64 = 4;

/// One checkpoint with all that is known of it.
pub(super) struct Read {
    /// The files.
    pub(super) checkpoint: Checkpoint,
    /// Where each of its sources belongs.
    pub(super) rules: Vec<SourceRule>,
    /// What the model expects.
    pub(super) catalogue: Catalogue,
    /// Its configuration.
    pub(super) model: ModelConfig,
}

/// Reads one checkpoint and accounts for its names: what cannot be loaded cold has no cold load to
/// be compared with.
///
/// # Errors
/// Files that cannot be read, a model that nobody knows or that the embedded engine cannot compute,
/// names that do not add up.
pub(super) fn read(folder: &Utf8Path) -> Result<Read, Failure> {
    let checkpoint = Checkpoint::open(folder).map_err(failure)?;
    let model = ModelConfig::read(folder).map_err(failure)?;
    computable(folder, &model)?;
    let catalogue = Catalogue::of(&model);
    let accounting = Accounting::of(&catalogue, checkpoint.tensors().values());
    if let Some((object, text)) = first_trouble(&accounting) {
        return Err(Failure::new(
            "names",
            object,
            format!("`{folder}`: {text}"),
            format!("`coldproof keys {folder}` lists all of it"),
        ));
    }
    one_content(&checkpoint, &accounting)?;
    let rules = rules_of(&catalogue, &checkpoint);
    Ok(Read { checkpoint, rules, catalogue, model })
}

/// Names of one tensor must hold one content: which of them an engine serves depends on the order
/// in which they are loaded.
///
/// # Errors
/// Two names of one tensor hold different bytes.
pub(crate) fn one_content(checkpoint: &Checkpoint, accounting: &Accounting) -> Result<(), Failure> {
    let differing = redundant_differs(checkpoint, accounting).map_err(failure)?;
    let Some(alias) = differing.first() else { return Ok(()) };
    Err(Failure::new(
        "names",
        alias.source.as_str(),
        format!(
            "`{}`: `{}` and `{}` are one tensor in this model, and their bytes differ",
            checkpoint.directory(),
            alias.source,
            alias.target
        ),
        "leave the alias out, or set tie_word_embeddings to false",
    ))
}

/// What the embedded engine can compute.
fn computable(folder: &Utf8Path, model: &ModelConfig) -> Result<(), Failure> {
    let refused = |field: &str, text: String, hint: &str| {
        Err(Failure::new("model", field, format!("`{folder}`: {text}"), hint))
    };
    if model.dtype != Dtype::Bf16 {
        let text =
            format!("the model is {} and the embedded engine computes from BF16", model.dtype);
        return refused("dtype", text, "convert the checkpoint to bfloat16");
    }
    if model.max_positions < POSITIONS_MIN {
        let text = format!("{} positions are too few for any request", model.max_positions);
        return refused("max_position_embeddings", text, "the smallest is 4");
    }
    Ok(())
}

fn first_trouble(accounting: &Accounting) -> Option<(String, String)> {
    if let Some(missing) = accounting.missing.first() {
        let more = accounting.missing.len() - 1;
        let text = format!("`{}` is missing{}", missing.source, and_more(more));
        return Some((missing.source.clone(), text));
    }
    if let Some(mismatched) = accounting.mismatched.first() {
        let ((want, shape), (found, has)) = (&mismatched.expected, &mismatched.found);
        let text = format!(
            "`{}` is {found} {has:?} where the model needs {want} {shape:?}",
            mismatched.source
        );
        return Some((mismatched.source.clone(), text));
    }
    if let Some(ambiguous) = accounting.ambiguous.first() {
        let text = format!("`{}` is there in two spellings", ambiguous.slot);
        return Some((ambiguous.slot.0.clone(), text));
    }
    let unexpected = accounting.unexpected.first()?;
    let more = accounting.unexpected.len() - 1;
    let text = format!("`{unexpected}` belongs to nothing in the model{}", and_more(more));
    Some((unexpected.clone(), text))
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(", and {more} more") }
}
