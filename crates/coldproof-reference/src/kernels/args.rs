//! Pointer arguments of a kernel, with their extents.

use coldproof_contract::evidence::{ArgAccess, ArgFact};
use coldproof_contract::words::Address;

/// Bytes of an I32 or F32.
pub(super) const WORD_BYTES: usize = 4;
/// Bytes of a BF16.
pub(super) const BF16_BYTES: usize = 2;

/// The number of elements of a shape; the largest number where it overflows, which no memory
/// can back.
pub(super) fn elements(shape: &[usize]) -> usize {
    shape.iter().fold(1, |product, &extent| product.saturating_mul(extent))
}

/// Collects the arguments of one kernel in order.
#[derive(Default)]
pub(super) struct Args(Vec<ArgFact>);

impl Args {
    /// An argument that is only read: elements of `element_bytes` bytes in this shape.
    pub(super) fn read(self, address: Address, shape: &[usize], element_bytes: usize) -> Self {
        self.push(address, shape, element_bytes, ArgAccess::Read)
    }

    /// An argument that is written before it is read.
    pub(super) fn write(self, address: Address, shape: &[usize], element_bytes: usize) -> Self {
        self.push(address, shape, element_bytes, ArgAccess::Write)
    }

    /// An argument that is read and written.
    pub(super) fn update(self, address: Address, shape: &[usize], element_bytes: usize) -> Self {
        self.push(address, shape, element_bytes, ArgAccess::ReadWrite)
    }

    /// All of them.
    pub(super) fn done(self) -> Vec<ArgFact> {
        self.0
    }

    fn push(
        mut self,
        address: Address,
        shape: &[usize],
        element_bytes: usize,
        access: ArgAccess,
    ) -> Self {
        let index = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let bytes = elements(shape).saturating_mul(element_bytes) as u64;
        self.0.push(ArgFact { index, address, bytes, access });
        self
    }
}
