//! Everything delivered was applied exactly once, for the layout that the slot has (R19 to R25).

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Account, AccountError, account};
use super::{LedgerError, PostLoadError, observed, permuted};
use crate::derived::read_text;
use crate::evidence::{ArmView, Difference, Holds, PhaseView, PostLoadStage};
use crate::routing::{Placement, PlacementError, SourceRule};
use crate::verdict::{Case, Finding, FindingCode, FindingEvent, Room, symptom};
use crate::words::{ExpertPlacement, Fragment, Hex128, Packing, Rank, SlotKind, SlotName};

/// Judges what engines claim of their applications. Byte differences are judged by [`check`],
/// after the rooms whose findings explain some of them.
pub(crate) fn check_claims(case: &mut Case<'_, '_>) {
    let view = case.view;
    for (index, arm) in view.arms.iter().enumerate() {
        let mut placed = None;
        for phase_index in 0..arm.phases.len() {
            let phase = &arm.phases[phase_index];
            if phase.failed_step().is_some() {
                continue;
            }
            accounts(case, (index, phase_index), (arm, phase), &mut placed);
        }
    }
}

/// What a placement follows from: the rules of a phase, and where experts are at its end.
type Places<'r> = (&'r [SourceRule], Option<&'r ExpertPlacement>);

/// Where sources belong on the ranks of an arm, as of its last phase.
type Placed<'r> = Option<(Places<'r>, Result<Placement, PlacementError>)>;

/// Judges category 3.
pub(crate) fn check(case: &mut Case<'_, '_>) {
    let comparison = case.comparison;
    let parameters =
        comparison.differences.iter().filter(|d| d.slot.slot_kind == SlotKind::Parameter);
    for difference in parameters {
        residual(case, difference);
    }
    let sources = sources(case);
    observed::check(case);
    let equal = case.cover_content(Room::Lifecycle, &[SlotKind::Parameter], "parameter");
    let covered = case.view.covers_content();
    let coverage = case.cover(Room::Lifecycle);
    coverage.covered = covered;
    coverage.checks += sources;
    if sources == 0 {
        coverage.undecided.insert("no source was read back and compared with its file".to_owned());
    }
    coverage.proven = format!(
        "{equal} parameters equal to a cold load's and {sources} sources equal to their files, bit \
         for bit"
    );
}

/// An engine that gives no account on a rank claims nothing there: its bytes decide.
fn accounts<'r>(
    case: &mut Case<'_, 'r>,
    site: (usize, usize),
    (arm, phase): (&ArmView<'r>, &PhaseView<'r>),
    placed: &mut Placed<'r>,
) {
    let Some(manifest) = phase.manifests.last() else { return };
    let ranks: BTreeSet<Rank> = phase.applications.iter().map(|a| a.rank).collect();
    let rules = case.view.rules_of(phase);
    if ranks.is_empty() || rules.is_empty() {
        // Nobody says where sources belong: what they were applied to is held against no promise.
        ranks.into_iter().for_each(|rank| unfinished(case, site, phase, rank));
        return;
    }
    let fact = manifest.fact;
    let delivered: BTreeSet<&String> = fact.delivered.iter().collect();
    let optional = fact.allowed_missing.iter().filter(|source| delivered.contains(source));
    let promised: BTreeSet<&str> = fact.required.iter().chain(optional).map(|s| &**s).collect();
    let undecided = |case: &mut Case<'_, '_>, error: AccountError| {
        let text = format!("the account of arm `{}` cannot be replayed: {error}", arm.header.arm);
        case.cover(Room::Lifecycle).undecided.insert(text);
    };
    let same = |of: Places<'_>| std::ptr::eq(of.0, rules) && of.1 == phase.experts;
    let known = placed.take().filter(|(of, _)| same(*of));
    let place = || Placement::with_experts(rules, arm.header.topology, phase.experts);
    let now = known.unwrap_or_else(|| ((rules, phase.experts), place()));
    let placement = match &placed.insert(now).1 {
        Ok(placement) => placement,
        Err(error) => return undecided(case, error.clone().into()),
    };
    for rank in ranks {
        match account(placement, phase, rank, &promised) {
            Ok(account) => report(case, site, rank, account),
            Err(error) => undecided(case, error),
        }
    }
}

