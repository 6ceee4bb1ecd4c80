//! Captured addresses after an update: alive, of the same owner, and seen by the replay (R62, R71).

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Blocks, ByAddress, CapturedArg, Fate, by_address, owner};
use crate::evidence::{ArmView, LaneName, PhaseView, SlotFact};
use crate::verdict::{Case, Finding, FindingCode, Room};
use crate::words::{Fingerprint, Rank, StepName};

/// Judges category 1.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let mut replayed = false;
    let mut pressed = false;
    for (index, arm) in view.arms.iter().enumerate() {
        if arm.header.against.is_none() {
            continue;
        }
        arm_check(case, index, arm);
        for phase in arm.phases.iter().filter(|phase| phase.from.is_some()) {
            replayed |= phase.launches.iter().any(|launch| launch.fact.graph.is_some());
            pressed |= phase.steps.iter().any(|step| step.name == StepName::Pressure);
        }
    }
    let seen = controls(case);
    let covered = view.ran(LaneName::Differential);
    let coverage = case.cover(Room::Storage);
    coverage.covered = covered;
    if !replayed {
        coverage.undecided.insert("no captured graph was replayed after the update".to_owned());
    }
    if !pressed {
        coverage.undecided.insert("freed memory was not reused before the replay".to_owned());
    }
    if seen == 0 {
        coverage.undecided.insert("no positive control was seen by the replay".to_owned());
    }
    coverage.proven = format!(
        "{} captured addresses alive and of the same owner; {seen} live changes seen by the replay",
        coverage.checks
    );
}

fn arm_check(case: &mut Case<'_, '_>, index: usize, arm: &ArmView<'_>) {
    let Some(captured_in) = arm.phases.iter().position(|phase| !phase.nodes.is_empty()) else {
        if arm.phases.iter().flat_map(|phase| &phase.steps).any(|s| s.name == StepName::Capture) {
            let coverage = case.cover(Room::Storage);
            coverage.undecided.insert(format!("arm `{}` captured no node", arm.header.arm));
        }
        return;
    };
    for rank in arm.header.topology.ranks() {
        rank_check(case, index, arm, captured_in, rank);
    }
}

fn rank_check(
    case: &mut Case<'_, '_>,
    index: usize,
    arm: &ArmView<'_>,
    captured_in: usize,
    rank: Rank,
) {
    let blocks = Blocks::of(arm, rank);
    let args = captured_args(&arm.phases[captured_in], &blocks, rank);
    let slots_then = slots_of(&arm.phases[captured_in], rank);
    let unresolved = args.iter().filter(|arg| arg.block.is_none()).count();
    if unresolved > 0 {
        let text = format!(
            "{unresolved} captured addresses of arm `{}` lie in no block the allocator knows",
            arm.header.arm
        );
        case.cover(Room::Storage).undecided.insert(text);
    }
    let mut reported: BTreeSet<String> = BTreeSet::new();
    for arg in &args {
        let Some(block) = arg.block else { continue };
        let fate = blocks.fate(block);
        let mut clean = true;
        for phase in captured_in + 1..arm.phases.len() {
            let trouble = trouble(&arm.phases[phase], rank, arg, fate);
            let Some(code) = trouble else { continue };
            clean = false;
            let object =
                arg.owner.map_or_else(|| block.fact.purpose.clone(), |owner| owner.slot.0.clone());
            if reported.insert(format!("{phase} {object}")) {
                let finding = finding(case, index, arm, arg, fate, code, phase, rank);
                case.raise(finding, (index, phase), &[&object]);
            }
        }
        if clean {
            case.cover(Room::Storage).checks += 1;
        }
    }
    respecified(case, index, arm, captured_in, rank, &slots_then, &args);
}

fn captured_args<'r>(
    phase: &PhaseView<'r>,
    blocks: &Blocks<'r>,
    rank: Rank,
) -> Vec<CapturedArg<'r>> {
    let slots = slots_of(phase, rank);
    let nodes = phase.nodes.iter().filter(|node| node.rank == rank);
    nodes
        .flat_map(|node| node.fact.args.iter().map(move |arg| (*node, arg)))
        .map(|(node, arg)| CapturedArg {
            node,
            arg,
            block: blocks.at_capture(arg.address),
            owner: owner(&slots, arg.address),
        })
        .collect()
}

fn slots_of<'r>(phase: &PhaseView<'r>, rank: Rank) -> ByAddress<'r> {
    by_address(phase.slots.iter().filter(|((r, _), _)| *r == rank).map(|(_, slot)| slot.fact))
}

/// R71 for one captured address in one later phase.
fn trouble(
    phase: &PhaseView<'_>,
    rank: Rank,
    arg: &CapturedArg<'_>,
    fate: Fate<'_>,
) -> Option<FindingCode> {
    let now = arg.owner.map(|owner| phase.slots.get(&(rank, &owner.slot)));
    let last = phase.steps.last().map_or(phase.first_step, |step| step.step);
    let freed = fate.freed.is_some_and(|(step, _)| step <= last);
    match now {
        // The engine did not say in this phase; the allocator may still tell.
        _ if phase.slots.is_empty() => freed.then_some(FindingCode::AddressStale),
        None => freed.then_some(FindingCode::AddressStale),
        Some(None) => Some(FindingCode::SlotMissing),
        Some(Some(slot)) => match &slot.fact.fingerprint {
            None => Some(FindingCode::SlotExpired),
            Some(print) if !holds(print, arg) => Some(FindingCode::SlotRebound),
            Some(_) => freed.then_some(FindingCode::AddressStale),
        },
    }
}

