//! The native module of the Python package `coldproof`: everything that is not policy.
//!
//! Each file is one concept, with its Python names in `python/coldproof/_native.pyi`. A panic
//! becomes a Python exception; the interpreter is released wherever bytes are read in bulk.

mod command_line;
mod device;
mod digest;
mod errors;
mod fingerprint;
mod ledger;
mod memory;
mod read_back;
mod receipts;
mod registry;
mod retained;
mod storages;
mod transaction;
mod walk;

use pyo3::prelude::*;

/// Everything of coldproof that is written in Rust. Import from `coldproof` instead.
#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::command_line::main;
    #[pymodule_export]
    use crate::device::{DeviceReader, DigestPlan, GraphCensus, device_status};
    #[pymodule_export]
    use crate::digest::{content_digest, source_digest};
    #[pymodule_export]
    use crate::fingerprint::TensorFingerprint;
    #[pymodule_export]
    use crate::ledger::ApplicationLedger;
    #[pymodule_export]
    use crate::read_back::read_back;
    #[pymodule_export]
    use crate::receipts::{RankReceipt, reconcile};
    #[pymodule_export]
    use crate::registry::{Difference, SlotRegistry, SlotSnapshot};
    #[pymodule_export]
    use crate::retained::RetainedLog;
    #[pymodule_export]
    use crate::transaction::Transaction;
    #[pymodule_export]
    use crate::walk::{Walk, walk};
}
