//! One checkpoint as a run takes it: opened, accounted for by name, and computable.

use camino::Utf8Path;
use coldproof_checkpoint::arch::{Catalogue, ModelConfig, Outline, TiedSource};
use coldproof_checkpoint::{Accounting, Checkpoint, redundant_differs, rules_of};
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::Dtype;

use super::failure;
use crate::error::Failure;

/// The fewest positions that the fixed requests fit in.
const POSITIONS_MIN: u64 = 4;

/// The model of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Model {
    /// One that the catalogue knows.
    Known(Box<ModelConfig>),
    /// One that it does not, or not as this engine keeps it: the baseline is what a cold load
    /// shows.
    Outline(Outline),
}

impl Model {
    /// `model_type` of its configuration.
    pub(super) fn model_type(&self) -> &str {
        match self {
            Self::Known(config) => config.family.model_type(),
            Self::Outline(outline) => &outline.model_type,
        }
    }

    /// Rows of the embedding.
    pub(super) fn vocab_size(&self) -> u64 {
        match self {
            Self::Known(config) => config.vocab_size,
            Self::Outline(outline) => outline.vocab_size,
        }
    }

    /// Positions of a sequence.
    pub(super) fn max_positions(&self) -> u64 {
        match self {
            Self::Known(config) => config.max_positions,
            Self::Outline(outline) => outline.max_positions,
        }
    }
}

/// One checkpoint with all that is known of it.
pub(super) struct Read {
    /// The files.
    pub(super) checkpoint: Checkpoint,
    /// Where each of its sources belongs, as far as the catalogue knows.
    pub(super) rules: Vec<SourceRule>,
    /// What the model expects, if the catalogue knows it.
    pub(super) catalogue: Option<Catalogue>,
    /// Its configuration.
    pub(super) model: Model,
    /// Who loads it.
    pub(super) loader: Loader,
}

impl Read {
    /// Names that share another source's storage.
    pub(super) fn tied(&self) -> &[TiedSource] {
        self.catalogue.as_ref().map_or(&[], |catalogue| &catalogue.tied)
    }
}

/// Who loads the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loader {
    /// The embedded engine: what the catalogue does not know it cannot compute.
    Embedded,
    /// An engine of its own: a model that the catalogue does not know is observed.
    Foreign,
}

/// Reads one checkpoint and accounts for its names: what cannot be loaded cold has no cold load to
/// be compared with.
///
/// # Errors
/// Files that cannot be read, a model that nobody knows or that the embedded engine cannot compute,
/// names that do not add up.
pub(super) fn read(folder: &Utf8Path, loader: Loader) -> Result<Read, Failure> {
    let checkpoint = Checkpoint::open(folder).map_err(failure)?;
    let config = match (ModelConfig::read(folder), loader) {
        (Ok(config), Loader::Foreign) if !config.family.placed_alike() => None,
        (Ok(config), _) => Some(config),
        (Err(error), Loader::Embedded) => return Err(failure(error)),
        (Err(_), Loader::Foreign) => None,
    };
    let config = match config {
        Some(config) => config,
        None => {
            let model = Model::Outline(Outline::read(folder).map_err(failure)?);
            return Ok(Read { checkpoint, rules: Vec::new(), catalogue: None, model, loader });
        }
    };
    if loader == Loader::Embedded {
        computable(folder, &config)?;
    }
    let catalogue = Catalogue::of(&config);
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
    let (catalogue, model) = (Some(catalogue), Model::Known(Box::new(config)));
    Ok(Read { checkpoint, rules, catalogue, model, loader })
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
