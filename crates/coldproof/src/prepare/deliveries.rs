//! Checkpoints as lanes deliver them: what evidence keeps of each, and those beside A and B.

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8Path;
use coldproof_checkpoint::arch::SpellingName;
use coldproof_checkpoint::{
    SentinelPlan, digest_checkpoint, digest_unsigned, mix, respell, rules_in, with_alias,
};
use coldproof_contract::evidence::{CheckpointHeader, LaneName, SourceHeader};
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::{CheckpointLabel, SlotName};
use coldproof_lanes::inputs::{Delivery, Format};

use super::failure;
use super::read::{Loader, Model, Read, read};
use crate::error::Failure;
use crate::settings::ProveSettings;

/// A checkpoint as it is delivered.
pub(super) fn deliver(label: &str, read: &Read, allowed_missing: &[String]) -> Delivery {
    let tied = read.tied().iter().map(|tied| tied.source.clone());
    let placed = read.rules.iter().map(|rule| rule.source.clone());
    let required = match &read.model {
        Model::Known(_) => placed.collect(),
        // Nobody says what may be absent: the headers promise all of it.
        Model::Outline(_) => read.checkpoint.tensors().keys().cloned().collect(),
    };
    let tensors: Vec<_> = read.checkpoint.in_file_order().into_iter().cloned().collect();
    Delivery {
        label: CheckpointLabel(label.to_owned()),
        folder: read.checkpoint.directory().to_owned(),
        sent: tensors.clone(),
        tensors,
        required,
        allowed_missing: tied.chain(allowed_missing.iter().cloned()).collect(),
        preserved: Vec::new(),
        format: Format::Checkpoint,
        adapters: Vec::new(),
    }
}

/// A folder as evidence has it: what was made for the run lies nowhere that matters.
fn shown(folder: &Utf8Path, made: &Utf8Path) -> String {
    match folder.strip_prefix(made) {
        Ok(name) => format!("(made) {name}"),
        Err(_) => folder.to_string(),
    }
}

/// What the evidence keeps of a checkpoint. Its rules are kept where they are not the usual ones.
///
/// # Errors
/// It cannot be read.
pub(super) fn header(
    label: &str,
    content: Option<&str>,
    read: &Read,
    usual: &[SourceRule],
    made: &Utf8Path,
) -> Result<CheckpointHeader, Failure> {
    let (digests, mut unsigned) = match read.loader {
        Loader::Embedded => digest_checkpoint(&read.checkpoint).map(|own| (own, BTreeMap::new())),
        Loader::Foreign => digest_unsigned(&read.checkpoint),
    }
    .map_err(failure)?;
    let sources = digests.sources.iter().map(|(name, source)| SourceHeader {
        name: name.clone(),
        dtype: source.dtype,
        shape: source.shape.clone(),
        digest: source.digest,
        unsigned: unsigned.remove(name),
    });
    Ok(CheckpointHeader {
        label: CheckpointLabel(label.to_owned()),
        path: shown(read.checkpoint.directory(), made),
        digest: digests.digest.clone(),
        sources: sources.collect(),
        content: content.map(|label| CheckpointLabel(label.to_owned())),
        rules: if read.rules == usual { Vec::new() } else { read.rules.clone() },
        base: None,
    })
}

/// The sentinels of the routing lane, one checkpoint a digit.
///
/// # Errors
/// B cannot be read, or they cannot be written.
pub(super) fn sentinels(
    settings: &ProveSettings,
    loader: Loader,
    to: &Read,
    made: &Utf8Path,
) -> Result<(Option<SentinelPlan>, Vec<Delivery>), Failure> {
    if !settings.lanes.contains(&LaneName::Routing) || to.catalogue.is_none() {
        return Ok((None, Vec::new()));
    }
    let plan = SentinelPlan::of(&to.checkpoint).map_err(failure)?;
    let folder = made.join("sentinels");
    plan.write(&to.checkpoint, to.tied(), &folder).map_err(failure)?;
    let deliveries = (0..plan.digits()).map(|digit| {
        let read = read(&folder.join(digit.to_string()), loader)?;
        Ok(deliver(&format!("S{digit}"), &read, &[]))
    });
    let deliveries = deliveries.collect::<Result<Vec<_>, Failure>>()?;
    Ok((Some(plan), deliveries))
}

