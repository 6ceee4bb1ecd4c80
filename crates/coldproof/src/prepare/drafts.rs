//! A and B with their draft models: one checkpoint each, as an engine that decodes speculatively is
//! updated.

use camino::Utf8Path;
use coldproof_checkpoint::arch::{DRAFT, ModelConfig};
use coldproof_checkpoint::{Checkpoint, CheckpointError, compose};

use super::pair::make_drafts;
use super::read::{Loader, Model, Read, read};
use super::{failure, same_model};
use crate::error::Failure;
use crate::settings::DraftSettings;

/// Composes each of A and B with its draft model below `made`; `given` gains the draft models.
///
/// # Errors
/// A draft model that cannot be read or does not fit its model, or a model that has one already.
pub(super) fn with(
    draft: &DraftSettings,
    (from, to): (&Read, &Read),
    (seed, made): (u64, &Utf8Path),
    mut given: Vec<Checkpoint>,
) -> Result<(Read, Read, Vec<Checkpoint>), Failure> {
    let folders = match draft {
        DraftSettings::Given(from, to) => (from.clone(), to.clone()),
        DraftSettings::Made => match &to.model {
            Model::Known(config) => make_drafts(config, seed, made)?,
            Model::Outline(outline) => return Err(unknown(&outline.model_type)),
        },
    };
    let given_draft = matches!(draft, DraftSettings::Given(..));
    let mut one = |model: &Read, folder: &Utf8Path, name: &str| {
        let draft = read(folder, Loader::Embedded)?.checkpoint;
        for of in [&model.checkpoint, &draft] {
            if of.tensors().keys().any(|name| name.starts_with(DRAFT)) {
                return Err(twice(of));
            }
        }
        let out = made.join(format!("{name}-with-draft"));
        compose(&model.checkpoint, &draft, &out).map_err(failure)?;
        fits(&out, if given_draft { folder } else { model.checkpoint.directory() })?;
        given.push(draft);
        read(&out, model.loader)
    };
    let (from, to) = (one(from, &folders.0, "A")?, one(to, &folders.1, "B")?);
    same_model(&from, &to)?;
    Ok((from, to, given))
}

/// Whether a draft model, which is sound by itself as its model is, fits it. What does not is the
/// configuration in the folder that the user gave, not its copy in the composed one.
fn fits(composed: &Utf8Path, given: &Utf8Path) -> Result<(), Failure> {
    let named = |error| failure(CheckpointError { file: given.join("config.json"), ..error });
    ModelConfig::read(composed).map(drop).map_err(named)
}

fn unknown(model: &str) -> Failure {
    let text = format!("the catalogue does not know `{model}`, and no draft model is made for it");
    Failure::usage("--draft", text, "give --draft-from and --draft-to")
}

fn twice(of: &Checkpoint) -> Failure {
    let text = format!("`{}` has a draft model among its tensors already", of.directory());
    Failure::usage("--draft", text, "leave the options of draft models out")
}
