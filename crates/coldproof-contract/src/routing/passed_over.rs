//! Ranks that no sentinel reached, where all others hold theirs: an update that passed them over.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Mismatch;
use crate::evidence::ArmView;
use crate::verdict::{Case, Site, passed_over};
use crate::words::{Rank, SlotName};

/// With one source alone, the source that went nowhere says it all.
const SOURCES_MIN: usize = 2;

/// Judges what sentinels show of whole ranks, before slots are judged one by one.
pub(super) fn check(
    case: &mut Case<'_, '_>,
    site: Site,
    arm: &ArmView<'_>,
    found: &BTreeMap<&SlotName, Vec<(Rank, Mismatch)>>,
) {
    let mut ranks: BTreeMap<Rank, Vec<&Mismatch>> = BTreeMap::new();
    for (rank, mismatch) in found.values().flatten() {
        ranks.entry(*rank).or_default().push(mismatch);
    }
    let clean = |own: &[&Mismatch]| own.iter().all(|mismatch| mismatch.is_clean());
    let (whole, rest): (Vec<_>, Vec<_>) = ranks.iter().partition(|(_, own)| clean(own));
    if whole.is_empty() || rest.is_empty() || !rest.iter().all(|(_, own)| is_untouched(own)) {
        return;
    }
    let old: BTreeSet<Rank> = rest.into_iter().map(|(rank, _)| *rank).collect();
    let slots: Vec<&str> = found.keys().map(|slot| slot.0.as_str()).collect();
    let actual = format!("no sentinel of any source stands on {} ranks", old.len());
    if let Some(phase) = arm.phases.get(site.1) {
        passed_over(case, site, phase, &old, &actual, &slots);
    }
}

/// Whether nothing of any sentinel stands anywhere on a rank.
fn is_untouched(own: &[&Mismatch]) -> bool {
    let none = own.iter().all(|m| (m.right, m.reordered, m.foreign) == (0, 0, 0));
    let sources: BTreeSet<&String> = own.iter().flat_map(|m| m.unloaded.keys()).collect();
    none && sources.len() >= SOURCES_MIN
}
