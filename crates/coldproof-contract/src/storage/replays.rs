//! What shows that graphs are replayed after an update, over memory that was used again, and that
//! the replay reads the slots (R62).

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{ArmView, Fact, LaneName, PhaseView};
use crate::verdict::{Case, Room};
use crate::words::{Rank, StepName, StorageId};

/// Lists what was not exercised; the number of live changes that replays showed.
pub(super) fn check(case: &mut Case<'_, '_>) -> usize {
    let view = case.view;
    let mut captured: BTreeSet<&str> = BTreeSet::new();
    let mut replayed: BTreeSet<&str> = BTreeSet::new();
    let (mut replicas, mut replaying) = (BTreeSet::from([0]), BTreeSet::new());
    let mut pressed = false;
    for arm in view.arms.iter().filter(|arm| arm.header.against.is_some()) {
        let Some(first) = arm.phases.iter().position(|phase| !phase.nodes.is_empty()) else {
            continue;
        };
        replicas.extend(0..arm.header.topology.dp);
        let nodes = arm.phases[first].nodes.iter();
        let graphs: BTreeSet<&str> = nodes.map(|node| node.fact.graph.as_str()).collect();
        for phase in arm.phases[first + 1..].iter().filter(|phase| phase.from.is_some()) {
            let pressure = phase.steps.iter().find(|step| step.name == StepName::Pressure);
            for launch in &phase.launches {
                let graph = launch.fact.graph.as_deref().and_then(|graph| graphs.get(graph));
                pressed |= graph.is_some() && pressure.is_some_and(|p| p.step < launch.step);
                replayed.extend(graph);
                replaying.extend(graph.map(|_| launch.rank.dp));
            }
            eager(case, arm, phase, &graphs);
        }
        reused(case, arm);
        captured.extend(graphs);
    }
    for replica in replicas.difference(&replaying) {
        let which = if *replica > 0 { format!(" on replica {replica}") } else { String::new() };
        case.leave_undecided(
            Room::Storage,
            format!("no captured graph was replayed{which} after the update"),
        );
    }
    if !pressed {
        case.leave_undecided(
            Room::Storage,
            "freed memory was not reused before the replay".to_owned(),
        );
    }
    let idle = captured.difference(&replayed);
    case.unseen.extend(idle.map(|graph| format!("graph {graph} (not replayed after an update)")));
    controls(case)
}

/// Requests in graph mode during which no captured graph was launched.
fn eager(
    case: &mut Case<'_, '_>,
    arm: &ArmView<'_>,
    phase: &PhaseView<'_>,
    graphs: &BTreeSet<&str>,
) {
    let served = phase.logits.iter().chain(&phase.batched);
    for ((request, mode, _), seen) in served {
        let launched = phase.launches.iter().any(|launch| {
            let graph = launch.fact.graph.as_deref();
            launch.step == seen.step && graph.is_some_and(|graph| graphs.contains(graph))
        });
        if *mode == "graph" && !launched {
            let (name, label) = (&arm.header.arm, phase.phase);
            let text =
                format!("request `{request}` of arm `{name}` replayed no graph after `{label}`");
            case.leave_undecided(Room::Storage, text);
        }
    }
}

/// In the differential lane, blocks that lived at the capture and were freed since are handed out
/// again under pressure: a pointer into them that nobody knows of would otherwise read what it
/// always read.
fn reused(case: &mut Case<'_, '_>, arm: &ArmView<'_>) {
    if arm.header.lane != LaneName::Differential {
        return;
    }
    let steps = arm.phases.iter().flat_map(|phase| &phase.steps);
    let pressure: BTreeSet<u32> =
        steps.filter(|step| step.name == StepName::Pressure).map(|step| step.step).collect();
    let mut captured: BTreeSet<Rank> = BTreeSet::new();
    let mut live: BTreeSet<(Rank, StorageId)> = BTreeSet::new();
    let mut freed: BTreeSet<Rank> = BTreeSet::new();
    let mut pressed: BTreeSet<Rank> = BTreeSet::new();
    for event in &arm.events {
        match &event.fact {
            Fact::Node(_) => {
                captured.insert(event.rank);
            }
            Fact::Alloc(fact) if !captured.contains(&event.rank) => {
                live.insert((event.rank, fact.storage));
            }
            Fact::Free(fact) if !captured.contains(&event.rank) => {
                live.remove(&(event.rank, fact.storage));
            }
            Fact::Free(fact) if live.contains(&(event.rank, fact.storage)) => {
                freed.insert(event.rank);
            }
            Fact::Alloc(fact) if pressure.contains(&event.step) || fact.purpose == "pressure" => {
                pressed.insert(event.rank);
            }
            _ => {}
        }
    }
    for rank in freed.into_iter().filter(|rank| !pressed.contains(rank)) {
        let name = &arm.header.arm;
        let text = format!("no freed memory was handed out again on rank {rank} of arm `{name}`");
        case.leave_undecided(Room::Storage, text);
    }
}

/// Counts live changes that the replay showed, and lists those that it did not. Each rank on which
/// one was made must show one.
fn controls(case: &mut Case<'_, '_>) -> usize {
    let view = case.view;
    let mut seen = 0;
    let mut ranks: BTreeMap<Rank, bool> = BTreeMap::new();
    for arm in &view.arms {
        for control in arm.phases.iter().flat_map(|phase| &phase.controls) {
            let shown = control.fact.before != control.fact.after;
            if arm.header.lane == LaneName::Differential {
                *ranks.entry(control.rank).or_default() |= shown;
            }
            seen += usize::from(shown);
            if !shown {
                let part = &control.fact.part;
                let part = if part.is_empty() { String::new() } else { format!(" ({part})") };
                case.unseen.insert(format!("{}{part}", control.fact.slot));
            }
        }
    }
    uncontrolled(case);
    if seen == 0 {
        case.leave_undecided(
            Room::Storage,
            "no positive control was seen by the replay".to_owned(),
        );
    }
    for (rank, _) in ranks.into_iter().filter(|(_, shown)| !shown && seen > 0) {
        let text = format!("no live change on rank {rank} was seen by the replay");
        case.leave_undecided(Room::Storage, text);
    }
    seen
}

/// Slots that got no control in any arm: one line a reason, since there may be thousands.
fn uncontrolled(case: &mut Case<'_, '_>) {
    let view = case.view;
    let all = view.arms.iter().flat_map(|arm| &arm.phases);
    let controlled: BTreeSet<(Rank, &str)> = all
        .clone()
        .flat_map(|phase| &phase.controls)
        .map(|control| (control.rank, control.fact.slot.0.as_str()))
        .collect();
    let mut left: BTreeMap<&str, BTreeSet<(Rank, &str)>> = BTreeMap::new();
    for seen in all.flat_map(|phase| &phase.uncontrolled) {
        let slot = (seen.rank, seen.fact.slot.0.as_str());
        if !controlled.contains(&slot) {
            left.entry(&seen.fact.reason).or_default().insert(slot);
        }
    }
    case.unseen.extend(left.into_iter().map(|(reason, slots)| {
        format!("{} slots without a positive control ({reason})", slots.len())
    }));
}
