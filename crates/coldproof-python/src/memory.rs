//! Memory of this process by address, without a copy.
#![expect(unsafe_code, reason = "an address that Python hands over is all there is")]

use pyo3::prelude::*;

use crate::errors::Raise;

/// A range of readable memory that its giver keeps alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    address: usize,
    bytes: usize,
}

impl Range {
    /// The range of `bytes` at `address`. The caller of the Python function promises that they can
    /// be read until it returns; what can be refused without touching them is refused.
    pub(crate) fn new(py: Python<'_>, address: u64, bytes: u64) -> PyResult<Self> {
        let refuse = |why: &str| {
            let text = format!("{bytes} bytes at {address:#x} cannot be read: {why}");
            Raise::Memory.with(py, text)
        };
        if address == 0 && bytes > 0 {
            return Err(refuse("there is no memory at 0; a meta tensor has no bytes"));
        }
        let end = address.checked_add(bytes).and_then(|end| isize::try_from(end).ok());
        match (usize::try_from(address), usize::try_from(bytes), end) {
            (Ok(address), Ok(bytes), Some(_)) => Ok(Self { address, bytes }),
            _ => Err(refuse("the range does not fit the address space")),
        }
    }

    /// The bytes themselves.
    pub(crate) fn as_slice<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: not null, and within the address space (`new`); that the memory can be read and
        // is not written or freed meanwhile is the Python caller's promise, who holds the tensor.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }
}