/// What partial updates deliver: every other slot of B (`M`), and where something drafts for the
/// model, what drafts (`D`) and all but that (`T`). Nothing where A and B do not have the same
/// names, or where no lane wants it.
///
/// # Errors
/// A or B cannot be read, or a mixed checkpoint cannot be written.
pub(super) fn partial(
    settings: &ProveSettings,
    pair: (&Read, &Read),
    made: &Utf8Path,
    headers: &mut Vec<CheckpointHeader>,
) -> Result<Vec<Delivery>, Failure> {
    let (from, to) = pair;
    let wanted = settings.lanes.contains(&LaneName::Partial) && to.catalogue.is_some();
    let names = |read: &Read| read.checkpoint.tensors().keys().cloned().collect::<Vec<_>>();
    if !wanted || from.rules != to.rules || names(from) != names(to) {
        return Ok(Vec::new());
    }
    let slots: BTreeSet<_> = to.rules.iter().map(|rule| &rule.slot).collect();
    let half: BTreeSet<_> = slots.iter().copied().skip(1).step_by(2).collect();
    let drafted = |rule: &&SourceRule| match &to.model {
        Model::Known(config) => config.is_draft(&rule.source),
        Model::Outline(_) => false,
    };
    let drafts: BTreeSet<_> = to.rules.iter().filter(drafted).map(|rule| &rule.slot).collect();
    let model = if drafts.is_empty() { BTreeSet::new() } else { &slots - &drafts };
    [("M", half), ("D", drafts), ("T", model)]
        .into_iter()
        .filter(|(_, sent)| !sent.is_empty())
        .map(|(label, sent)| mixed(label, &sent, pair, made, headers))
        .collect()
}

/// These slots of B and all others of A, of which the sources of the former are sent.
fn mixed(
    label: &str,
    sent: &BTreeSet<&SlotName>,
    (from, to): (&Read, &Read),
    made: &Utf8Path,
    headers: &mut Vec<CheckpointHeader>,
) -> Result<Delivery, Failure> {
    let (new, old): (Vec<_>, Vec<_>) = to.rules.iter().partition(|rule| sent.contains(&rule.slot));
    let names = |rules: Vec<&SourceRule>| rules.iter().map(|rule| rule.source.clone()).collect();
    let (new, old): (Vec<String>, Vec<String>) = (names(new), names(old));
    let written: BTreeSet<&str> = new.iter().map(String::as_str).collect();
    let ties = to.tied().iter().filter(|tied| written.contains(tied.target.as_str()));
    let is_new = |name: &str| {
        let owner = to.tied().iter().find(|tied| tied.source == name);
        written.contains(owner.map_or(name, |tied| &tied.target))
    };
    let folder = made.join(format!("partial-{label}"));
    mix(&from.checkpoint, &to.checkpoint, is_new, &folder).map_err(failure)?;
    let read = read(&folder, to.loader)?;
    headers.push(header(label, None, &read, &to.rules, made)?);
    let whole = deliver(label, &read, &[]);
    Ok(Delivery {
        sent: whole.sent.into_iter().filter(|tensor| is_new(&tensor.name)).collect(),
        allowed_missing: ties.map(|tied| tied.source.clone()).collect(),
        required: new.clone(),
        preserved: old,
        ..whole
    })
}

/// B under every other spelling of its family.
///
/// # Errors
/// B cannot be read, or they cannot be written.
pub(super) fn spellings(
    settings: &ProveSettings,
    loader: Loader,
    to: &Read,
    made: &Utf8Path,
    headers: &mut Vec<CheckpointHeader>,
) -> Result<Vec<Delivery>, Failure> {
    let mut deliveries = Vec::new();
    let Some(catalogue) =
        to.catalogue.as_ref().filter(|_| settings.lanes.contains(&LaneName::Names))
    else {
        return Ok(deliveries);
    };
    for (spelling, name) in SpellingName::OTHERS {
        let name = &format!("B-{name}");
        let rules = rules_in(catalogue, spelling).filter(|rules| *rules != to.rules);
        let Some(rules) = rules else { continue };
        let folder = made.join(name);
        respell(&to.checkpoint, &to.rules, &rules, &folder).map_err(failure)?;
        let read = read(&folder, loader)?;
        headers.push(header(name, Some("B"), &read, &to.rules, made)?);
        deliveries.push(deliver(name, &read, &[]));
    }
    for tied in &catalogue.tied {
        if to.checkpoint.get(&tied.source).is_some() {
            continue;
        }
        let folder = made.join("B-tied-twice");
        with_alias(&to.checkpoint, &tied.source, &tied.target, &folder).map_err(failure)?;
        let read = read(&folder, loader)?;
        headers.push(header("B-tied-twice", Some("B"), &read, &to.rules, made)?);
        deliveries.push(deliver("B-tied-twice", &read, &[]));
    }
    Ok(deliveries)
}
