//! Two adapters of one base model, as a lane serves them.

use std::{fs, io};

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::{ADAPTER_FILES, Adapter, AdapterSource, Lora, adapter_sources};
use coldproof_contract::digest::{SourceDigest, checkpoint_digest};
use coldproof_contract::evidence::{CheckpointHeader, SourceHeader};
use coldproof_lanes::adapter_swap::{AdapterFolder, AdapterPair, FROM, NAME, TO, adapted};
use coldproof_reference::adapters::modules;

use super::failure;
use super::pair::write_adapter;
use super::read::{Model, Read};
use crate::error::Failure;
use crate::settings::AdapterSettings;

/// Reads both, or makes them where none were given, and copies them below `made`, where a trainer's
/// own folder is made too.
///
/// # Errors
/// One that cannot be read or copied, or two of the same content: nothing old could be told from
/// the new. A model of which the embedded engine adapts no module.
pub(super) fn pair(
    asked: &AdapterSettings,
    (model, seed): (&Model, u64),
    made: &Utf8Path,
) -> Result<AdapterPair, Failure> {
    let copies = made.join("adapters");
    let (old, new) = match &asked.folders {
        Some(folders) => folders.clone(),
        None => make(model, seed, &copies)?,
    };
    let read = |folder, name| read(folder, copies.join(name));
    let (from, to) = (read(&old, "from")?, read(&new, "to")?);
    if from.0.content == to.0.content {
        return Err(Failure::new(
            "adapters",
            new.as_str(),
            format!("`{old}` and `{new}` have the same content"),
            "give two adapters that differ: what is old must look old",
        ));
    }
    for of in [&from.0, &to.0] {
        copy(of).map_err(|error| Failure::output(of.copy.as_str(), &error))?;
    }
    let live = copies.join("live");
    fs::create_dir_all(&live).map_err(|error| Failure::output(live.as_str(), &error))?;
    Ok(AdapterPair {
        rank: u32::try_from(from.1.max(to.1)).unwrap_or(u32::MAX),
        from: from.0,
        to: to.0,
        swap: asked.swap,
        live,
    })
}

/// What the evidence keeps of checkpoints that are served with an adapter: the weights' sources and
/// the adapter's, and where both belong. None where the catalogue does not know the model, or where
/// the adapter is none that the embedded engine computes: the engine itself will say so.
pub(super) fn headers(
    pair: Option<&AdapterPair>,
    model: &Read,
    known: &[CheckpointHeader],
) -> Vec<CheckpointHeader> {
    let (Some(pair), Some(catalogue)) = (pair, &model.catalogue) else { return Vec::new() };
    let of = |of: &AdapterFolder| {
        Lora::read(&of.folder).map(|lora| adapter_sources(catalogue, &lora, NAME))
    };
    let (Ok(from), Ok(to)) = (of(&pair.from), of(&pair.to)) else { return Vec::new() };
    let served = [("A", FROM, &from), ("B", FROM, &from), ("B", TO, &to)];
    let header = |(base, adapter, own): (&str, &str, &Vec<AdapterSource>)| {
        let base = known.iter().find(|header| header.label.0 == base)?;
        let sources = base.sources.iter().chain(own.iter().map(|source| &source.header));
        let mut sources: Vec<SourceHeader> = sources.cloned().collect();
        sources.sort_by(|one, other| one.name.cmp(&other.name));
        let digests = sources.iter().map(|source| {
            let SourceHeader { name, dtype, shape, digest, .. } = source;
            (name.clone(), SourceDigest { dtype: *dtype, shape: shape.clone(), digest: *digest })
        });
        Some(CheckpointHeader {
            label: adapted(&base.label, adapter),
            path: base.path.clone(),
            digest: checkpoint_digest(&digests.collect()),
            content: None,
            rules: model.rules.iter().chain(own.iter().map(|s| &s.rule)).cloned().collect(),
            base: Some(base.label.clone()),
            sources,
        })
    };
    served.into_iter().filter_map(header).collect()
}

/// Two adapters of every module that the embedded engine adapts.
fn make(
    model: &Model,
    seed: u64,
    copies: &Utf8Path,
) -> Result<(Utf8PathBuf, Utf8PathBuf), Failure> {
    let modules = match model {
        Model::Known(config) => modules(config),
        Model::Outline(_) => Vec::new(),
    };
    if modules.is_empty() {
        let model = model.model_type();
        return Err(Failure::usage(
            "--lane",
            format!("the embedded engine computes no adapter of `{model}`"),
            "leave the adapters lane out",
        ));
    }
    // Of other scales, so that an old one shows.
    let write = |name: &str, alpha, seed| {
        let folder = copies.join("made").join(name);
        write_adapter(&modules, &folder, alpha, seed).map(|()| folder).map_err(failure)
    };
    Ok((write(FROM, 16.0, seed.wrapping_add(3))?, write(TO, 12.0, seed.wrapping_add(4))?))
}

fn read(folder: &Utf8Path, copy: Utf8PathBuf) -> Result<(AdapterFolder, u64), Failure> {
    let read = Adapter::read(folder).map_err(failure)?;
    Ok((AdapterFolder { folder: folder.to_owned(), copy, content: read.content }, read.rank))
}

fn copy(of: &AdapterFolder) -> io::Result<()> {
    fs::create_dir_all(&of.copy)?;
    ADAPTER_FILES
        .iter()
        .try_for_each(|file| fs::copy(of.folder.join(file), of.copy.join(file)).map(drop))
}

/// Whether both are still what was read.
///
/// # Errors
/// One of them changed, or can no longer be read.
pub(super) fn verify_unchanged(pair: &AdapterPair) -> Result<(), Failure> {
    let changed = [&pair.from, &pair.to].into_iter().find_map(|known| {
        let now = Adapter::read(&known.folder).map_err(failure);
        now.map_or_else(Some, |now| (now.content != known.content).then(|| changed(known)))
    });
    changed.map_or(Ok(()), Err)
}

fn changed(adapter: &AdapterFolder) -> Failure {
    let folder = &adapter.folder;
    Failure::new(
        "changed",
        folder.as_str(),
        format!("the adapter in `{folder}` changed during the run"),
        "give folders that nobody writes to",
    )
}
