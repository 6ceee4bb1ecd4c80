//! Regions: what a range of device addresses is reserved for.

use std::fmt;

/// A named range of reserved addresses that is mapped and unmapped as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// Parameters, buffers and derived slots.
    Weights,
    /// Paged keys and values.
    KvCache,
    /// Activations that captured graphs keep.
    GraphPool,
    /// Everything else: inputs, block tables, eager activations.
    Runtime,
}

impl Region {
    /// All regions, in address order.
    pub const ALL: [Self; 4] = [Self::Weights, Self::KvCache, Self::GraphPool, Self::Runtime];

    /// Bytes of addresses that each region reserves (64 GiB, whether or not memory backs them).
    pub const RESERVED_BYTES: u64 = 1 << 36;

    /// The name in evidence.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::KvCache => "kv_cache",
            Self::GraphPool => "graph_pool",
            Self::Runtime => "runtime",
        }
    }

    /// The region of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|region| region.name() == name)
    }

    /// Position in address order.
    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