/// A gap that repeats fill up to the count is one fault, and so is a layer that was finished over
/// it: the gap is the finding, the rest are its events. A gap that a write of the wrong elements
/// leaves is that write's.
fn report(case: &mut Case<'_, '_>, site: (usize, usize), rank: Rank, account: Account) {
    let rank_index = case.rank_index(site.0, rank);
    let mut repeats = Vec::new();
    let astray: BTreeSet<(String, SlotName)> = (account.applications.iter())
        .filter_map(|(error, _)| match error {
            LedgerError::UnexpectedFragment { application, .. } => {
                Some((application.source.clone(), application.slot.clone()))
            }
            _ => None,
        })
        .collect();
    let mut gaps: Vec<(String, SlotName, LedgerError)> = Vec::new();
    for gap in account.missing {
        if let LedgerError::Missing { source_name, slot, .. } = &gap {
            let of = (source_name.clone(), slot.clone());
            let known = astray.contains(&of) || account.foreign.contains(slot);
            gaps.extend((!known).then_some((of.0, of.1, gap)));
        }
    }
    let open: BTreeSet<SlotName> = gaps.iter().map(|(_, slot, _)| slot.clone()).collect();
    // Slots that sentinels, or another rank's account, already show with a wrong shard.
    let misplaced = |slot: &&SlotName| {
        let finding = case.blamed_anywhere(&slot.0, site.0);
        finding.is_some_and(|finding| finding.code == FindingCode::ShardMisplaced)
    };
    let misplaced: BTreeSet<SlotName> = open.iter().filter(misplaced).cloned().collect();
    for (error, event) in account.applications {
        match error {
            LedgerError::Duplicate { application } if open.contains(&application.slot) => {
                repeats.push((application.slot, event));
            }
            other => raise(case, site, rank_index, &other, vec![event]),
        }
    }
    for (source, slot, gap) in &gaps {
        let known = misplaced.contains(slot) && !case.has(FindingCode::ApplicationMissing, source);
        let text = symptom("applied", "update", 0, gap.to_string());
        if !(known && case.join_slot(&slot.0, site, text)) {
            let here = repeats.iter().filter(|(repeated, _)| repeated == slot);
            raise(case, site, rank_index, gap, here.map(|(_, event)| event.clone()).collect());
        }
    }
    let late = account.left_out.into_iter().map(|error| (error, None));
    let early = account.post_load.into_iter().map(|(error, event)| (error, Some(event)));
    for (error, event) in early.chain(late) {
        let over_gap = match &error {
            PostLoadError::ProcessedEarly { slot, .. }
            | PostLoadError::FinalisedEarly { slot, .. } => {
                open.contains(slot) || astray.iter().any(|(_, other)| other == slot)
            }
            _ => false,
        };
        if !over_gap {
            raise_post_load(case, site, rank_index, &error, event);
        }
    }
}

/// Layers of a model that the catalogue does not know: what a cold load finished and this update
/// did not.
fn unfinished(case: &mut Case<'_, '_>, site: (usize, usize), phase: &PhaseView<'_>, rank: Rank) {
    let of = |stage: PostLoadStage| -> BTreeSet<&str> {
        let own = phase.post_loads.iter().filter(|p| p.rank == rank && p.fact.stage == stage);
        own.map(|p| p.fact.layer.as_str()).collect()
    };
    let rank = case.rank_index(site.0, rank);
    for layer in of(PostLoadStage::Expected).difference(&of(PostLoadStage::Processed)) {
        let error = PostLoadError::NeverProcessed { layer: (*layer).to_owned() };
        raise_post_load(case, site, rank, &error, None);
    }
}

