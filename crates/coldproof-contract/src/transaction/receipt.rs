//! What each rank saw, reconciled rank by rank before it is combined.

use std::collections::{BTreeMap, BTreeSet};

use crate::words::{Hex128, Rank, SlotName, TransactionId};

/// What must come from one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// Slots whose content the rank must attest.
    pub slots: BTreeSet<SlotName>,
    /// Applications that the rank must have accepted, where the number is promised.
    pub applications: Option<u64>,
}

/// What one rank says it is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// It holds everything and will serve it.
    Commit,
    /// It will not.
    Abort,
}

/// What one rank saw of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Which rank.
    pub rank: Rank,
    /// Which transaction.
    pub transaction: TransactionId,
    /// Applications that it accepted.
    pub applications: u64,
    /// Content of each slot, read back after the last write.
    pub contents: BTreeMap<SlotName, Hex128>,
    /// Sources that it was given and that no slot of it took.
    pub unrouted: Vec<String>,
    /// Tensors that it holds without having applied them.
    pub buffered: Vec<String>,
    /// Whether it is ready.
    pub vote: Vote,
}

/// Why the ranks' receipts do not make one update.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// No receipt of a rank.
    #[error("rank {rank} gave no receipt of transaction {}", transaction.0)]
    Absent {
        /// The rank.
        rank: Rank,
        /// The transaction.
        transaction: TransactionId,
    },
    /// A receipt of a rank that takes no part.
    #[error("rank {rank} gave a receipt and takes no part in the update")]
    Foreign {
        /// The rank.
        rank: Rank,
    },
    /// Two receipts of one rank.
    #[error("rank {rank} gave two receipts")]
    Twice {
        /// The rank.
        rank: Rank,
    },
    /// A receipt of another transaction.
    #[error("rank {rank} gave a receipt of transaction {} instead of {}", found.0, expected.0)]
    Transaction {
        /// The rank.
        rank: Rank,
        /// The transaction that is reconciled.
        expected: TransactionId,
        /// The receipt's.
        found: TransactionId,
    },
    /// A slot without content.
    #[error("rank {rank} attests nothing of `{slot}`")]
    SlotAbsent {
        /// The rank.
        rank: Rank,
        /// The slot.
        slot: SlotName,
    },
    /// A slot that the rank should not have.
    #[error("rank {rank} attests `{slot}`, which it should not hold")]
    SlotForeign {
        /// The rank.
        rank: Rank,
        /// The slot.
        slot: SlotName,
    },
    /// Another number of applications than promised.
    #[error("rank {rank} accepted {found} applications of {expected}")]
    Applications {
        /// The rank.
        rank: Rank,
        /// Promised.
        expected: u64,
        /// Accepted.
        found: u64,
    },
    /// A source that no slot took.
    #[error("rank {rank} was given `{source_name}` and no slot took it")]
    Unrouted {
        /// The rank.
        rank: Rank,
        /// The checkpoint tensor.
        source_name: String,
    },
    /// A tensor that waits to be applied.
    #[error("rank {rank} still holds `{tensor}` without having applied it")]
    Buffered {
        /// The rank.
        rank: Rank,
        /// The tensor.
        tensor: String,
    },
    /// The rank will not serve the update.
    #[error("rank {rank} voted to abort")]
    Aborted {
        /// The rank.
        rank: Rank,
    },
}

/// Receipts of every rank, each whole by its own account. Only [`reconcile`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconciled {
    transaction: TransactionId,
    contents: BTreeMap<Rank, BTreeMap<SlotName, Hex128>>,
}

impl Reconciled {
    /// The transaction.
    #[must_use]
    pub const fn transaction(&self) -> TransactionId {
        self.transaction
    }

    /// The content of every slot of every rank.
    #[must_use]
    pub const fn contents(&self) -> &BTreeMap<Rank, BTreeMap<SlotName, Hex128>> {
        &self.contents
    }
}

/// Holds each rank's receipt against that rank's own expectation. Either every rank is whole and
/// votes to commit, or all must abort: a surplus on one rank makes up for no gap on another.
///
/// # Errors
/// Everything that is wrong, by rank.
pub fn reconcile(
    transaction: TransactionId,
    expected: &BTreeMap<Rank, Expectation>,
    receipts: &[Receipt],
) -> Result<Reconciled, Vec<ReceiptError>> {
    let mut by_rank: BTreeMap<Rank, Vec<&Receipt>> = BTreeMap::new();
    for receipt in receipts {
        by_rank.entry(receipt.rank).or_default().push(receipt);
    }
    let mut errors = Vec::new();
    let mut contents = BTreeMap::new();
    for (&rank, expectation) in expected {
        match by_rank.remove(&rank).as_deref() {
            None | Some([]) => errors.push(ReceiptError::Absent { rank, transaction }),
            Some([receipt]) => {
                errors.extend(check(transaction, expectation, receipt));
                contents.insert(rank, receipt.contents.clone());
            }
            Some(_) => errors.push(ReceiptError::Twice { rank }),
        }
    }
    errors.extend(by_rank.into_keys().map(|rank| ReceiptError::Foreign { rank }));
    if errors.is_empty() { Ok(Reconciled { transaction, contents }) } else { Err(errors) }
}

