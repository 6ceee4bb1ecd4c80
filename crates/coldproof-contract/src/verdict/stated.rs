//! What the caller and the engine must have stated for a room to be proven. A statement acquits
//! nobody; where there is none, nothing was there to contradict the bytes.

use std::collections::BTreeSet;

use super::case::Case;
use super::{Room, transition};
use crate::evidence::{ArmView, CheckpointHeader, LaneName, PhaseView};
use crate::words::{Rank, SlotKind};

/// Lists per room what was not stated, or not held against its file.
pub(super) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let updated = view.arms.iter().filter(|arm| arm.updates());
    for arm in updated.filter(|arm| arm.header.against.is_some()) {
        for (_, phase) in arm.updated() {
            if arm.header.lane != LaneName::Caches {
                manifest(case, arm, phase);
            }
            if arm.header.lane == LaneName::Differential {
                account(case, arm, phase);
            }
            sources(case, arm, phase);
        }
    }
    if view.ran(LaneName::Names) {
        deliveries(case);
    }
}

fn manifest(case: &mut Case<'_, '_>, arm: &ArmView<'_>, phase: &PhaseView<'_>) {
    let (name, label) = (&arm.header.arm, phase.phase);
    let Some(seen) = phase.manifests.last() else {
        case.leave_undecided(Room::Names, format!("arm `{name}` sealed no manifest in `{label}`"));
        return;
    };
    let promised = &seen.fact.checkpoint;
    if phase.at.is_some_and(|at| at != promised) {
        let text = format!("the manifest of arm `{name}` in `{label}` promises `{promised}`");
        case.leave_undecided(Room::Names, text);
    }
}

/// The engine's own account of an update of the differential lane.
fn account(case: &mut Case<'_, '_>, arm: &ArmView<'_>, phase: &PhaseView<'_>) {
    let (name, label) = (&arm.header.arm, phase.phase);
    let kinds: BTreeSet<(Rank, SlotKind)> =
        phase.slots.iter().map(|((rank, _), slot)| (*rank, slot.fact.slot_kind)).collect();
    let derived = kinds.iter().any(|(_, kind)| *kind == SlotKind::Derived);
    let missing = transition::missing_steps(phase);
    let applied: BTreeSet<Rank> = phase.applications.iter().map(|seen| seen.rank).collect();
    let finished: BTreeSet<Rank> = phase.post_loads.iter().map(|seen| seen.rank).collect();
    let silent = [
        (&applied, SlotKind::Parameter, "no application"),
        (&finished, SlotKind::Derived, "no post-load stage"),
    ];
    for (stated, kind, what) in silent.into_iter().filter(|(stated, ..)| !stated.is_empty()) {
        for (rank, _) in kinds.iter().filter(|(rank, own)| *own == kind && !stated.contains(rank)) {
            let text = format!("rank {rank} of arm `{name}` stated {what} in `{label}`");
            case.leave_undecided(Room::Lifecycle, text);
        }
    }
    let absent = [
        (applied.is_empty(), Room::Lifecycle, "no application"),
        (finished.is_empty() && derived, Room::Lifecycle, "no post-load stage"),
        (phase.receipts.is_empty(), Room::Lifecycle, "no receipt"),
        (phase.states.is_empty(), Room::State, "no configuration"),
    ];
    for (absent, room, what) in absent {
        if absent {
            case.leave_undecided(room, format!("arm `{name}` stated {what} in `{label}`"));
        }
    }
    if !missing.is_empty() {
        let text = format!("arm `{name}` took no step {} in `{label}`", missing.join(", "));
        case.leave_undecided(Room::Lifecycle, text);
    }
}

/// Every source of the checkpoint that is served has its file's digest, or a finding or a reason
/// says why it was not put together.
fn sources(case: &mut Case<'_, '_>, arm: &ArmView<'_>, phase: &PhaseView<'_>) {
    let view = case.view;
    let file = view.content(phase.at).and_then(|at| view.checkpoint(at));
    let Some(file) = file.filter(|_| !phase.read_backs.is_empty()) else { return };
    let rules = if file.rules.is_empty() { &view.header.rules } else { &file.rules };
    let placed: BTreeSet<&str> = match view.is_unknown() {
        true => view.kept(arm),
        false => rules.iter().map(|rule| rule.source.as_str()).collect(),
    };
    // A source that no rule places is a declared tie: its slot is another source's.
    let wanted = file.sources.iter().map(|source| source.name.as_str());
    for source in wanted.filter(|source| placed.contains(source)) {
        let known = case.findings().iter().any(|finding| finding.object == source);
        if known || phase.sources.contains_key(source) {
            continue;
        }
        let (name, label) = (&arm.header.arm, phase.phase);
        let text = format!("`{source}` of arm `{name}` was not held against its file in `{label}`");
        if arm.header.lane == LaneName::Names {
            case.leave_undecided(Room::Names, text.clone());
        }
        case.leave_undecided(Room::Lifecycle, text);
    }
}

/// The names lane delivers B under its usual names and under every other spelling.
fn deliveries(case: &mut Case<'_, '_>) {
    let view = case.view;
    let of = |lane: LaneName| -> BTreeSet<_> {
        let arms = view.arms.iter().filter(move |arm| arm.header.lane == lane);
        let phases = arms.flat_map(|arm| arm.phases.iter().filter(|phase| phase.from.is_some()));
        phases.filter_map(|phase| phase.at).collect()
    };
    // Slots as kernels read them are B's content under other names too, and of another lane.
    let (delivered, kernel) = (of(LaneName::Names), of(LaneName::Kernel));
    let spelled = |label: &_| view.checkpoint(label).is_some_and(|file| file.content.is_some());
    if delivered.iter().all(|label| spelled(label)) {
        case.leave_undecided(Room::Names, "nothing was delivered under its usual names".to_owned());
    }
    let spellings = view.header.checkpoints.iter().filter(|file| file.content.is_some());
    let known =
        |file: &&CheckpointHeader| delivered.contains(&file.label) || kernel.contains(&file.label);
    for file in spellings.filter(|file| !known(file)) {
        let text = format!("the spelling `{}` was not delivered", file.label);
        case.leave_undecided(Room::Names, text);
    }
}
