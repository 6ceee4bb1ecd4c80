//! A model that the catalogue does not know: what its cold load is seen to keep of its sources.
//!
//! Where the cold load put a source is read off its applications; the bytes that stand there are
//! compared with the source's file. What they equal is held against the file after every update.
//! What they do not was converted after it was written, unless another source was written over it.

use std::collections::BTreeSet;

use crate::evidence::{ApplicationFact, ArmView, PhaseView};
use crate::verdict::{Case, Finding, FindingCode, Site};
use crate::words::Rank;

/// Judges the cold loads of a model that the catalogue does not know.
pub(super) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    if !view.is_unknown() {
        return;
    }
    let mut alone = BTreeSet::new();
    for (index, arm) in view.arms.iter().enumerate() {
        let Some(cold) = arm.cold().filter(|cold| !cold.read_backs.is_empty()) else { continue };
        alone.extend(baseline(case, (index, 0), arm, cold));
    }
    let first = alone.first().copied().unwrap_or_default();
    if !alone.is_empty() {
        case.unseen.insert(format!(
            "{} sources (`{first}` the first) that no slot holds as their file does: judged by a \
             cold load's slots alone",
            alone.len()
        ));
    }
}

/// Raises what was written over, and returns the other sources that have no baseline.
fn baseline<'r>(
    case: &mut Case<'_, 'r>,
    site: Site,
    arm: &ArmView<'r>,
    cold: &PhaseView<'r>,
) -> Vec<&'r str> {
    let view = case.view;
    let kept = view.kept(arm);
    let left_out = view.left_out_by_all(arm);
    let file = view.content(cold.at).and_then(|at| view.checkpoint(at));
    let sources = file.into_iter().flat_map(|file| &file.sources);
    let names = sources.map(|source| source.name.as_str());
    let mut alone = Vec::new();
    for name in names.filter(|name| !kept.contains(name) && !left_out.contains(name)) {
        let read = cold.sources.get(name).filter(|read| read.fact.digest.is_some());
        let over = read.and_then(|read| Some((read, written_over(cold, name)?)));
        let Some((read, (rank, by))) = over else {
            alone.push(name);
            continue;
        };
        let rank = case.rank_index(site.0, rank);
        let step = cold.step_name(read.step);
        let finding = Finding::new(FindingCode::ApplicationOverlap, name, rank)
            .expected(
                format!("the bytes of its file in `{}`", by.slot),
                format!("`{}` was written over it", by.source),
            )
            .why("the cold load wrote two sources to the same elements, and they are not equal")
            .event("read-back", step, read.seq, "its digest is not the file's");
        case.raise(finding, site, &[&by.slot.0]);
    }
    alone
}

/// The application of another source over elements of this one.
fn written_over<'r>(cold: &PhaseView<'r>, source: &str) -> Option<(Rank, &'r ApplicationFact)> {
    let own = cold.applications.iter().enumerate();
    let mut own = own.filter(|(_, application)| application.fact.source == source);
    own.find_map(|(at, own)| {
        let mut later = cold.applications.iter().skip(at + 1);
        let over = later.find(|later| {
            later.rank == own.rank
                && later.fact.slot == own.fact.slot
                && later.fact.source != source
                && later.fact.slot_fragment.intersect(&own.fact.slot_fragment).is_some()
        });
        over.map(|over| (over.rank, over.fact))
    })
}
