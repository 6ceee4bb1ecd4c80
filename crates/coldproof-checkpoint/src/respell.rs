//! The same content under the names of another spelling: experts one by one or all in one source,
//! a tied head named twice.

use camino::Utf8Path;
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::{Rank, Topology};

use crate::arch::{Catalogue, Group, Spelling, SpellingName};
use crate::companions::copy_companions;
use crate::container::{Checkpoint, Layout, TensorSpec, write_checkpoint};
use crate::error::{CheckpointError, Fault};

/// Which rules the sources of a checkpoint follow: of each group, the spelling that is there.
#[must_use]
pub fn rules_of(catalogue: &Catalogue, checkpoint: &Checkpoint) -> Vec<SourceRule> {
    let present = |spelling: &&Spelling| {
        spelling.rules.iter().any(|rule| checkpoint.get(&rule.source).is_some())
    };
    let chosen = |group: &Group| {
        group.spellings.iter().find(present).or_else(|| group.spellings.first()).cloned()
    };
    catalogue.groups.iter().filter_map(chosen).flat_map(|spelling| spelling.rules).collect()
}

/// The rules of this spelling wherever the family has it, and those of the usual one elsewhere.
/// Nothing where no group has it.
#[must_use]
pub fn rules_in(catalogue: &Catalogue, spelling: SpellingName) -> Option<Vec<SourceRule>> {
    let has = |group: &Group| group.spellings.iter().any(|s| s.name == spelling);
    if !catalogue.groups.iter().any(has) {
        return None;
    }
    let chosen = |group: &Group| {
        let wanted = group.spellings.iter().find(|s| s.name == spelling);
        wanted.or_else(|| group.spellings.first()).cloned()
    };
    Some(catalogue.groups.iter().filter_map(chosen).flat_map(|s| s.rules).collect())
}

/// Writes `from` under the names of `target`, whose sources fill the same slots as those of
/// `rules`.
///
/// # Errors
/// A file that cannot be read or written, a `from` that changed meanwhile, or rules that do not
/// describe it.
pub fn respell(
    from: &Checkpoint,
    rules: &[SourceRule],
    target: &[SourceRule],
    out: &Utf8Path,
) -> Result<(), CheckpointError> {
    let specs = target.iter().map(|rule| TensorSpec {
        name: rule.source.clone(),
        dtype: rule.dtype,
        shape: rule.shape.clone(),
    });
    write_checkpoint(out, &Layout::single(specs.collect()), |spec| {
        if let Some(tensor) = from.get(&spec.name) {
            return tensor.read();
        }
        target
            .iter()
            .find(|rule| rule.source == spec.name)
            .map_or(Err(misfit(from, &spec.name)), |rule| assemble(from, rules, rule))
    })?;
    copy_companions(from.directory(), out)?;
    from.verify_unchanged()
}

/// Writes `from` with one more tensor: `alias`, a second name of `target`'s content.
///
/// # Errors
/// As [`respell`].
pub fn with_alias(
    from: &Checkpoint,
    alias: &str,
    target: &str,
    out: &Utf8Path,
) -> Result<(), CheckpointError> {
    let mut specs: Vec<TensorSpec> = from.tensors().values().map(TensorSpec::from).collect();
    let source = from.get(target).ok_or_else(|| misfit(from, target))?;
    specs.push(TensorSpec { name: alias.to_owned(), ..TensorSpec::from(source) });
    write_checkpoint(out, &Layout::single(specs), |spec| {
        let name = if spec.name == alias { target } else { &spec.name };
        from.get(name).ok_or_else(|| misfit(from, name))?.read()
    })?;
    copy_companions(from.directory(), out)?;
    from.verify_unchanged()
}

/// The bytes of one source, taken out of the slot that other sources fill. `wanted` need not be
/// among them: its rule alone says where its elements lie.
pub(crate) fn assemble(
    from: &Checkpoint,
    rules: &[SourceRule],
    wanted: &SourceRule,
) -> Result<Vec<u8>, CheckpointError> {
    let size = wanted.dtype.bytes();
    let place = |rule: &SourceRule| {
        rule.pieces(Topology::SINGLE, Rank::default()).map_err(|_| misfit(from, &rule.source))
    };
    let (pieces, shape) = place(wanted)?;
    let elements = shape.iter().product::<u64>();
    let mut slot =
        vec![0; usize::try_from(elements * size).map_err(|_| misfit(from, &wanted.source))?];
    for rule in rules.iter().filter(|rule| rule.slot == wanted.slot) {
        let source = from.get(&rule.source).ok_or_else(|| misfit(from, &rule.source))?;
        let (own, own_shape) = place(rule)?;
        if (source.dtype, &source.shape, &own_shape) != (wanted.dtype, &rule.shape, &shape) {
            return Err(misfit(from, &rule.source));
        }
        let bytes = source.read()?;
        for piece in own {
            let runs = piece.runs(&rule.shape, &shape);
            copy(&bytes, &mut slot, runs.into_iter(), size);
        }
    }
    let length = wanted.shape.iter().product::<u64>() * size;
    let mut out = vec![0; usize::try_from(length).map_err(|_| misfit(from, &wanted.source))?];
    for piece in pieces {
        let runs = piece.runs(&wanted.shape, &shape);
        copy(&slot, &mut out, runs.into_iter().map(|(source, at, n)| (at, source, n)), size);
    }
    Ok(out)
}

fn copy(from: &[u8], to: &mut [u8], runs: impl Iterator<Item = (u64, u64, u64)>, size: u64) {
    for (source, target, length) in runs {
        // Pieces fit their shapes, and both buffers were made from those.
        let (source, target) = ((source * size) as usize, (target * size) as usize);
        let length = (length * size) as usize;
        if let (Some(from), Some(to)) =
            (from.get(source..source + length), to.get_mut(target..target + length))
        {
            to.copy_from_slice(from);
        }
    }
}

fn misfit(from: &Checkpoint, name: &str) -> CheckpointError {
    let fault =
        Fault::PairDiffers { what: "its names follow no spelling of the family".to_owned() };
    CheckpointError::tensor(from.directory(), name, fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::ModelConfig;
    use camino::Utf8PathBuf;

    #[test]
    fn experts_survive_the_way_there_and_back() {
        let root = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata"));
        let folder = root.join("checkpoints/qwen3_moe/B");
        let from = Checkpoint::open(&folder).unwrap();
        let catalogue = Catalogue::of(&ModelConfig::read(&folder).unwrap());
        let usual = rules_of(&catalogue, &from);
        let fused = rules_in(&catalogue, SpellingName::Fused).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let scratch = Utf8PathBuf::from_path_buf(scratch.path().to_owned()).unwrap();
        let (there, back) = (scratch.join("fused"), scratch.join("back"));
        respell(&from, &usual, &fused, &there).unwrap();
        let middle = Checkpoint::open(&there).unwrap();
        assert!(middle.get("model.layers.0.mlp.experts.gate_up_proj").is_some());
        assert_eq!(rules_of(&catalogue, &middle), fused);
        respell(&middle, &fused, &usual, &back).unwrap();
        let back = Checkpoint::open(&back).unwrap();
        for (name, tensor) in from.tensors() {
            assert_eq!(tensor.read().unwrap(), back.get(name).unwrap().read().unwrap(), "{name}");
        }
    }
}
