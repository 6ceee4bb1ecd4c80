//! What became of captured addresses (R71).

use coldproof_contract::storage::{Class, Fate, MemoryEvent, MemoryLog, Owner, Owners, Retained};
use coldproof_contract::words::{Address, StorageId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::device::range;

/// An event as Python passes it: kind, serial, address, bytes.
type EventTuple = (String, u64, u64, u64);
/// An owner as Python passes it: name, address, bytes, class, whether the name was declared.
type OwnerTuple = (String, u64, u64, String, bool);
/// A retained address: address, class, owner or None, fate, what there is to say of it.
type RetainedTuple = (u64, &'static str, Option<String>, &'static str, String);

/// An allocator's log, cut where graphs were captured.
///
/// Events are (kind, serial, address, bytes) with the kinds `alloc`, `free`, `map` and `unmap`;
/// `captured` of them came before the capture. `pools` are (address, bytes) of the graphs' own
/// memory.
#[pyclass(frozen, name = "RetainedLog", module = "coldproof")]
#[derive(Debug)]
pub(crate) struct RetainedLog(MemoryLog);

#[pymethods]
impl RetainedLog {
    #[new]
    #[pyo3(signature = (events, captured, pools = Vec::new()))]
    fn new(events: Vec<EventTuple>, captured: usize, pools: Vec<(u64, u64)>) -> PyResult<Self> {
        let events: Vec<MemoryEvent> = events.into_iter().map(event).collect::<PyResult<_>>()?;
        let pools: Vec<_> = pools.into_iter().map(range).collect();
        Ok(Self(MemoryLog::new(&events, captured, &pools)))
    }

    /// What became of each address, as (address, class, owner or None, fate, detail). Owners at
    /// capture and now are (name, address, bytes, class, whether the name was declared). Every fate
    /// but `alive` is stale.
    fn judge(
        &self,
        addresses: Vec<u64>,
        then: Vec<OwnerTuple>,
        now: Vec<OwnerTuple>,
    ) -> PyResult<Vec<RetainedTuple>> {
        let (then, now) = (owners(then)?, owners(now)?);
        let judged = addresses.into_iter().map(|address| {
            let found = self.0.judge(Address(address), &then, &now);
            let detail = detail(&found);
            (address, found.class.name(), found.owner, found.fate.name(), detail)
        });
        Ok(judged.collect())
    }
}

fn event((kind, serial, address, bytes): EventTuple) -> PyResult<MemoryEvent> {
    let (storage, range) = (StorageId(serial), range((address, bytes)));
    match kind.as_str() {
        "alloc" => Ok(MemoryEvent::Alloc { storage, range }),
        "free" => Ok(MemoryEvent::Free { storage }),
        "map" => Ok(MemoryEvent::Map { range }),
        "unmap" => Ok(MemoryEvent::Unmap { range }),
        other => {
            let text = format!("an event is `alloc`, `free`, `map` or `unmap`, not `{other}`");
            Err(PyValueError::new_err(text))
        }
    }
}

fn owners(tuples: Vec<OwnerTuple>) -> PyResult<Owners> {
    let owner = |(name, address, bytes, class, is_registered): OwnerTuple| {
        let class = match class.as_str() {
            "owned" => Class::Owned,
            "graph-pool" => Class::GraphPool,
            "input-output" => Class::InputOutput,
            "kv" => Class::Kv,
            "library-workspace" => Class::Workspace,
            other => {
                let text = format!("`{other}` is no class of memory that somebody owns");
                return Err(PyValueError::new_err(text));
            }
        };
        Ok(Owner { name, range: range((address, bytes)), class, is_registered })
    };
    let owners: Vec<Owner> = tuples.into_iter().map(owner).collect::<PyResult<_>>()?;
    Ok(Owners::new(owners))
}

fn detail(found: &Retained) -> String {
    match &found.fate {
        Fate::Alive if found.class == Class::Unknown && found.block.is_none() => {
            "no block of the log lay there when it was captured".to_owned()
        }
        Fate::Alive => String::new(),
        Fate::Dangling { unmapped: true } => "no memory lies there".to_owned(),
        Fate::Dangling { unmapped: false } => "its block was freed".to_owned(),
        Fate::Reused { owner: Some(owner), .. } => {
            format!("its block was freed and handed to `{owner}`")
        }
        Fate::Reused { owner: None, .. } => "its block was freed and handed out again".to_owned(),
        Fate::Rebound { now } => format!("its owner is now at {now}"),
        Fate::Orphaned => "its owner is gone".to_owned(),
    }
}
