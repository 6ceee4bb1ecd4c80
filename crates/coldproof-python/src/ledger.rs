//! The application ledger: what was promised of one rank, and what was applied.

use coldproof_contract::lifecycle::{ApplicationIdentity, Ledger, ManifestDraft};
use coldproof_contract::words::{Fragment, SlotName, Span};
use pyo3::prelude::*;

use crate::errors::Raise;

/// A box: (start, end) along each axis.
type Spans = Vec<(u64, u64)>;

/// The accounts of one rank in one transaction.
///
/// A piece is (source, source fragment, slot, slot fragment), a fragment one (start, end) an axis.
#[pyclass(name = "Ledger", module = "coldproof")]
#[derive(Debug)]
pub(crate) struct ApplicationLedger(Ledger);

#[pymethods]
impl ApplicationLedger {
    /// Seals the promise: every piece that must be applied, and other names of slots.
    #[new]
    #[pyo3(signature = (pieces, aliases = Vec::new()))]
    fn new(
        py: Python<'_>,
        pieces: Vec<(String, Spans, String, Spans)>,
        aliases: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let pieces =
            pieces.into_iter().map(|(source, from, slot, to)| piece(source, from, slot, to));
        let aliases = aliases.into_iter().map(|(alias, owner)| (SlotName(alias), SlotName(owner)));
        let draft = ManifestDraft {
            pieces: pieces.collect(),
            idle: Vec::new(),
            aliases: aliases.collect(),
        };
        let manifest = draft.seal().map_err(|error| Raise::Ledger.with(py, error))?;
        Ok(Self(Ledger::seal(&manifest)))
    }

    /// Records one application, which may be any part of a piece. One that is refused raises
    /// `LedgerError` and changes nothing.
    fn record(
        &mut self,
        py: Python<'_>,
        source: String,
        source_fragment: Spans,
        slot: String,
        slot_fragment: Spans,
    ) -> PyResult<()> {
        let application = piece(source, source_fragment, slot, slot_fragment);
        self.0.record_named(&application).map_err(|error| Raise::Ledger.with(py, error))
    }

    /// Applications that were accepted.
    #[getter]
    const fn applications(&self) -> u64 {
        self.0.applications()
    }

    /// What is missing, a sentence for each source and slot. Empty where all was applied.
    fn missing(&self) -> Vec<String> {
        self.0.finish().iter().map(ToString::to_string).collect()
    }
}

fn piece(source: String, from: Spans, slot: String, to: Spans) -> ApplicationIdentity {
    let fragment = |spans: Spans| Fragment(spans.into_iter().map(Span::from).collect());
    ApplicationIdentity {
        source,
        source_fragment: fragment(from),
        slot: SlotName(slot),
        slot_fragment: fragment(to),
    }
}