fn holds(print: &Fingerprint, arg: &CapturedArg<'_>) -> bool {
    let range = crate::words::ByteRange { address: print.address, bytes: print.bytes().max(1) };
    range.contains(arg.arg.address)
}

/// Layout changes of captured slots that kept their address (R5).
fn respecified(
    case: &mut Case<'_, '_>,
    index: usize,
    arm: &ArmView<'_>,
    captured_in: usize,
    rank: Rank,
    then: &ByAddress<'_>,
    args: &[CapturedArg<'_>],
) {
    let captured: BTreeMap<&str, &SlotFact> =
        args.iter().filter_map(|arg| arg.owner).map(|slot| (slot.slot.0.as_str(), slot)).collect();
    for slot in then.values().filter(|slot| captured.contains_key(slot.slot.0.as_str())) {
        for phase_index in captured_in + 1..arm.phases.len() {
            let phase = &arm.phases[phase_index];
            let now = phase.slots.get(&(rank, &slot.slot));
            let (Some(before), Some(now)) =
                (&slot.fingerprint, now.and_then(|now| now.fact.fingerprint.as_ref()))
            else {
                continue;
            };
            let fields = changed_fields(before, now);
            if fields.is_empty() || before.address != now.address {
                continue;
            }
            let finding = Finding::new(
                FindingCode::SlotRespecified,
                slot.slot.0.clone(),
                case.rank_index(index, rank),
            )
            .expected(layout(before), layout(now))
            .why(format!("the captured kernels were built for another {}", fields.join(", ")));
            case.raise(finding, (index, phase_index), &[&slot.slot.0]);
        }
    }
}

fn changed_fields(before: &Fingerprint, now: &Fingerprint) -> Vec<&'static str> {
    let pairs = [
        ("shape", before.shape == now.shape),
        ("stride", before.stride == now.stride),
        ("offset", before.offset == now.offset),
        ("dtype", before.dtype == now.dtype),
        ("device", before.device == now.device),
    ];
    pairs.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
}

fn layout(print: &Fingerprint) -> String {
    format!("{:?} {} stride {:?} on {}", print.shape, print.dtype, print.stride, print.device)
}

#[expect(clippy::too_many_arguments, reason = "one call site, all of it evidence of one pointer")]
fn finding(
    case: &Case<'_, '_>,
    index: usize,
    arm: &ArmView<'_>,
    arg: &CapturedArg<'_>,
    fate: Fate<'_>,
    code: FindingCode,
    phase: usize,
    rank: Rank,
) -> Finding {
    let node = arg.node.fact;
    let owner = arg.owner.map(|owner| owner.slot.0.as_str());
    let object = owner.map_or_else(
        || arg.block.map_or_else(String::new, |block| block.fact.purpose.clone()),
        str::to_owned,
    );
    let now = arg.owner.and_then(|owner| arm.phases[phase].slots.get(&(rank, &owner.slot)));
    let now_at = now.and_then(|now| now.fact.fingerprint.as_ref()).map_or_else(
        || "nowhere".to_owned(),
        |print| format!("{} (storage {})", print.address, print.storage),
    );
    let mut finding = Finding::new(code, object, case.rank_index(index, rank))
        .expected(
            format!("{} stays the slot's storage", arg.arg.address),
            format!("the slot is now at {now_at}"),
        )
        .why(format!(
            "graph `{}` retains {} (node {}, kernel `{}`, argument {}); {}",
            node.graph,
            arg.arg.address,
            node.node,
            node.kernel,
            arg.arg.index,
            fate_text(arm, fate)
        ));
    if let Some(block) = arg.block {
        let text = format!(
            "storage {} of {} bytes at {} for `{}`",
            block.fact.storage, block.fact.bytes, block.fact.address, block.fact.purpose
        );
        finding = finding.event("bound", arm.step_name(block.step), block.seq, text);
    }
    let text = format!("graph `{}`, node {}, argument {}", node.graph, node.node, arg.arg.index);
    finding = finding.event("captured", arm.step_name(arg.node.step), arg.node.seq, text);
    match (fate.freed, now) {
        (Some((step, seq)), _) => {
            finding.event("freed", arm.step_name(step), seq, fate_text(arm, fate))
        }
        (None, Some(now)) => {
            let text = format!("registered at {now_at}");
            finding.event("rebound", arm.step_name(now.step), now.seq, text)
        }
        (None, None) => finding,
    }
}

fn fate_text(arm: &ArmView<'_>, fate: Fate<'_>) -> String {
    match (fate.freed, fate.reused) {
        (None, _) => "its block is still allocated, without an owner".to_owned(),
        (Some((step, _)), None) => {
            format!("its block was freed in step `{}`", arm.step_name(step))
        }
        (Some((step, _)), Some(block)) => format!(
            "its block was freed in step `{}` and handed to `{}` (storage {})",
            arm.step_name(step),
            block.fact.purpose,
            block.fact.storage
        ),
    }
}

/// Counts live changes that the replay showed, and lists those that it did not.
fn controls(case: &mut Case<'_, '_>) -> usize {
    let view = case.view;
    let mut seen = 0;
    for control in view.arms.iter().flat_map(|arm| &arm.phases).flat_map(|phase| &phase.controls) {
        if control.fact.before == control.fact.after {
            let part = &control.fact.part;
            let part = if part.is_empty() { String::new() } else { format!(" ({part})") };
            case.unseen.insert(format!("{}{part}", control.fact.slot));
        } else {
            seen += 1;
        }
    }
    seen
}
