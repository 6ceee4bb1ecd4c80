//! Captured addresses after an update: alive, of the same owner, and seen by the replay (R62, R71).

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Block, Blocks, CapturedArg, Fate, by_address, covers, owner};
use super::recaptured::{self, Changed};
use super::{Change, Field, Hold, Outcome, Registry, RegistryDraft, Sighting, replays};
use crate::evidence::{ArgAccess, ArmView, LaneName, PhaseView, SlotFact, StepOutcome, StepView};
use crate::verdict::{Case, Finding, FindingCode, Room};
use crate::words::{ByteRange, Fingerprint, Rank, SlotName, StepName};

/// Judges category 1.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    let mut counts = Counts::default();
    for (index, arm) in view.arms.iter().enumerate() {
        if arm.header.against.is_none() {
            continue;
        }
        let Some(captured_in) = arm.phases.iter().position(|phase| !phase.nodes.is_empty()) else {
            let mut steps = arm.phases.iter().flat_map(|phase| &phase.steps);
            if steps.any(|step| step.name == StepName::Capture) {
                case.leave_undecided(
                    Room::Storage,
                    format!("arm `{}` captured no node", arm.header.arm),
                );
            }
            continue;
        };
        for rank in arm.header.topology.ranks() {
            let blocks = Blocks::of(arm, rank);
            let args = captured_args(&arm.phases[captured_in], &blocks, rank);
            let changes = changes(arm, captured_in, rank, &args);
            let changed = recaptured::check(case, (index, arm), captured_in, rank);
            let capture = Capture { index, arm, captured_in, rank, blocks, args, changes, changed };
            census(case, &capture, &mut counts);
        }
    }
    let seen = replays::check(case);
    let covered = view.ran(LaneName::Differential);
    let Counts { owned, graph } = counts;
    let coverage = case.cover(Room::Storage);
    coverage.covered = covered;
    coverage.proven = format!(
        "{} captured addresses alive, {owned} of them of the same owner and {graph} of the graphs' \
         own memory; {seen} live changes seen by the replay",
        coverage.checks
    );
}

/// Captured addresses that are still right.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// In the storage of a slot.
    owned: u64,
    /// In memory that no slot owns.
    graph: u64,
}

/// The graphs of one rank of one arm, and the memory under them.
struct Capture<'v, 'r> {
    index: usize,
    arm: &'v ArmView<'r>,
    captured_in: usize,
    rank: Rank,
    blocks: Blocks<'r>,
    args: Vec<CapturedArg<'r>>,
    /// What became of the slots that it retains, by phase in which any were registered.
    changes: BTreeMap<usize, BTreeMap<SlotName, Change>>,
    /// Graphs that were captured again or edited since.
    changed: Changed<'r>,
}

impl Capture<'_, '_> {
    /// Whether the graph of an argument is still the captured one in a phase. What another one
    /// retains is not what was captured.
    fn holds(&self, arg: &CapturedArg<'_>, phase: usize) -> bool {
        self.changed.get(arg.node.fact.graph.as_str()).is_none_or(|first| phase < *first)
    }
}

