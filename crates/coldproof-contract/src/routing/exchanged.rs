//! Shards on the ranks of others, where slots are delivered rank by rank as they are stored.

use crate::evidence::{Difference, Holds};
use crate::verdict::{Case, Finding, FindingCode, Room, symptom};
use crate::words::Rank;

/// Judges slots that hold what another rank's slot of the name must hold.
pub(super) fn check(case: &mut Case<'_, '_>) {
    let comparison = case.comparison;
    // What holds its old bytes got none, whoever else must hold the same.
    let written = comparison.differences.iter().filter(|d| d.holds == Holds::Neither);
    for difference in written {
        if let Some(of) = difference.right_on {
            one(case, difference, of);
        }
    }
}

fn one(case: &mut Case<'_, '_>, difference: &Difference<'_>, of: Rank) {
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let (rank, slot) = (difference.rank, &difference.slot.slot);
    let Some(phase) = case.phase_of(difference) else { return };
    let delivered = |rank: Rank| case.view.shard(phase, rank, slot);
    let found = delivered(of).filter(|found| delivered(rank) != Some(found));
    let (Some(wanted), Some(found)) = (delivered(rank), found) else { return };
    let text = format!("it holds what `{}` has on rank {of}", difference.against);
    let event =
        symptom("read-back", phase.step_name(difference.read.step), difference.read.seq, text);
    let rank = case.rank_index(site.0, rank);
    if case.explain(Room::Routing, &slot.0, rank, site, event.clone()) {
        return;
    }
    let mut finding = Finding::new(FindingCode::ShardMisplaced, slot.0.clone(), rank)
        .expected(format!("the bytes of `{wanted}`"), format!("the bytes of `{found}`"))
        .why("each rank takes its own shard of a slot and no other rank's");
    finding.events.push(event);
    case.raise(finding, site, &[&slot.0]);
}
