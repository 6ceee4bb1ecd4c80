//! Exceptions, which `coldproof.errors` declares.

use std::fmt::Display;

use pyo3::prelude::*;
use pyo3::types::PyType;

/// An exception class of `coldproof.errors`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raise {
    Memory,
    Digest,
    Protocol,
    Registry,
    Transaction,
    Ledger,
    Receipt,
    Device,
}

impl Raise {
    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "MemoryRangeError",
            Self::Digest => "DigestError",
            Self::Protocol => "ProtocolError",
            Self::Registry => "RegistryError",
            Self::Transaction => "TransactionError",
            Self::Ledger => "LedgerError",
            Self::Receipt => "ReceiptError",
            Self::Device => "DeviceError",
        }
    }

    /// The exception with this message.
    pub(crate) fn with(self, py: Python<'_>, message: impl Display) -> PyErr {
        let class = py
            .import("coldproof.errors")
            .and_then(|module| module.getattr(self.name()))
            .and_then(|class| Ok(class.cast_into::<PyType>()?));
        match class {
            Ok(class) => PyErr::from_type(class, (message.to_string(),)),
            Err(error) => error,
        }
    }
}
