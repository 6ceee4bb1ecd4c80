//! What a running kernel can reach: memory by address, the other ranks, the time it has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytemuck::{AnyBitPattern, NoUninit};
use coldproof_contract::words::Address;
use half::bf16;

use super::args::elements;
use crate::arena::{Arena, ArenaError};
use crate::collective::{Collective, Contributions};
use crate::device::DeviceError;
use crate::groups::Groups;

/// How long a kernel that waits for a word sleeps between two looks.
const SPIN: Duration = Duration::from_micros(200);

/// A running kernel's surroundings.
pub(crate) struct Context<'a> {
    pub(crate) kernel: &'static str,
    pub(crate) arena: &'a mut Arena,
    pub(crate) groups: &'a Groups,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: &'a AtomicBool,
}

impl<'a> Context<'a> {
    pub(super) fn f32s(&self, address: Address, shape: &[usize]) -> Result<&[f32], DeviceError> {
        self.view(address, shape)
    }

    pub(super) fn i32s(&self, address: Address, shape: &[usize]) -> Result<&[i32], DeviceError> {
        self.view(address, shape)
    }

    pub(super) fn bf16s(&self, address: Address, shape: &[usize]) -> Result<&[bf16], DeviceError> {
        self.view(address, shape)
    }

    pub(super) fn u8s(&self, address: Address, bytes: usize) -> Result<&[u8], DeviceError> {
        self.view(address, &[bytes])
    }

    /// Writes elements.
    pub(super) fn put<T: NoUninit>(
        &mut self,
        address: Address,
        values: &[T],
    ) -> Result<(), DeviceError> {
        let kernel = self.kernel;
        let written = self.arena.write(address, bytemuck::cast_slice(values));
        written.map_err(|error| fault(kernel, address, &error))
    }

    /// Waits until an I32 word is zero, as a lock is waited for on a device: for ever, or until
    /// the deadline or a cancel ends the engine.
    pub(super) fn wait_zero(&self, address: Address) -> Result<(), DeviceError> {
        while self.i32s(address, &[1])? != [0] {
            let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if late || self.cancel.load(Ordering::Relaxed) {
                return Err(DeviceError::Timeout { kernel: self.kernel, address });
            }
            std::thread::sleep(SPIN);
        }
        Ok(())
    }

    /// Puts in values and takes out those of every rank that cuts this layer.
    pub(super) fn exchange(&self, values: Vec<f32>) -> Result<Contributions, DeviceError> {
        self.exchange_in(&self.groups.tensor, self.kernel, values)
    }

    /// Puts in values and takes out those of every rank of a group.
    pub(super) fn exchange_in(
        &self,
        group: &'a Collective,
        name: &'static str,
        values: Vec<f32>,
    ) -> Result<Contributions, DeviceError> {
        group
            .exchange(name, values, self.deadline, self.cancel)
            .map_err(|source| DeviceError::Collective { kernel: self.kernel, source })
    }

    /// A device-side assertion.
    pub(super) fn assert(
        &self,
        holds: bool,
        text: impl FnOnce() -> String,
    ) -> Result<(), DeviceError> {
        if holds {
            return Ok(());
        }
        Err(DeviceError::Assert { kernel: self.kernel, text: text() })
    }

    fn view<T: AnyBitPattern>(
        &self,
        address: Address,
        shape: &[usize],
    ) -> Result<&[T], DeviceError> {
        let view = self.arena.view(address, elements(shape));
        view.map_err(|error| fault(self.kernel, address, &error))
    }
}

fn fault(kernel: &'static str, address: Address, error: &ArenaError) -> DeviceError {
    match *error {
        ArenaError::Misaligned { address, .. } => DeviceError::Misaligned { kernel, address },
        ArenaError::Unbacked { address } => DeviceError::IllegalAccess { kernel, address },
        _ => DeviceError::IllegalAccess { kernel, address },
    }
}

/// The address of element `index` of an array; an index from memory may be anything.
pub(super) const fn element(base: Address, index: i64, element_bytes: usize) -> Address {
    Address(base.0.wrapping_add_signed(index.wrapping_mul(element_bytes as i64)))
}