fn raise_post_load(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    rank: u32,
    error: &PostLoadError,
    event: Option<FindingEvent>,
) {
    let (code, layer) = match error {
        PostLoadError::NeverProcessed { layer } | PostLoadError::NeverFinalised { layer } => {
            (FindingCode::FinalisedNever, layer)
        }
        PostLoadError::Unexpected { layer }
        | PostLoadError::ProcessedTwice { layer }
        | PostLoadError::FinalisedTwice { layer }
        | PostLoadError::ProcessedEarly { layer, .. }
        | PostLoadError::FinalisedEarly { layer, .. }
        | PostLoadError::FinalisedUnprocessed { layer }
        | PostLoadError::PrerequisiteOpen { layer, .. } => (FindingCode::FinalisedEarly, layer),
    };
    let mut finding = Finding::new(code, layer.clone(), rank)
        .expected("expected = processed = finalised, once each", error.to_string())
        .why("a layer is finished exactly once, after everything that it needs");
    finding.events.extend(event);
    // What a layer packs is wrong for as long as it is not finished, and so is what is inside.
    let phase = &case.view.arms[site.0].phases[site.1];
    let owner = layer.split('/').next().unwrap_or(layer);
    if code == FindingCode::FinalisedNever && owner != layer && case.has(code, owner) {
        return;
    }
    let own = phase.slots.values().map(|slot| slot.fact).filter(|slot| {
        code == FindingCode::FinalisedNever
            && matches!(slot.slot_kind, SlotKind::Parameter | SlotKind::Derived)
            && (owner == layer || slot.packing == Packing::Opaque)
            && slot.slot.owner() == owner
    });
    let own: BTreeSet<&str> = own.map(|slot| slot.slot.0.as_str()).collect();
    let packed: Vec<&str> = own.into_iter().collect();
    // A layer waits in vain for what never came, or came under a name that leads nowhere.
    let within = |slot: &SlotName| {
        slot.owner()
            .strip_prefix(owner)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut inside = case.view.rules_of(phase).iter().filter(|rule| within(&rule.slot));
    let waits_for = inside.find_map(|rule| Some((went_nowhere(case, &rule.source)?, rule)));
    if code == FindingCode::FinalisedNever
        && let Some((code, rule)) = waits_for
    {
        finding = Finding::new(code, rule.source.clone(), rank);
    }
    case.raise(finding, site, &packed);
}

fn raise(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    rank: u32,
    error: &LedgerError,
    mut events: Vec<FindingEvent>,
) {
    let (code, object, slot) = match error {
        LedgerError::Duplicate { application } => {
            (FindingCode::ApplicationDuplicate, &application.source, Some(&application.slot))
        }
        LedgerError::Overlapping { application, .. } => {
            (FindingCode::ApplicationOverlap, &application.source, Some(&application.slot))
        }
        LedgerError::Undersized { application, .. } => {
            (FindingCode::ApplicationUndersized, &application.source, Some(&application.slot))
        }
        LedgerError::UnexpectedFragment { application, .. } => {
            (FindingCode::ShardMisplaced, &application.slot.0, Some(&application.slot))
        }
        LedgerError::Missing { source_name, slot, .. } => {
            (FindingCode::ApplicationMissing, source_name, Some(slot))
        }
        LedgerError::Ambiguous { source_name, slot, .. } => {
            (FindingCode::NameAmbiguous, source_name, Some(slot))
        }
        LedgerError::UnexpectedSource { source_name } => {
            (FindingCode::SourceUnexpected, source_name, None)
        }
        LedgerError::UnexpectedSlot { slot } => (FindingCode::NameAmbiguous, &slot.0, None),
    };
    // A source that no slot took is the names room's finding, not a second one of this room.
    if code == FindingCode::ApplicationMissing && case.has(FindingCode::SourceUnrouted, object) {
        return;
    }
    // Nor is one that never came: what it would have filled is that finding's.
    if code == FindingCode::ApplicationMissing && case.has(FindingCode::SourceMissing, object) {
        let slots: Vec<&str> = slot.iter().map(|slot| slot.0.as_str()).collect();
        case.raise(Finding::new(FindingCode::SourceMissing, object.clone(), rank), site, &slots);
        for event in events {
            case.join_slot(slots.first().copied().unwrap_or_default(), site, event);
        }
        return;
    }
    let mut finding = Finding::new(code, object.clone(), rank)
        .expected("every promised element applied exactly once", error.to_string())
        .why("the engine's own account of what it wrote contradicts what the caller promised");
    events.truncate(3);
    finding.events = events;
    let slot = slot.map(|slot| slot.0.clone());
    let slots: Vec<&str> = slot.iter().map(String::as_str).collect();
    case.raise(finding, site, &slots);
}

/// A parameter whose bytes differ and that no finding explains yet.
fn residual(case: &mut Case<'_, '_>, difference: &Difference<'_>) {
    let site = (case.arm_index(difference.arm), difference.phase_index);
    let step = case.view.arms[site.0].step_name(difference.read.step);
    let order = permuted::text(case, difference);
    let text = match &order {
        Some(order) => format!("{}; {order}", read_text(difference)),
        None => read_text(difference),
    };
    let found = symptom("read-back", step, difference.read.seq, text.clone());
    let slot = &difference.slot.slot.0;
    let rank = case.rank_index(site.0, difference.rank);
    if explained(case, difference) && case.explain(Room::Lifecycle, slot, rank, site, found.clone())
    {
        return;
    }
    if difference.holds == Holds::Unreadable || preserved(case, difference) {
        crate::state::lost(case, difference);
        return;
    }
    let pieces = difference.pieces.iter().filter(|piece| piece.holds == Holds::Old);
    let mut stale: BTreeSet<&str> = match shard(case, difference) {
        Some(shard) if difference.holds == Holds::Old => BTreeSet::from([shard]),
        _ => pieces.map(|piece| piece.piece.source.as_str()).collect(),
    };
    if difference.holds == Holds::Old && difference.pieces.is_empty() && stale.is_empty() {
        // No bijection of its sources: all that belong there went nowhere.
        let own = case.view.header.rules.iter().filter(|rule| rule.slot.0 == *slot);
        stale.extend(own.map(|rule| rule.source.as_str()));
    }
    if stale.is_empty() && difference.holds == Holds::Old {
        // Nobody says what belongs there, and nothing came.
        stale.insert(slot);
    }
    for source in &stale {
        let code = went_nowhere(case, source).unwrap_or(FindingCode::ApplicationMissing);
        let mut finding = Finding::new(code, *source, rank)
            .expected(
                format!("`{source}` in `{slot}`"),
                format!(
                    "its elements there still hold the generation before `{}`",
                    difference.phase
                ),
            )
            .why("it was delivered and did not reach its slot");
        finding.events.push(found.clone());
        case.raise(finding, site, &[slot]);
        if code != FindingCode::ApplicationMissing {
            let text = format!("`{slot}` differs: see {code} of `{source}`");
            case.cover(Room::Lifecycle).undecided.insert(text);
        }
    }
    let other = difference.pieces.iter().any(|piece| piece.holds != Holds::Old);
    if other || stale.is_empty() {
        let mut finding = Finding::new(FindingCode::LoaderStale, slot.clone(), rank)
            .expected(format!("the bytes of `{}`", difference.against), text)
            .why(
                "its sources were delivered and written, and what stands there is in no order that \
                 its layout has: the loader wrote for another layout",
            );
        finding.events.push(found);
        case.raise(finding, site, &[slot]);
    }
}

/// Whether nothing was delivered into the slot, by what the update promised: all of its sources
/// were to keep what they hold.
fn preserved(case: &Case<'_, '_>, difference: &Difference<'_>) -> bool {
    let phase = case.phase_of(difference);
    phase.is_some_and(|phase| phase.preserved.contains(&difference.slot.slot))
}

/// The source that is all of the slot on its rank, where slots are delivered as they are stored.
fn shard<'r>(case: &Case<'_, 'r>, difference: &Difference<'_>) -> Option<&'r str> {
    case.view.shard(case.phase_of(difference)?, difference.rank, &difference.slot.slot)
}

