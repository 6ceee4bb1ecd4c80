//! Addresses, storages and the fingerprint of a slot.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Dtype;

/// A device address in bytes. May be reused by another storage.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let digits = text
            .strip_prefix("0x")
            .ok_or_else(|| serde::de::Error::custom("an address begins with 0x"))?;
        u64::from_str_radix(digits, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

/// The serial of one allocation. Never reused, unlike its address.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct StorageId(pub u64);

impl fmt::Display for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A half-open range of device bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    /// The first byte.
    pub address: Address,
    /// How many bytes.
    pub bytes: u64,
}

impl ByteRange {
    /// Whether the two ranges share a byte.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.address.0 < other.address.0.saturating_add(other.bytes)
            && other.address.0 < self.address.0.saturating_add(self.bytes)
    }

    /// Whether `address` lies inside.
    #[must_use]
    pub const fn contains(self, address: Address) -> bool {
        self.address.0 <= address.0 && address.0 - self.address.0 < self.bytes
    }
}

/// The eight fields that make a storage the same storage (R4).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Which allocation.
    pub storage: StorageId,
    /// Address of the first element (the storage's start plus the offset).
    pub address: Address,
    /// Bytes of the whole storage.
    pub storage_bytes: u64,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// Elements between neighbours along each axis.
    pub stride: Vec<u64>,
    /// Elements between the storage's start and the first element.
    pub offset: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Where the storage lies: `cuda:0`, `arena:1`, `cpu`, `meta`.
    pub device: String,
}

impl Fingerprint {
    /// Number of elements, as many as 64 bits hold.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |elements, &extent| elements.saturating_mul(extent))
    }

    /// Bytes of all elements, as many as 64 bits hold.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.bytes())
    }

    /// Whether elements lie row-major without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&extent, &stride) in self.shape.iter().zip(&self.stride).rev() {
            if extent > 1 && stride != expected {
                return false;
            }
            expected *= extent;
        }
        true
    }
}
