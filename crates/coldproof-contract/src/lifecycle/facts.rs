//! What the lifecycle check reads: one rank's own account of one transaction, replayed in order
//! against what the caller promised.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ApplicationIdentity, LayerPlan, Ledger, LedgerError, ManifestDraft, PostLoad, PostLoadError,
    PostLoadPlan, PostLoadPlanError,
};
use crate::evidence::{PhaseView, PostLoadStage};
use crate::routing::Placement;
use crate::verdict::{FindingEvent, symptom};
use crate::words::{Rank, SlotName, TransactionId};

/// What an account contradicts.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Applications that contradict the promise or each other, with the event.
    pub applications: Vec<(LedgerError, FindingEvent)>,
    /// Slots that sources of other ranks were applied to.
    pub foreign: BTreeSet<SlotName>,
    /// Promised elements that never arrived.
    pub missing: Vec<LedgerError>,
    /// Post-load out of order, with the event.
    pub post_load: Vec<(PostLoadError, FindingEvent)>,
    /// Layers that were left out.
    pub left_out: Vec<PostLoadError>,
}

/// Why an account cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccountError {
    /// Sources that cannot be placed.
    #[error(transparent)]
    Placement(#[from] crate::routing::PlacementError),
    /// A promise that contradicts itself.
    #[error(transparent)]
    Manifest(#[from] super::ManifestError),
    /// Layers that cannot be ordered.
    #[error(transparent)]
    Plan(#[from] PostLoadPlanError),
}

/// Replays the account of `rank`. `promised` is what the sealed manifest promised.
/// Where an engine began again, its last transaction is the one that counts.
pub(super) fn account(
    placement: &Placement,
    phase: &PhaseView<'_>,
    rank: Rank,
    promised: &BTreeSet<&str>,
) -> Result<Account, AccountError> {
    let mut draft = ManifestDraft::of(placement, rank, |source| promised.contains(source));
    let slots: BTreeSet<SlotName> = draft.pieces.iter().map(|p| p.slot.clone()).collect();
    for ((_, owner), slot) in phase.slots.iter().filter(|((r, _), _)| *r == rank) {
        let own = slot.fact.aliases.iter().filter(|_| slots.contains(*owner));
        for alias in own.filter(|alias| !slots.contains(*alias)) {
            draft = draft.with_alias(alias.clone(), (*owner).clone());
        }
    }
    let mut ledger = Ledger::seal(&draft.seal()?);
    let plan = plan(phase, rank, &slots)?;
    let mut post_load = PostLoad::begin(&plan);
    let mut account = Account::default();
    for entry in entries(phase, rank) {
        let step = phase.step_name(entry.step);
        match entry.what {
            What::Applied(identity) => {
                let Err(mut error) = ledger.record_named(&identity) else { continue };
                let event = symptom("applied", step, entry.seq, identity.to_string());
                if let Some(source) = without_elements(&error, promised) {
                    if !placement.has(source) {
                        continue;
                    }
                    account.foreign.insert(identity.slot.clone());
                    let application = Box::new(identity);
                    error = LedgerError::UnexpectedFragment { application, belongs: None };
                }
                account.applications.push((error, event));
            }
            What::Stage(layer, stage) => {
                let result = match stage {
                    PostLoadStage::Expected => Ok(()),
                    PostLoadStage::Processed => post_load.processed(layer, &ledger),
                    PostLoadStage::Finalised => post_load.finalised(layer, &ledger),
                };
                if let Err(error) = result {
                    let event = symptom("post-load", step, entry.seq, error.to_string());
                    account.post_load.push((error, event));
                }
            }
        }
    }
    account.missing = ledger.finish();
    account.left_out = post_load.finish();
    Ok(account)
}

/// A promised source without elements on this rank. One that belongs to other ranks was written
/// where none of it belongs; one that belongs nowhere is a second name of another's content, such
/// as a tied head: the bytes of what it fills decide.
fn without_elements<'e>(error: &'e LedgerError, promised: &BTreeSet<&str>) -> Option<&'e str> {
    match error {
        LedgerError::UnexpectedSource { source_name } => {
            Some(source_name.as_str()).filter(|source| promised.contains(source))
        }
        _ => None,
    }
}

enum What<'r> {
    Applied(ApplicationIdentity),
    Stage(&'r str, PostLoadStage),
}

struct Entry<'r> {
    step: u32,
    seq: u64,
    what: What<'r>,
}

/// Applications and post-load stages of one rank, in the order they were stated.
fn entries<'r>(phase: &PhaseView<'r>, rank: Rank) -> Vec<Entry<'r>> {
    let last = last_transaction(phase);
    let counts = |r: Rank, transaction| r == rank && Some(transaction) == last;
    let applied = phase.applications.iter().filter(|a| counts(a.rank, a.fact.transaction));
    let applied = applied.map(|a| Entry {
        step: a.step,
        seq: a.seq,
        what: What::Applied(ApplicationIdentity {
            source: a.fact.source.clone(),
            source_fragment: a.fact.source_fragment.clone(),
            slot: a.fact.slot.clone(),
            slot_fragment: a.fact.slot_fragment.clone(),
        }),
    });
    let stages = phase.post_loads.iter().filter(|p| counts(p.rank, p.fact.transaction));
    let stages = stages.map(|p| Entry {
        step: p.step,
        seq: p.seq,
        what: What::Stage(&p.fact.layer, p.fact.stage),
    });
    let mut entries: Vec<Entry<'r>> = applied.chain(stages).collect();
    entries.sort_by_key(|entry| (entry.step, entry.seq));
    entries
}

fn last_transaction(phase: &PhaseView<'_>) -> Option<TransactionId> {
    phase.applications.iter().map(|a| a.fact.transaction).max()
}

/// The layers that the engine says it will finish, with the promised slots below each.
fn plan(
    phase: &PhaseView<'_>,
    rank: Rank,
    slots: &BTreeSet<SlotName>,
) -> Result<PostLoadPlan, PostLoadPlanError> {
    let last = last_transaction(phase);
    let counts = phase.post_loads.iter().filter(|p| p.rank == rank);
    let counts = counts.filter(|p| Some(p.fact.transaction) == last);
    let expected = counts.filter(|p| p.fact.stage == PostLoadStage::Expected);
    let mut layers: BTreeMap<String, LayerPlan> = BTreeMap::new();
    for stage in expected {
        // Sorted by name, the slots below a layer stand together.
        let below = SlotName(format!("{}.", stage.fact.layer));
        let own = slots.range(&below..).take_while(|slot| slot.0.starts_with(&below.0));
        layers.insert(
            stage.fact.layer.clone(),
            LayerPlan {
                prerequisites: stage.fact.prerequisites.iter().cloned().collect(),
                slots: own.cloned().collect(),
            },
        );
    }
    PostLoadPlan::seal(layers)
}