/// Compares the slots that a graph retains with those of the capture, phase by phase. Evidence
/// holds no storage alive, so the registry is weak.
fn changes(
    arm: &ArmView<'_>,
    captured_in: usize,
    rank: Rank,
    args: &[CapturedArg<'_>],
) -> BTreeMap<usize, BTreeMap<SlotName, Change>> {
    let owners: BTreeMap<&SlotName, &SlotFact> =
        args.iter().filter_map(|arg| arg.owner).map(|slot| (&slot.slot, slot)).collect();
    let mut draft = RegistryDraft::default();
    for (name, slot) in owners {
        let Some(print) = &slot.fingerprint else { continue };
        // Names of a map are registered once each, and evidence has fewer slots than are allowed.
        if draft.register(name.clone(), print.clone()).is_err() {
            break;
        }
    }
    let registry = draft.seal(Hold::Weak);
    // In the phase of the capture itself nothing has changed yet.
    let later = arm.phases.iter().enumerate().skip(captured_in);
    // Where the engine did not say in this phase, the allocator may still tell.
    later
        .filter(|(_, phase)| !phase.slots.is_empty())
        .map(|(index, phase)| (index, changes_in(&registry, phase, rank)))
        .collect()
}

fn changes_in(
    registry: &Registry,
    phase: &PhaseView<'_>,
    rank: Rank,
) -> BTreeMap<SlotName, Change> {
    let mut snapshot = registry.snapshot();
    for name in registry.names() {
        let now = phase.slots.get(&(rank, name)).zip(registry.index(name));
        if let Some((slot, index)) = now {
            let print = slot.fact.fingerprint.as_ref();
            snapshot.see_at(index, print.map_or(Sighting::Gone, Sighting::At));
        }
    }
    snapshot.changes().into_iter().map(|change| (change.slot.clone(), change)).collect()
}

/// What is wrong with a captured address in a later phase.
enum Trouble<'r> {
    /// With the slot that owns it, or with its block.
    Slot(FindingCode),
    /// The engine serves and this region, unmapped in (step, seq), is backed by no memory.
    Region(&'r str, u32, u64),
}

fn census(case: &mut Case<'_, '_>, capture: &Capture<'_, '_>, counts: &mut Counts) {
    let Capture { index, arm, captured_in, rank, ref args, .. } = *capture;
    if args.is_empty() {
        case.leave_undecided(
            Room::Storage,
            format!("arm `{}` captured no address on rank {rank}", arm.header.arm),
        );
    }
    let unresolved = args.iter().filter(|arg| arg.block.is_none()).count();
    if unresolved > 0 {
        let text = format!(
            "{unresolved} captured addresses of arm `{}` lie in no block the allocator knows",
            arm.header.arm
        );
        case.leave_undecided(Room::Storage, text);
    }
    let later = captured_in + 1..arm.phases.len();
    let registered = later.clone().any(|phase| !arm.phases[phase].slots.is_empty());
    if !registered {
        let text = format!("arm `{}` registered no slot after it captured", arm.header.arm);
        case.leave_undecided(Room::Storage, text);
    }
    let mut reported: BTreeSet<(usize, String, String)> = BTreeSet::new();
    for arg in args {
        let Some(block) = arg.block else { continue };
        let mut clean = registered;
        for phase in later.clone() {
            if !capture.holds(arg, phase) {
                clean = false;
                break;
            }
            let Some(trouble) = trouble(capture, phase, arg, block) else { continue };
            clean = false;
            let owner = arg.owner.map_or(&block.fact.purpose, |owner| &owner.slot.0);
            let finding = match trouble {
                Trouble::Slot(code) => finding(case, capture, arg, block, phase, code),
                Trouble::Region(region, step, seq) => {
                    let rank = case.rank_index(index, rank);
                    unmapped(arm, rank, arg, region, (step, seq))
                }
            };
            if reported.insert((phase, finding.object.clone(), owner.clone())) {
                case.raise(finding, (index, phase), &[owner]);
            }
        }
        case.cover(Room::Storage).checks += u64::from(clean);
        let count = if arg.owner.is_some() { &mut counts.owned } else { &mut counts.graph };
        *count += u64::from(clean);
    }
    let ownerless = ownerless(args);
    if ownerless > 0 {
        let text = format!(
            "{ownerless} captured addresses of arm `{}` are read and owned by no slot",
            arm.header.arm
        );
        case.leave_undecided(Room::Storage, text);
    }
    respecified(case, capture);
}

fn captured_args<'r>(
    phase: &PhaseView<'r>,
    blocks: &Blocks<'r>,
    rank: Rank,
) -> Vec<CapturedArg<'r>> {
    let own = phase.slots.iter().filter(|((r, _), _)| *r == rank);
    let slots = by_address(own.map(|(_, slot)| slot.fact));
    let nodes = phase.nodes.iter().filter(|node| node.rank == rank);
    nodes
        .flat_map(|node| node.fact.args.iter().map(move |arg| (*node, arg)))
        .map(|(node, arg)| {
            let block = blocks.at_capture(arg.address);
            CapturedArg { node, arg, block, owner: owner(&slots, block, arg.address) }
        })
        .collect()
}