/// The finding that says that this source never came, or reached no slot.
fn went_nowhere(case: &Case<'_, '_>, source: &str) -> Option<FindingCode> {
    let known = [FindingCode::SourceMissing, FindingCode::SourceUnrouted];
    known.into_iter().find(|code| case.has(*code, source))
}

/// Whether the finding that is blamed for this slot covers every differing piece of it. One about a
/// source covers that source's pieces alone: stale pieces of two sources are two findings.
fn explained(case: &Case<'_, '_>, difference: &Difference<'_>) -> bool {
    let by_source = |finding: &Finding| {
        matches!(
            finding.code,
            FindingCode::ApplicationMissing
                | FindingCode::ApplicationDuplicate
                | FindingCode::ApplicationOverlap
                | FindingCode::ApplicationUndersized
        )
    };
    let arm = case.arm_index(difference.arm);
    let rank = case.rank_index(arm, difference.rank);
    let blamed = case.blamed_finding(&difference.slot.slot.0, arm, rank);
    let whole = shard(case, difference);
    blamed.is_some_and(|finding| !by_source(finding) || whole == Some(finding.object.as_str()))
        || difference
            .pieces
            .iter()
            .all(|piece| case.findings().iter().any(|finding| finding.object == piece.piece.source))
}

/// Compares every source that was put together again with its file (R58, R61).
fn sources(case: &mut Case<'_, '_>) -> u64 {
    let view = case.view;
    let mut equal = 0;
    for (index, arm) in view.arms.iter().enumerate() {
        let kept = view.is_unknown().then(|| view.kept(arm));
        for (phase_index, phase) in arm.phases.iter().enumerate() {
            let content = view.content(phase.at);
            let Some(file) = content.and_then(|at| view.checkpoint(at)) else { continue };
            for (name, read) in &phase.sources {
                if kept.as_ref().is_some_and(|kept| !kept.contains(name)) {
                    continue;
                }
                let Some(wanted) = file.sources.iter().find(|source| source.name == **name) else {
                    continue;
                };
                if view.is_file(arm, phase, wanted, read.fact) {
                    if read.fact.digest == Some(wanted.digest) {
                        equal += 1;
                    } else {
                        case.unseen.insert(format!("{name} (the sign of its zeros)"));
                    }
                    continue;
                }
                source_differs(case, (index, phase_index), phase, name, read.seq, read.fact);
            }
        }
    }
    equal
}

