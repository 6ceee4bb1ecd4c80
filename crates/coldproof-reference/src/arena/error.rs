//! What the arena refuses.

use coldproof_contract::words::{Address, StorageId};

use super::Region;

/// A request that the arena cannot serve. None of these is sticky: see `DeviceError` for those
/// that end a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// The base is not aligned, is zero, or leaves no room for the regions above it.
    #[error("arena base {base:#x} must be a multiple of 512 above 0 with 256 GiB of room above it")]
    Base {
        /// The asked base.
        base: u64,
    },
    /// A region has no room left.
    #[error("region {region} has no room for {bytes} bytes; free blocks or shrink the model")]
    OutOfMemory {
        /// Where.
        region: Region,
        /// The asked bytes.
        bytes: u64,
    },
    /// A storage that is not live: never allocated, or freed already.
    #[error("storage {storage} is not live; it was freed already or never allocated")]
    NotLive {
        /// The serial.
        storage: StorageId,
    },
    /// No memory backs an address.
    #[error("no memory backs address {address}; map its region first")]
    Unbacked {
        /// The first address without memory.
        address: Address,
    },
    /// An address that is no multiple of the element size.
    #[error("address {address} is no multiple of the element size {align}")]
    Misaligned {
        /// The address.
        address: Address,
        /// Bytes of the element.
        align: u64,
    },
    /// An unmapped region was used as a mapped one.
    #[error("region {region} is not mapped; wake it first")]
    NotMapped {
        /// Which.
        region: Region,
    },
    /// A mapped region was mapped again.
    #[error("region {region} is mapped already; unmap it first")]
    AlreadyMapped {
        /// Which.
        region: Region,
    },
}
