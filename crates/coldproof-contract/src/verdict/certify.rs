//! The certificate of a run: receipts of every rank, reconciled, bound to what was read back.

use std::collections::BTreeMap;

use super::document::CertificateReport;
use super::{CategoryReport, Room, Status};
use crate::evidence::{ArmView, LaneName, PhaseView, View};
use crate::transaction::{
    Certificate, Expectation, Proof, Proofs, Receipt, ReceiptError, Reconciled, Vote, reconcile,
};
use crate::words::{Generation, Hex128, Rank, SlotKind, SlotName};

/// The last phase that ended at the new checkpoint on an engine under test, by preference after
/// the whole transition.
fn last_update<'v, 'r>(view: &'v View<'r>) -> Option<(&'v ArmView<'r>, &'v PhaseView<'r>)> {
    let lanes = [
        LaneName::Composite,
        LaneName::Differential,
        LaneName::Names,
        LaneName::Caches,
        LaneName::Tiers,
        LaneName::Placement,
        LaneName::Routing,
        LaneName::Adapters,
        LaneName::Partial,
        LaneName::Kernel,
    ];
    // Of the adapters lane the last arm: weights and an adapter in one transaction.
    let own = |lane: LaneName| {
        let arms = view.arms.iter().filter(move |arm| arm.header.lane == lane && arm.updates());
        let mut arms: Vec<&ArmView<'r>> = arms.collect();
        if lane == LaneName::Adapters {
            arms.reverse();
        }
        arms
    };
    let labelled = [LaneName::Adapters, LaneName::Partial, LaneName::Kernel];
    lanes.into_iter().find_map(|lane| {
        let mut arms = own(lane).into_iter();
        arms.find_map(|arm| {
            let mut phases = arm.phases.iter().rev();
            let phase = phases.find(|phase| {
                phase.from.is_some()
                    && (labelled.contains(&lane) || phase.at.is_some_and(|at| at.0 == "B"))
                    && !phase.read_backs.is_empty()
            })?;
            Some((arm, phase))
        })
    })
}

/// What the ranks' receipts and the read-back certify.
///
/// # Errors
/// Why the receipts are not whole, in words.
pub(super) fn certificate(
    view: &View<'_>,
    categories: &[CategoryReport],
) -> Result<CertificateReport, String> {
    let (arm, phase) = last_update(view).ok_or("no update was read back")?;
    let (receipts, generation) = receipts(view, arm, phase)?;
    let certificate = Certificate::issue(&receipts, generation, proofs(categories));
    let (mut proven, mut not_proven) = (BTreeMap::new(), BTreeMap::new());
    for (room, proof) in certificate.proofs().iter() {
        match proof {
            Proof::Proven { checks } => {
                proven.insert(room.number(), *checks);
            }
            Proof::NotProven { reason } => {
                not_proven.insert(room.number(), reason.clone());
            }
        }
    }
    Ok(CertificateReport {
        transaction: certificate.transaction().0,
        checkpoint: phase.at.map(|at| at.0.clone()).filter(|at| at != "B"),
        generation: certificate.generation().0,
        identity: certificate.identity().to_string(),
        ranks: certificate.ranks().iter().map(|rank| arm.header.topology.index(*rank)).collect(),
        proven,
        not_proven,
    })
}

/// Holds every rank's receipt against the slots that it registers. What the rank's own cold load
/// left out has no slot to reach.
fn receipts(
    view: &View<'_>,
    arm: &ArmView<'_>,
    phase: &PhaseView<'_>,
) -> Result<(Reconciled, Generation), String> {
    let last = phase.receipts.last().ok_or("no rank gave a receipt")?.fact;
    let contents = |rank: Rank| -> BTreeMap<SlotName, Hex128> {
        let own = phase.read_backs.iter().filter(|((r, _), _)| *r == rank);
        own.filter_map(|((_, slot), read)| Some(((*slot).clone(), read.fact.content?))).collect()
    };
    let expected = arm.header.topology.ranks().map(|rank| {
        let own = phase.slots.iter().filter(|((r, _), slot)| {
            let readable = matches!(
                slot.fact.slot_kind,
                SlotKind::Parameter | SlotKind::Buffer | SlotKind::Derived | SlotKind::Alias
            );
            *r == rank && readable
        });
        let slots = own.map(|((_, slot), _)| (*slot).clone()).collect();
        (rank, Expectation { slots, applications: None })
    });
    let unrouted = |rank: Rank, sources: &[String]| -> Vec<String> {
        let left_out = view.left_out(arm, rank);
        sources.iter().filter(|source| !left_out.contains(source.as_str())).cloned().collect()
    };
    let given =
        phase.receipts.iter().filter(|receipt| receipt.fact.transaction == last.transaction);
    let given: Vec<Receipt> = given
        .map(|receipt| Receipt {
            rank: receipt.rank,
            transaction: receipt.fact.transaction,
            applications: receipt.fact.applications,
            contents: contents(receipt.rank),
            unrouted: unrouted(receipt.rank, &receipt.fact.unrouted),
            buffered: receipt.fact.buffered.clone(),
            vote: if receipt.fact.committed { Vote::Commit } else { Vote::Abort },
        })
        .collect();
    let reconciled = reconcile(last.transaction, &expected.collect(), &given);
    let errors = |errors: Vec<ReceiptError>| {
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        let more = errors.len().saturating_sub(1);
        if more == 0 { first } else { format!("{first}, and {more} more") }
    };
    Ok((reconciled.map_err(errors)?, last.generation))
}

fn proofs(categories: &[CategoryReport]) -> Proofs {
    let shown = categories.iter().filter_map(|report| {
        let room = Room::from_number(report.category)?;
        let reason = || report.reason.clone().unwrap_or_else(|| "a finding".to_owned());
        let proof = match report.status {
            Status::Pass => Proof::Proven { checks: report.checks },
            Status::Fail => Proof::NotProven { reason: "a finding".to_owned() },
            Status::Undecided => Proof::NotProven { reason: format!("undecided: {}", reason()) },
            Status::NotCovered => Proof::NotProven { reason: format!("not covered: {}", reason()) },
        };
        Some((room, proof))
    });
    Proofs::new(shown.collect())
}