fn check(
    transaction: TransactionId,
    expectation: &Expectation,
    receipt: &Receipt,
) -> Vec<ReceiptError> {
    let rank = receipt.rank;
    let mut errors = Vec::new();
    if receipt.transaction != transaction {
        let (expected, found) = (transaction, receipt.transaction);
        return vec![ReceiptError::Transaction { rank, expected, found }];
    }
    for slot in expectation.slots.iter().filter(|slot| !receipt.contents.contains_key(slot)) {
        errors.push(ReceiptError::SlotAbsent { rank, slot: slot.clone() });
    }
    for slot in receipt.contents.keys().filter(|slot| !expectation.slots.contains(slot)) {
        errors.push(ReceiptError::SlotForeign { rank, slot: slot.clone() });
    }
    if let Some(expected) = expectation.applications.filter(|&n| n != receipt.applications) {
        let found = receipt.applications;
        errors.push(ReceiptError::Applications { rank, expected, found });
    }
    let unrouted = receipt.unrouted.iter().cloned();
    errors.extend(unrouted.map(|source_name| ReceiptError::Unrouted { rank, source_name }));
    let buffered = receipt.buffered.iter().cloned();
    errors.extend(buffered.map(|tensor| ReceiptError::Buffered { rank, tensor }));
    if receipt.vote == Vote::Abort {
        errors.push(ReceiptError::Aborted { rank });
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TransactionId = TransactionId(5);

    fn expected() -> BTreeMap<Rank, Expectation> {
        let slots = BTreeSet::from(["a".into(), "b".into()]);
        let one = Expectation { slots, applications: Some(2) };
        (0..2).map(|tp| (Rank::tensor(tp), one.clone())).collect()
    }

    fn receipt(tp: u32) -> Receipt {
        Receipt {
            rank: Rank::tensor(tp),
            transaction: ID,
            applications: 2,
            contents: BTreeMap::from([("a".into(), Hex128(1)), ("b".into(), Hex128(2))]),
            unrouted: Vec::new(),
            buffered: Vec::new(),
            vote: Vote::Commit,
        }
    }

    fn errors(receipts: &[Receipt]) -> Vec<ReceiptError> {
        reconcile(ID, &expected(), receipts).unwrap_err()
    }

    #[test]
    fn whole_receipts_in_any_order_are_one_update() {
        let forth = reconcile(ID, &expected(), &[receipt(0), receipt(1)]).unwrap();
        assert_eq!(reconcile(ID, &expected(), &[receipt(1), receipt(0)]), Ok(forth.clone()));
        assert_eq!(forth.contents().len(), 2);
    }

    #[test]
    fn a_surplus_hides_no_gap_elsewhere() {
        let (mut more, mut less) = (receipt(0), receipt(1));
        more.applications = 3;
        less.applications = 1;
        let error =
            |tp, found| ReceiptError::Applications { rank: Rank::tensor(tp), expected: 2, found };
        assert_eq!(errors(&[more, less]), [error(0, 3), error(1, 1)]);
        let (mut more, mut less) = (receipt(0), receipt(1));
        more.contents.insert("c".into(), Hex128(3));
        less.contents.remove(&SlotName::from("b"));
        let foreign = ReceiptError::SlotForeign { rank: Rank::tensor(0), slot: "c".into() };
        let absent = ReceiptError::SlotAbsent { rank: Rank::tensor(1), slot: "b".into() };
        assert_eq!(errors(&[more, less]), [foreign, absent]);
    }

    #[test]
    fn one_rank_that_aborts_or_is_absent_stops_all() {
        let mut aborted = receipt(1);
        aborted.vote = Vote::Abort;
        let rank = Rank::tensor(1);
        assert_eq!(errors(&[receipt(0), aborted]), [ReceiptError::Aborted { rank }]);
        let absent = ReceiptError::Absent { rank, transaction: ID };
        assert_eq!(errors(&[receipt(0)]), [absent]);
    }

    #[test]
    fn repeated_foreign_and_old_receipts_are_found() {
        let twice = errors(&[receipt(0), receipt(1), receipt(1)]);
        assert_eq!(twice, [ReceiptError::Twice { rank: Rank::tensor(1) }]);
        let foreign = errors(&[receipt(0), receipt(1), receipt(2)]);
        assert_eq!(foreign, [ReceiptError::Foreign { rank: Rank::tensor(2) }]);
        let mut old = receipt(1);
        old.transaction = TransactionId(4);
        let (rank, found) = (Rank::tensor(1), TransactionId(4));
        let old = errors(&[receipt(0), old]);
        assert_eq!(old, [ReceiptError::Transaction { rank, expected: ID, found }]);
    }

    #[test]
    fn what_a_rank_kept_back_is_named() {
        let mut kept = receipt(1);
        kept.unrouted.push("x".to_owned());
        kept.buffered.push("y".to_owned());
        let rank = Rank::tensor(1);
        let unrouted = ReceiptError::Unrouted { rank, source_name: "x".to_owned() };
        let buffered = ReceiptError::Buffered { rank, tensor: "y".to_owned() };
        assert_eq!(errors(&[receipt(0), kept]), [unrouted, buffered]);
    }
}
