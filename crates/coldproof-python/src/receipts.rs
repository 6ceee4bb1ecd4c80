//! Receipts of all ranks, reconciled rank by rank.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::transaction::{
    Expectation, GenerationIdentity, Receipt, ReceiptError, Vote, reconcile as reconciled,
};
use coldproof_contract::words::{Hex128, Rank, SlotName, TransactionId};
use pyo3::prelude::*;

use crate::errors::Raise;

/// (pp, ep, tp).
type RankTuple = (u32, u32, u32);

/// What one rank saw of a transaction. `contents` has the digest of each slot, read back after the
/// last write, as 32 hexadecimal digits.
#[pyclass(frozen, name = "Receipt", module = "coldproof")]
#[derive(Debug)]
pub(crate) struct RankReceipt(Receipt);

#[pymethods]
impl RankReceipt {
    #[new]
    #[pyo3(signature = (
        rank, transaction, *, applications, contents, unrouted = Vec::new(),
        buffered = Vec::new(), ready = true,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, one a field")]
    fn new(
        py: Python<'_>,
        rank: RankTuple,
        transaction: u64,
        applications: u64,
        contents: BTreeMap<String, String>,
        unrouted: Vec<String>,
        buffered: Vec<String>,
        ready: bool,
    ) -> PyResult<Self> {
        let content = |(slot, digits): (String, String)| match hex(&digits) {
            Some(content) => Ok((SlotName(slot), content)),
            None => {
                let text = format!("`{digits}` of `{slot}` is no digest of 32 hexadecimal digits");
                Err(Raise::Receipt.with(py, text))
            }
        };
        Ok(Self(Receipt {
            rank: rank_of(rank),
            transaction: TransactionId(transaction),
            applications,
            contents: contents.into_iter().map(content).collect::<PyResult<_>>()?,
            unrouted,
            buffered,
            vote: if ready { Vote::Commit } else { Vote::Abort },
        }))
    }

    fn __repr__(&self) -> String {
        let Receipt { rank, transaction, contents, .. } = &self.0;
        format!("Receipt(rank={rank}, transaction={}, {} slots)", transaction.0, contents.len())
    }
}

/// Holds each rank's receipt against what is expected of that rank: its slots, and the number of
/// applications where it is promised. Returns the identity of the generation, 64 hexadecimal
/// digits; raises `ReceiptError` with everything that is wrong.
#[pyfunction]
pub(crate) fn reconcile(
    py: Python<'_>,
    transaction: u64,
    expected: BTreeMap<RankTuple, (BTreeSet<String>, Option<u64>)>,
    receipts: Vec<PyRef<'_, RankReceipt>>,
) -> PyResult<String> {
    let expectation = |(rank, (slots, applications)): (RankTuple, (BTreeSet<String>, _))| {
        let slots = slots.into_iter().map(SlotName).collect();
        (rank_of(rank), Expectation { slots, applications })
    };
    let expected = expected.into_iter().map(expectation).collect();
    let receipts: Vec<Receipt> = receipts.iter().map(|receipt| receipt.0.clone()).collect();
    match reconciled(TransactionId(transaction), &expected, &receipts) {
        Ok(whole) => Ok(GenerationIdentity::of(whole.contents()).to_string()),
        Err(errors) => {
            let errors: Vec<String> = errors.iter().map(ReceiptError::to_string).collect();
            Err(Raise::Receipt.with(py, errors.join("; ")))
        }
    }
}

const fn rank_of((pp, ep, tp): RankTuple) -> Rank {
    Rank { dp: 0, pp, ep, tp }
}

fn hex(digits: &str) -> Option<Hex128> {
    serde_json::from_value(serde_json::Value::from(digits)).ok()
}
