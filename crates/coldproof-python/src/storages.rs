//! Serials of live storages. A serial is never given twice, unlike an address.

use std::collections::BTreeMap;

use coldproof_contract::storage::Hold;
use coldproof_contract::words::StorageId;
use pyo3::prelude::*;

use crate::errors::Raise;

/// What keeps a storage's identity.
#[derive(Debug)]
enum Keep {
    /// The storage itself.
    Strong { _storage: Py<PyAny> },
    /// A weak reference: the bytes may go, the identity's address is not given to another storage.
    Weak(Weak),
}

/// A weak reference of torch's, `UntypedStorage._weak_ref()`.
#[derive(Debug)]
struct Weak {
    /// The reference, an integer.
    reference: Py<PyAny>,
    /// The class, which has `_expired` and `_free_weak_ref`.
    class: Py<PyAny>,
}

impl Weak {
    fn of(storage: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            reference: storage.call_method0("_weak_ref")?.unbind(),
            class: storage.get_type().into_any().unbind(),
        })
    }

    fn is_expired(&self, py: Python<'_>) -> PyResult<bool> {
        self.class.call_method1(py, "_expired", (&self.reference,))?.extract(py)
    }
}

impl Drop for Weak {
    fn drop(&mut self) {
        // An interpreter that is ending takes everything with it.
        let _ = Python::try_attach(|py| {
            if let Err(error) = self.class.call_method1(py, "_free_weak_ref", (&self.reference,)) {
                error.write_unraisable(py, None);
            }
        });
    }
}

#[derive(Debug)]
struct Entry {
    serial: StorageId,
    keep: Keep,
}

/// The storages that a registry has seen.
#[derive(Debug)]
pub(crate) struct Storages {
    hold: Hold,
    /// By the address of torch's own record of the storage, which a reference of either kind keeps
    /// from being reused.
    entries: BTreeMap<u64, Entry>,
    last: u64,
}

impl Storages {
    pub(crate) const fn new(hold: Hold) -> Self {
        Self { hold, entries: BTreeMap::new(), last: 0 }
    }

    /// The serial of a tensor's storage, and its size in bytes.
    pub(crate) fn identify(&mut self, tensor: &Bound<'_, PyAny>) -> PyResult<(StorageId, u64)> {
        let storage = tensor.call_method0("untyped_storage").map_err(|error| {
            let text = format!("a tensor without a storage cannot be registered: {error}");
            Raise::Registry.with(tensor.py(), text)
        })?;
        let bytes = storage.call_method0("nbytes")?.extract()?;
        let record: u64 = storage.getattr("_cdata")?.extract()?;
        if let Some(entry) = self.entries.get(&record) {
            return Ok((entry.serial, bytes));
        }
        let keep = match self.hold {
            Hold::Strong => Keep::Strong { _storage: storage.unbind() },
            Hold::Weak => Keep::Weak(Weak::of(&storage)?),
        };
        self.last += 1;
        let serial = StorageId(self.last);
        self.entries.insert(record, Entry { serial, keep });
        Ok((serial, bytes))
    }

    /// Serials whose storage was freed, in order.
    pub(crate) fn expired(&self, py: Python<'_>) -> PyResult<Vec<StorageId>> {
        let mut expired = Vec::new();
        for entry in self.entries.values() {
            if let Keep::Weak(weak) = &entry.keep
                && weak.is_expired(py)?
            {
                expired.push(entry.serial);
            }
        }
        expired.sort_unstable();
        Ok(expired)
    }

    /// Lets go of the storages that `needed` does not name.
    pub(crate) fn retain(&mut self, needed: impl Fn(StorageId) -> bool) {
        self.entries.retain(|_, entry| needed(entry.serial));
    }
}