fn source_differs(
    case: &mut Case<'_, '_>,
    site: (usize, usize),
    phase: &PhaseView<'_>,
    name: &str,
    seq: u64,
    read: &crate::evidence::SourceReadBackFact,
) {
    let (view, arm) = (case.view, &case.view.arms[site.0]);
    let slots = view.slots_of(arm, &arm.phases[site.1], name);
    let text = read.problem.clone().unwrap_or_else(|| "its digest is not the file's".to_owned());
    let found = symptom("read-back", "read_back", seq, text.clone());
    let by_source = case.findings().iter().any(|finding| finding.object == name);
    let packed_by = slots.iter().filter_map(|slot| phase.packed_by(slot));
    let mut causes = slots.iter().copied().chain(packed_by);
    if by_source || causes.any(|slot| case.join_slot(&slot.0, site, found.clone())) {
        return;
    }
    let ranks = replicas(phase, name);
    if ranks.len() < 2 && read.problem.is_some() {
        let text = format!("`{name}` could not be put together after `{}`: {text}", phase.phase);
        case.cover(Room::Lifecycle).undecided.insert(text);
        return;
    }
    let code =
        if ranks.is_empty() { FindingCode::LoaderStale } else { FindingCode::ReplicaDiffers };
    let ranks: Vec<u32> = ranks.into_iter().map(|rank| case.rank_index(site.0, rank)).collect();
    let mut finding = Finding::new(code, name, ranks.first().copied().unwrap_or(0))
        .expected("the bytes of its file", text)
        .why("whatever a cold load has, the checkpoint is the reference");
    if !ranks.is_empty() {
        finding.ranks = ranks;
    }
    finding.events.push(found);
    let slots: Vec<&str> = slots.iter().map(|slot| slot.0.as_str()).collect();
    case.raise(finding, site, &slots);
}

/// The ranks that hold copies of the same elements of a source with different bytes.
fn replicas(phase: &PhaseView<'_>, source: &str) -> BTreeSet<Rank> {
    let mut copies: BTreeMap<&Fragment, Vec<(Rank, Hex128)>> = BTreeMap::new();
    for ((rank, _), read) in &phase.read_backs {
        for piece in read.fact.pieces.iter().filter(|piece| piece.source == source) {
            copies.entry(&piece.source_fragment).or_default().push((*rank, piece.content));
        }
    }
    let differ =
        copies.into_values().filter(|held| held.windows(2).any(|pair| pair[0].1 != pair[1].1));
    differ.flatten().map(|(rank, _)| rank).collect()
}