/// Addresses that no slot owns and that are read before anything in their graph writes them,
/// outside the memory that graphs and requests have for that: weights that nobody registered.
fn ownerless(args: &[CapturedArg<'_>]) -> usize {
    let mut written: BTreeMap<&str, Vec<ByteRange>> = BTreeMap::new();
    let mut count = 0;
    for arg in args {
        let graph = written.entry(arg.node.fact.graph.as_str()).or_default();
        let (address, bytes) = (arg.arg.address, arg.arg.bytes.max(1));
        let own = arg.block.is_some_and(|b| matches!(&*b.fact.region, "graph_pool" | "runtime"));
        let input = own || graph.iter().any(|range| range.contains(address));
        match arg.arg.access {
            ArgAccess::Write => graph.push(ByteRange { address, bytes }),
            ArgAccess::Read | ArgAccess::ReadWrite | ArgAccess::Unknown => {
                count += usize::from(arg.owner.is_none() && arg.block.is_some() && !input);
            }
        }
    }
    count
}

/// R71 for one captured address in one later phase.
fn trouble<'r>(
    capture: &Capture<'_, 'r>,
    phase: usize,
    arg: &CapturedArg<'r>,
    block: Block<'r>,
) -> Option<Trouble<'r>> {
    let change = arg.owner.and_then(|owner| capture.changes.get(&phase)?.get(&owner.slot));
    let phase = &capture.arm.phases[phase];
    let outcome = change.map(|change| &change.outcome);
    match outcome {
        Some(Outcome::Missing) => return Some(Trouble::Slot(FindingCode::SlotMissing)),
        Some(Outcome::Expired) => return Some(Trouble::Slot(FindingCode::SlotExpired)),
        Some(Outcome::Rebound(fields))
            if fields.contains(&Field::Address)
                && !change.is_some_and(|change| parted(phase, capture.rank, arg, change)) =>
        {
            return Some(Trouble::Slot(FindingCode::SlotRebound));
        }
        _ => {}
    }
    let last = phase.steps.last().map_or(phase.first_step, |step| step.step);
    if capture.blocks.fate(block).freed.is_some_and(|(step, _)| step <= last) {
        return Some(Trouble::Slot(FindingCode::AddressStale));
    }
    // The same address of another storage, though the allocator took no block back. Names that
    // shared a storage and no longer do are a split alias.
    let alone = arg.owner.is_some_and(|owner| owner.aliases.is_empty());
    if alone && matches!(outcome, Some(Outcome::Rebound(_))) {
        return Some(Trouble::Slot(FindingCode::SlotRebound));
    }
    let serves = |step: &&StepView| {
        let taken = !matches!(
            step.outcome,
            Some(StepOutcome::Error { .. } | StepOutcome::Unsupported { .. })
        );
        taken && matches!(step.name, StepName::Resume | StepName::Serve | StepName::Control)
    };
    let served = phase.steps.iter().rev().find(serves)?;
    let (region, step, seq) = capture.blocks.unmapped(arg.arg.address, served.step)?;
    Some(Trouble::Region(region, step, seq))
}

/// Whether what the graph retains is still the storage of another name of the slot: then the names
/// have parted, and the graph computes with what one of them names.
fn parted(phase: &PhaseView<'_>, rank: Rank, arg: &CapturedArg<'_>, change: &Change) -> bool {
    let mut names = arg.owner.iter().flat_map(|owner| &owner.aliases);
    names.any(|name| {
        let print = phase.slots.get(&(rank, name)).and_then(|slot| slot.fact.fingerprint.as_ref());
        print.is_some_and(|print| print.storage == change.captured.storage)
    })
}

