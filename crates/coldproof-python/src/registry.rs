//! The storage registry over tensors: registered before capture, compared after an update.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::storage::{
    Change, Field, Hold, Outcome, Registry, RegistryDraft, Sighting,
};
use coldproof_contract::words::{Address, Fingerprint, SlotName, StorageId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Raise;
use crate::fingerprint::{self, TensorFingerprint};
use crate::storages::Storages;

/// Slots, while they are being registered.
///
/// `hold` is "weak" (a storage that is freed shows as expired) or "strong" (captured storages are
/// kept alive, so that their addresses cannot be used again).
#[pyclass(name = "Registry", module = "coldproof")]
#[derive(Debug)]
pub(crate) struct SlotRegistry {
    hold: Hold,
    open: Option<Open>,
}

/// What a registry holds until it is sealed.
#[derive(Debug)]
struct Open {
    draft: RegistryDraft,
    storages: Storages,
    /// Captured storages of slots that must keep them, by name.
    stable: Vec<(SlotName, StorageId)>,
    /// Where slots lay that may get another storage.
    replaceable: BTreeMap<SlotName, (StorageId, Address)>,
}

#[pymethods]
impl SlotRegistry {
    #[new]
    #[pyo3(signature = (hold = "weak"))]
    fn new(hold: &str) -> PyResult<Self> {
        let hold = match hold {
            "weak" => Hold::Weak,
            "strong" => Hold::Strong,
            other => {
                let text = format!("hold is `weak` or `strong`, not `{other}`");
                return Err(PyValueError::new_err(text));
            }
        };
        let (draft, storages) = (RegistryDraft::default(), Storages::new(hold));
        let (stable, replaceable) = (Vec::new(), BTreeMap::new());
        Ok(Self { hold, open: Some(Open { draft, storages, stable, replaceable }) })
    }

    /// Registers a slot. A slot that is not stable may get another storage of the same layout.
    #[pyo3(signature = (name, tensor, *, stable = true))]
    fn register(&mut self, name: &str, tensor: &Bound<'_, PyAny>, stable: bool) -> PyResult<()> {
        let py = tensor.py();
        let open = self.open.as_mut().ok_or_else(|| sealed(py))?;
        let (serial, bytes) = open.storages.identify(tensor)?;
        let print = fingerprint::read(tensor, serial, bytes)?;
        let slot = SlotName::from(name);
        let place = (serial, print.address);
        let registered = open.draft.register(slot.clone(), print);
        registered.map_err(|error| Raise::Registry.with(py, error))?;
        if stable {
            open.stable.push((slot, serial));
        } else {
            open.replaceable.insert(slot, place);
        }
        Ok(())
    }

    /// Makes the registry final. Do so before capture.
    fn seal(&mut self, py: Python<'_>) -> PyResult<SlotSnapshot> {
        let Open { draft, storages, mut stable, replaceable } =
            self.open.take().ok_or_else(|| sealed(py))?;
        stable.sort_unstable();
        Ok(SlotSnapshot { registry: draft.seal(self.hold), storages, stable, replaceable })
    }
}

fn sealed(py: Python<'_>) -> PyErr {
    Raise::Registry.with(py, "the registry is sealed; make another for other slots")
}

/// The slots that were there at capture.
#[pyclass(name = "Snapshot", module = "coldproof")]
#[derive(Debug)]
pub(crate) struct SlotSnapshot {
    registry: Registry,
    storages: Storages,
    stable: Vec<(SlotName, StorageId)>,
    replaceable: BTreeMap<SlotName, (StorageId, Address)>,
}

#[pymethods]
impl SlotSnapshot {
    /// All slots, by name.
    #[getter]
    fn names(&self) -> Vec<&str> {
        self.registry.names().iter().map(|name| name.0.as_str()).collect()
    }

    fn __len__(&self) -> usize {
        self.registry.names().len()
    }

    /// What differs from capture, by name. `now` has the tensor that each slot has now, or None for
    /// a slot whose storage is gone; a slot that it lacks is missing.
    fn compare(&mut self, now: &Bound<'_, PyDict>) -> PyResult<Vec<Difference>> {
        let py = now.py();
        let expired = self.expired(py)?;
        let mut seen: Vec<(SlotName, Option<Fingerprint>)> = Vec::with_capacity(now.len());
        for (name, tensor) in now.iter() {
            let print = if tensor.is_none() {
                None
            } else {
                let (serial, bytes) = self.storages.identify(&tensor)?;
                Some(fingerprint::read(&tensor, serial, bytes)?)
            };
            seen.push((SlotName(name.extract()?), print));
        }
        seen.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut snapshot = self.registry.snapshot();
        for (slot, print) in &seen {
            let alive = print.as_ref().filter(|_| !expired.contains(slot));
            let alive = alive.map(|print| self.in_place(slot, print));
            let sighting = alive.as_ref().map_or(Sighting::Gone, Sighting::At);
            snapshot.see(slot, sighting).map_err(|error| Raise::Registry.with(py, error))?;
        }
        let changes = snapshot.changes();
        drop(snapshot);
        let differences = changes.into_iter().map(|change| {
            let now = seen.binary_search_by(|(slot, _)| slot.cmp(&change.slot)).ok();
            Difference { now: now.and_then(|index| seen[index].1.clone()), change }
        });
        let differences = differences.collect();
        self.forget(&seen);
        Ok(differences)
    }
}

impl SlotSnapshot {
    /// A slot as the registry sees it: one that may move lies where it lay.
    fn in_place(&self, slot: &SlotName, print: &Fingerprint) -> Fingerprint {
        let mut print = print.clone();
        if let Some((storage, address)) = self.replaceable.get(slot) {
            (print.storage, print.address) = (*storage, *address);
        }
        print
    }

    /// Stable slots whose captured storage was freed, whatever they have now.
    fn expired(&self, py: Python<'_>) -> PyResult<BTreeSet<SlotName>> {
        let gone = self.storages.expired(py)?;
        let is_gone = |serial| gone.binary_search(serial).is_ok();
        let slots = self.stable.iter().filter(|(_, serial)| is_gone(serial));
        Ok(slots.map(|(slot, _)| slot.clone()).collect())
    }

    /// Lets go of storages that were neither captured nor seen just now.
    fn forget(&mut self, seen: &[(SlotName, Option<Fingerprint>)]) {
        let captured = self.stable.iter().map(|(_, serial)| *serial);
        let now = seen.iter().filter_map(|(_, print)| Some(print.as_ref()?.storage));
        let needed: BTreeSet<StorageId> = captured.chain(now).collect();
        self.storages.retain(|serial| needed.contains(&serial));
    }
}

/// A slot that is not what it was at capture.
#[pyclass(frozen, module = "coldproof")]
#[derive(Debug)]
pub(crate) struct Difference {
    change: Change,
    now: Option<Fingerprint>,
}

#[pymethods]
impl Difference {
    /// The slot.
    #[getter]
    fn name(&self) -> &str {
        &self.change.slot.0
    }

    /// "missing", "expired", "rebound" or "respecified".
    #[getter]
    const fn outcome(&self) -> &'static str {
        match self.change.outcome {
            Outcome::Same => "same",
            Outcome::Missing => "missing",
            Outcome::Expired => "expired",
            Outcome::Rebound(_) => "rebound",
            Outcome::Respecified(_) => "respecified",
        }
    }

    /// The fields that differ, for a slot that was rebound or respecified.
    #[getter]
    fn fields(&self) -> Vec<&'static str> {
        match &self.change.outcome {
            Outcome::Rebound(fields) | Outcome::Respecified(fields) => {
                fields.iter().map(|field| field_name(*field)).collect()
            }
            Outcome::Same | Outcome::Missing | Outcome::Expired => Vec::new(),
        }
    }

    /// What was captured.
    #[getter]
    fn captured(&self) -> TensorFingerprint {
        TensorFingerprint(self.change.captured.clone())
    }

    /// What the slot has now, where it has anything.
    #[getter]
    fn now(&self) -> Option<TensorFingerprint> {
        self.now.clone().map(TensorFingerprint)
    }

    fn __repr__(&self) -> String {
        format!("Difference({:?}, {}, fields={:?})", self.name(), self.outcome(), self.fields())
    }
}

const fn field_name(field: Field) -> &'static str {
    match field {
        Field::Storage => "storage",
        Field::Address => "address",
        Field::StorageBytes => "storage_bytes",
        Field::Shape => "shape",
        Field::Stride => "stride",
        Field::Offset => "offset",
        Field::Dtype => "dtype",
        Field::Device => "device",
    }
}
