//! Two adapters of one base model, as a lane serves them.

use camino::Utf8Path;
use coldproof_checkpoint::Adapter;
use coldproof_lanes::adapter_swap::{AdapterFolder, AdapterPair};

use super::failure;
use crate::error::Failure;
use crate::settings::AdapterSettings;

/// Reads both. A trainer's own folder is made below `made`.
///
/// # Errors
/// One that cannot be read, or two of the same content: nothing old could be told from the new.
pub(super) fn pair(asked: &AdapterSettings, made: &Utf8Path) -> Result<AdapterPair, Failure> {
    let (from, to) = (folder(&asked.from)?, folder(&asked.to)?);
    if from.0.content == to.0.content {
        return Err(Failure::new(
            "adapters",
            asked.to.as_str(),
            format!("`{}` and `{}` have the same content", asked.from, asked.to),
            "give two adapters that differ: what is old must look old",
        ));
    }
    Ok(AdapterPair {
        rank: u32::try_from(from.1.max(to.1)).unwrap_or(u32::MAX),
        from: from.0,
        to: to.0,
        swap: asked.swap,
        live: made.join("adapter"),
    })
}

fn folder(folder: &Utf8Path) -> Result<(AdapterFolder, u64), Failure> {
    let read = Adapter::read(folder).map_err(failure)?;
    Ok((AdapterFolder { folder: folder.to_owned(), content: read.content }, read.rank))
}

/// Whether both are still what was read.
///
/// # Errors
/// One of them changed, or can no longer be read.
pub(super) fn verify_unchanged(pair: &AdapterPair) -> Result<(), Failure> {
    let changed = [&pair.from, &pair.to].into_iter().find_map(|known| {
        let now = folder(&known.folder);
        now.map_or_else(Some, |(now, _)| (now.content != known.content).then(|| changed(known)))
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