/// Layout changes of captured slots that kept their address (R5).
fn respecified(case: &mut Case<'_, '_>, capture: &Capture<'_, '_>) {
    let Capture { index, rank, ref changes, .. } = *capture;
    let rank = case.rank_index(index, rank);
    let changes = changes.iter().flat_map(|(phase, own)| own.values().map(move |own| (phase, own)));
    for (phase, change) in changes {
        let (Outcome::Respecified(fields) | Outcome::Rebound(fields)) = &change.outcome else {
            continue;
        };
        let name = &change.slot.0;
        let mut own =
            capture.args.iter().filter(|a| a.owner.is_some_and(|o| o.slot == change.slot));
        if !own.any(|arg| capture.holds(arg, *phase)) {
            continue;
        }
        let layouts: Vec<String> =
            fields.iter().filter(|field| !field.is_place()).map(Field::to_string).collect();
        let known = case.blamed_finding(name, index, rank).is_some();
        let respecified = case.has(FindingCode::SlotRespecified, name);
        let moved = fields.contains(&Field::Address);
        let Some(now) = change.now.as_ref().filter(|_| !moved && !layouts.is_empty()) else {
            continue;
        };
        if known && !respecified {
            continue;
        }
        let finding = Finding::new(FindingCode::SlotRespecified, name, rank)
            .expected(layout(&change.captured), layout(now))
            .why(format!("the captured kernels were built for another {}", layouts.join(", ")));
        case.raise(finding, (index, *phase), &[name]);
    }
}

fn layout(print: &Fingerprint) -> String {
    format!("{:?} {} stride {:?} on {}", print.shape, print.dtype, print.stride, print.device)
}

/// A finding about one slot. An allocator that hands two blocks out in turn shows one fault now as
/// another storage, now as a freed one: what was found first names it.
fn finding(
    case: &Case<'_, '_>,
    capture: &Capture<'_, '_>,
    arg: &CapturedArg<'_>,
    block: Block<'_>,
    phase: usize,
    code: FindingCode,
) -> Finding {
    let Capture { index, arm, rank, ref blocks, .. } = *capture;
    let node = arg.node.fact;
    let object = arg.owner.map_or(&block.fact.purpose, |owner| &owner.slot.0);
    let known = case.blamed_anywhere(object, index).filter(|known| known.object == *object);
    let code = known.map_or(code, |known| known.code);
    let fate = blocks.fate(block);
    let now = arg.owner.and_then(|owner| arm.phases[phase].slots.get(&(rank, &owner.slot)));
    let now_at = now.and_then(|now| now.fact.fingerprint.as_ref()).map_or_else(
        || "nowhere".to_owned(),
        |print| format!("{} (storage {})", print.address, print.storage),
    );
    // A registry that still names the address does not say what became of the memory there.
    let held = now.is_some_and(|now| covers(now.fact, arg.arg.address));
    let actual = if held && fate.freed.is_some() {
        fate_text(arm, fate)
    } else {
        format!("the slot is now at {now_at}")
    };
    let finding = Finding::new(code, object, case.rank_index(index, rank))
        .expected(format!("{} stays the slot's storage", arg.arg.address), actual)
        .why(format!(
            "graph `{}` retains {} (node {}, kernel `{}`, argument {}); {}",
            node.graph,
            arg.arg.address,
            node.node,
            node.kernel,
            arg.arg.index,
            fate_text(arm, fate)
        ));
    let text = format!(
        "storage {} of {} bytes at {} for `{}`",
        block.fact.storage, block.fact.bytes, block.fact.address, block.fact.purpose
    );
    let finding = finding.event("bound", arm.step_name(block.step), block.seq, text);
    let finding = captured(finding, arm, arg);
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

fn captured(finding: Finding, arm: &ArmView<'_>, arg: &CapturedArg<'_>) -> Finding {
    let (node, index) = (arg.node.fact, arg.arg.index);
    let text = format!("graph `{}`, node {}, argument {index}", node.graph, node.node);
    finding.event("captured", arm.step_name(arg.node.step), arg.node.seq, text)
}

/// One region is one finding, however many addresses lie in it.
fn unmapped(
    arm: &ArmView<'_>,
    rank: u32,
    arg: &CapturedArg<'_>,
    region: &str,
    (step, seq): (u32, u64),
) -> Finding {
    let text = format!("unmapped in step `{}` and not mapped again", arm.step_name(step));
    let finding = Finding::new(FindingCode::AddressStale, region, rank)
        .expected(format!("region `{region}` is mapped before the engine serves"), &text)
        .why(format!(
            "graph `{}` retains {} in it: a replay is an illegal access",
            arg.node.fact.graph, arg.arg.address
        ));
    captured(finding, arm, arg).event("unmapped", arm.step_name(step), seq, text)
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
