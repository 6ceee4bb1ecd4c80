//! What the allocator did, in order.

use coldproof_contract::evidence::{AllocFact, Fact, FreeFact, RegionFact};
use coldproof_contract::words::{Address, StorageId};

use super::{Allocation, Region};

/// Events since the last drain.
#[derive(Debug, Default)]
pub(super) struct Log(Vec<Fact>);

impl Log {
    pub(super) fn alloc(&mut self, allocation: &Allocation, purpose: &str) {
        self.0.push(Fact::Alloc(AllocFact {
            storage: allocation.storage,
            address: allocation.address,
            bytes: allocation.bytes,
            region: allocation.region.name().to_owned(),
            purpose: purpose.to_owned(),
        }));
    }

    pub(super) fn free(&mut self, storage: StorageId, address: Address) {
        self.0.push(Fact::Free(FreeFact { storage, address }));
    }

    pub(super) fn region(&mut self, region: Region, address: Address, mapped: bool) {
        self.0.push(Fact::Region(RegionFact {
            region: region.name().to_owned(),
            address,
            bytes: Region::RESERVED_BYTES,
            mapped,
        }));
    }

    pub(super) fn drain(&mut self) -> Vec<Fact> {
        std::mem::take(&mut self.0)
    }
}
