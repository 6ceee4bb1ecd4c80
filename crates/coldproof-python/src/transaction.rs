//! The transaction machine of an engine that is written in Python.

use coldproof_contract::transaction::{Machine, MachineError, Phase, Residency, Scope, State};
use coldproof_contract::words::TransactionId;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::Raise;

/// The machine that an engine asks before each risky call: begin, apply, finish, verify, then
/// commit or abort. What it refuses raises `TransactionError` and changes nothing. A failure after
/// the first write is terminal until a full load.
#[pyclass(module = "coldproof")]
#[derive(Debug)]
pub(crate) struct Transaction {
    machine: Machine,
}

#[pymethods]
impl Transaction {
    #[new]
    const fn new() -> Self {
        Self { machine: Machine::new() }
    }

    /// Opens a transaction that writes every weight ("full") or some ("partial") and returns its
    /// id. Ids rise; without one the next is taken.
    #[pyo3(signature = (scope = "full", *, id = None))]
    fn begin(&mut self, py: Python<'_>, scope: &str, id: Option<u64>) -> PyResult<u64> {
        let scope = match scope {
            "full" => Scope::Full,
            "partial" => Scope::Partial,
            other => {
                let text = format!("scope is `full` or `partial`, not `{other}`");
                return Err(PyValueError::new_err(text));
            }
        };
        let id = id.map_or_else(|| self.machine.next_id(), TransactionId);
        asked(py, self.machine.begin(id, scope))?;
        Ok(id.0)
    }

    /// Announces a write. Call it before the write.
    fn apply(&mut self, py: Python<'_>, id: u64) -> PyResult<()> {
        asked(py, self.machine.apply(TransactionId(id)))
    }

    /// Announces post-load: no write is accepted any more.
    fn finish(&mut self, py: Python<'_>, id: u64) -> PyResult<()> {
        asked(py, self.machine.finalize(TransactionId(id)))
    }

    /// Announces the check of what was written.
    fn verify(&mut self, py: Python<'_>, id: u64) -> PyResult<()> {
        asked(py, self.machine.verify(TransactionId(id)))
    }

    /// Closes a verified transaction and returns the generation that is served from here on.
    fn commit(&mut self, py: Python<'_>, id: u64) -> PyResult<u64> {
        asked(py, self.machine.commit(TransactionId(id))).map(|generation| generation.0)
    }

    /// Gives a transaction up and returns the state: "failed" after the first write.
    fn abort(&mut self, py: Python<'_>, id: u64) -> PyResult<&'static str> {
        asked(py, self.machine.abort(TransactionId(id))).map(state_name)
    }

    /// The weights leave device memory; `keeps` says whether they come back on wake.
    fn sleep(&mut self, py: Python<'_>, keeps: bool) -> PyResult<()> {
        asked(py, self.machine.sleep(keeps))
    }

    /// A wake brought the engine to "awake", "weights_only", "asleep" or "unknown".
    #[pyo3(signature = (residency = "awake"))]
    fn wake(&mut self, py: Python<'_>, residency: &str) -> PyResult<()> {
        let residency = match residency {
            "awake" => Residency::Awake,
            "weights_only" => Residency::WeightsOnly,
            "asleep" => Residency::Asleep,
            "unknown" => Residency::Unknown,
            other => {
                let known = "`awake`, `weights_only`, `asleep` or `unknown`";
                return Err(PyValueError::new_err(format!("residency is {known}, not `{other}`")));
            }
        };
        asked(py, self.machine.wake(residency))
    }

    /// "idle", "vacant", "begun", "applying", "finalizing", "verifying" or "failed".
    #[getter]
    const fn state(&self) -> &'static str {
        state_name(self.machine.state())
    }

    /// The open or failed transaction.
    #[getter]
    const fn id(&self) -> Option<u64> {
        match self.machine.state() {
            State::Open { id, .. } | State::Failed { id } => Some(id.0),
            State::Idle | State::Vacant => None,
        }
    }

    /// The last committed generation; 0 before any.
    #[getter]
    const fn generation(&self) -> u64 {
        self.machine.generation().0
    }

    /// Whether requests may run.
    #[getter]
    const fn may_serve(&self) -> bool {
        self.machine.may_serve()
    }

    fn __repr__(&self) -> String {
        format!("Transaction(state={}, generation={})", self.state(), self.generation())
    }
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Vacant => "vacant",
        State::Open { phase: Phase::Begun, .. } => "begun",
        State::Open { phase: Phase::Applying, .. } => "applying",
        State::Open { phase: Phase::Finalizing, .. } => "finalizing",
        State::Open { phase: Phase::Verifying, .. } => "verifying",
        State::Failed { .. } => "failed",
    }
}

fn asked<T>(py: Python<'_>, answer: Result<T, MachineError>) -> PyResult<T> {
    answer.map_err(|error| Raise::Transaction.with(py, error))
}
