//! Names that share one storage: a checkpoint made for a model must give them one content.

use crate::arch::{Catalogue, ModelConfig, TiedSource};
use crate::container::{Checkpoint, TensorRef};
use crate::error::CheckpointError;
use crate::name_map::{Accounting, RedundantAlias};

/// Bytes of one read when contents are compared.
const READ_BYTES: usize = 256 << 10;

/// The ties of the model whose `config.json` lies beside a checkpoint. None where there is no such
/// file, or where it describes no model of the catalogue: nothing is known to be tied then.
#[must_use]
pub fn ties_of(checkpoint: &Checkpoint) -> Vec<TiedSource> {
    ModelConfig::read(checkpoint.directory())
        .map(|config| Catalogue::of(&config).tied)
        .unwrap_or_default()
}

/// The name whose content a tensor must have: its target's where it is an alias of one of the same
/// dtype and shape, else its own.
pub(crate) fn content_name<'a>(
    from: &Checkpoint,
    ties: &'a [TiedSource],
    name: &'a str,
) -> &'a str {
    let layout = |name: &str| from.get(name).map(|tensor| (tensor.dtype, &tensor.shape));
    let tie = ties.iter().find(|tie| tie.source == name);
    tie.map(|tie| tie.target.as_str())
        .filter(|target| layout(target).is_some() && layout(target) == layout(name))
        .unwrap_or(name)
}

/// The redundant aliases of `accounting` that hold other bytes than their target. Which of the two
/// an engine would serve depends on the order of loading: such a checkpoint has no one meaning.
///
/// # Errors
/// A file that cannot be read, or that changed meanwhile.
pub fn redundant_differs(
    checkpoint: &Checkpoint,
    accounting: &Accounting,
) -> Result<Vec<RedundantAlias>, CheckpointError> {
    let mut differing = Vec::new();
    for alias in &accounting.redundant_alias {
        // A target that is not there is already missing.
        if let Some(source) = checkpoint.get(&alias.source)
            && let Some(target) = checkpoint.get(&alias.target)
            && !same_bytes(source, target)?
        {
            differing.push(alias.clone());
        }
    }
    checkpoint.verify_unchanged()?;
    Ok(differing)
}

fn same_bytes(one: &TensorRef, other: &TensorRef) -> Result<bool, CheckpointError> {
    if one.bytes != other.bytes {
        return Ok(false);
    }
    let (left, right) = (one.open()?, other.open()?);
    let mut buffers = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
    let mut at = 0;
    while at < one.bytes {
        // At most `READ_BYTES`.
        let length = (one.bytes - at).min(READ_BYTES as u64) as usize;
        let (mine, its) = (&mut buffers.0[..length], &mut buffers.1[..length]);
        left.read_range(at, mine)?;
        right.read_range(at, its)?;
        if mine != its {
            return Ok(false);
        }
        at += length as u64;
    }
    Ok(true)
}
