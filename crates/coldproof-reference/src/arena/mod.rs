//! The device memory of one rank: regions of reserved addresses, each with a caching allocator.
//!
//! Addresses are synthetic numbers. Freed memory stays readable and keeps its bytes until it is
//! reused, unmapped memory is not readable at all, and new memory holds garbage: a stale address
//! behaves as it does on a GPU.

mod allocator;
mod error;
mod log;
mod memory;
mod poison;
mod region;

use std::collections::BTreeMap;

use bytemuck::AnyBitPattern;
use coldproof_contract::evidence::Fact;
use coldproof_contract::words::{Address, StorageId};

pub use allocator::Placement;
pub use error::ArenaError;
pub use poison::Pattern;
pub use region::Region;

use allocator::Allocator;
use log::Log;
use memory::Memory;

/// How an arena is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaConfig {
    /// The first address (bytes; a multiple of 512). The four regions follow one another.
    pub base: u64,
    /// Seed of the garbage in new memory.
    pub seed: u64,
    /// Which end of a free block a request takes.
    pub placement: Placement,
}

/// A block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its serial, never reused within the arena.
    pub storage: StorageId,
    /// Its first byte, a multiple of 512.
    pub address: Address,
    /// The bytes that were asked for.
    pub bytes: u64,
    /// Where it lies.
    pub region: Region,
}

#[derive(Debug)]
struct Space {
    base: u64,
    allocator: Allocator,
    memory: Memory,
}

/// All memory of one device.
#[derive(Debug)]
pub struct Arena {
    config: ArenaConfig,
    spaces: [Space; Region::ALL.len()],
    live: BTreeMap<StorageId, Allocation>,
    next: u64,
    /// How often memory was backed: each time gets other garbage.
    backings: u64,
    pressure: Vec<StorageId>,
    log: Log,
}

impl Arena {
    /// An empty arena, all regions mapped.
    ///
    /// # Errors
    /// [`ArenaError::Base`].
    pub fn new(config: ArenaConfig) -> Result<Self, ArenaError> {
        let regions = Region::ALL.len() as u64;
        let end = config.base.checked_add(Region::RESERVED_BYTES * regions);
        if config.base == 0
            || !config.base.is_multiple_of(allocator::GRANULE_BYTES)
            || end.is_none()
        {
            return Err(ArenaError::Base { base: config.base });
        }
        let spaces = Region::ALL.map(|region| {
            let base = config.base + Region::RESERVED_BYTES * region.index() as u64;
            let allocator = Allocator::new(Region::RESERVED_BYTES, config.placement);
            Space { base, allocator, memory: Memory::new(base) }
        });
        let mut log = Log::default();
        for (region, space) in Region::ALL.into_iter().zip(&spaces) {
            log.region(region, Address(space.base), true);
        }
        Ok(Self {
            config,
            spaces,
            live: BTreeMap::new(),
            next: 1,
            backings: 0,
            pressure: Vec::new(),
            log,
        })
    }

    /// Hands out a block of at least `bytes` bytes. Its bytes are what lay there before.
    ///
    /// # Errors
    /// [`ArenaError::NotMapped`], [`ArenaError::OutOfMemory`].
    pub fn alloc(
        &mut self,
        region: Region,
        bytes: u64,
        purpose: &str,
    ) -> Result<Allocation, ArenaError> {
        if !self.is_mapped(region) {
            return Err(ArenaError::NotMapped { region });
        }
        let storage = StorageId(self.next);
        let space = &mut self.spaces[region.index()];
        let placed = space
            .allocator
            .allocate(bytes, storage)
            .ok_or(ArenaError::OutOfMemory { region, bytes })?;
        let address = Address(space.base + placed.offset);
        self.next += 1;
        if let Some(segment) = placed.segment {
            let poison = self.fresh_garbage();
            let memory = &mut self.spaces[region.index()].memory;
            memory.grow(segment.offset, segment.bytes, poison);
        }
        Ok(self.record(Allocation { storage, address, bytes, region }, purpose))
    }

    /// Takes a block back. Its bytes stay until the memory is reused.
    ///
    /// # Errors
    /// [`ArenaError::NotLive`]: freed already, or never allocated.
    pub fn free(&mut self, storage: StorageId) -> Result<(), ArenaError> {
        let allocation = self.live.remove(&storage).ok_or(ArenaError::NotLive { storage })?;
        let space = &mut self.spaces[allocation.region.index()];
        space.allocator.free(allocation.address.0 - space.base);
        self.log.free(storage, allocation.address);
        Ok(())
    }

    /// Gives a region's memory back. Blocks keep their addresses; their bytes are lost.
    ///
    /// # Errors
    /// [`ArenaError::NotMapped`].
    pub fn unmap(&mut self, region: Region) -> Result<(), ArenaError> {
        if !self.is_mapped(region) {
            return Err(ArenaError::NotMapped { region });
        }
        let space = &mut self.spaces[region.index()];
        space.memory.unmap();
        self.log.region(region, Address(space.base), false);
        Ok(())
    }

    /// Backs a region with fresh memory at its old addresses; it holds garbage.
    ///
    /// # Errors
    /// [`ArenaError::AlreadyMapped`].
    pub fn map(&mut self, region: Region) -> Result<(), ArenaError> {
        if self.is_mapped(region) {
            return Err(ArenaError::AlreadyMapped { region });
        }
        let poison = self.fresh_garbage();
        let space = &mut self.spaces[region.index()];
        space.memory.map(poison);
        self.log.region(region, Address(space.base), true);
        Ok(())
    }

    /// Whether memory backs the region now.
    #[must_use]
    pub fn is_mapped(&self, region: Region) -> bool {
        self.spaces[region.index()].memory.mapped()
    }

    /// The live block of that serial.
    #[must_use]
    pub fn allocation(&self, storage: StorageId) -> Option<Allocation> {
        self.live.get(&storage).copied()
    }

    /// Fills every free block of every mapped region.
    pub fn poison_free(&mut self, pattern: Pattern) {
        for space in &mut self.spaces {
            for (offset, bytes) in space.allocator.free_blocks() {
                space.memory.fill(offset, bytes, pattern);
            }
        }
    }

    /// Gives every free block of every mapped region to another owner, who fills it with garbage
    /// and keeps it until [`Arena::release_pressure`]. Returns the bytes taken.
    pub fn pressure(&mut self) -> u64 {
        let mut taken = 0;
        for region in Region::ALL {
            if !self.is_mapped(region) {
                continue;
            }
            let pattern = self.fresh_garbage();
            for (offset, bytes) in self.spaces[region.index()].allocator.free_blocks() {
                let storage = StorageId(self.next);
                self.next += 1;
                let space = &mut self.spaces[region.index()];
                space.allocator.claim(offset, storage);
                space.memory.fill(offset, bytes, pattern);
                let address = Address(space.base + offset);
                self.record(Allocation { storage, address, bytes, region }, "pressure");
                self.pressure.push(storage);
                taken += bytes;
            }
        }
        taken
    }

    /// Frees what [`Arena::pressure`] took; the garbage stays.
    ///
    /// # Errors
    /// [`ArenaError::NotLive`], where somebody else freed such a block.
    pub fn release_pressure(&mut self) -> Result<(), ArenaError> {
        std::mem::take(&mut self.pressure).into_iter().try_for_each(|storage| self.free(storage))
    }

    /// The bytes at an address, whoever owns them now.
    ///
    /// # Errors
    /// [`ArenaError::Unbacked`].
    pub fn read(&self, address: Address, bytes: u64) -> Result<&[u8], ArenaError> {
        let (index, offset) = self.resolve(address)?;
        let space = &self.spaces[index];
        space.memory.bytes(offset, bytes).map_err(|hole| space.unbacked(hole.offset))
    }

    /// Elements at an address: `count` of them.
    ///
    /// # Errors
    /// [`ArenaError::Unbacked`], [`ArenaError::Misaligned`].
    pub fn view<T: AnyBitPattern>(
        &self,
        address: Address,
        count: usize,
    ) -> Result<&[T], ArenaError> {
        let size = size_of::<T>() as u64;
        let bytes = self.read(address, size.saturating_mul(count as u64))?;
        bytemuck::try_cast_slice(bytes)
            .map_err(|_| ArenaError::Misaligned { address, align: align_of::<T>() as u64 })
    }

    /// Writes bytes at an address, whoever owns them now.
    ///
    /// # Errors
    /// [`ArenaError::Unbacked`]; nothing is written then.
    pub fn write(&mut self, address: Address, bytes: &[u8]) -> Result<(), ArenaError> {
        let (index, offset) = self.resolve(address)?;
        let space = &mut self.spaces[index];
        let base = space.base;
        match space.memory.bytes_mut(offset, bytes.len() as u64) {
            Ok(target) => target.copy_from_slice(bytes),
            Err(hole) => return Err(ArenaError::Unbacked { address: Address(base + hole.offset) }),
        }
        Ok(())
    }

    /// What happened since the last call, in order: `Alloc`, `Free` and `Region` facts.
    pub fn drain_log(&mut self) -> Vec<Fact> {
        self.log.drain()
    }

    fn resolve(&self, address: Address) -> Result<(usize, u64), ArenaError> {
        let above = address.0.checked_sub(self.config.base);
        let place = above.map(|offset| {
            let index = (offset / Region::RESERVED_BYTES) as usize;
            (index, offset % Region::RESERVED_BYTES)
        });
        place
            .filter(|&(index, _)| index < self.spaces.len())
            .ok_or(ArenaError::Unbacked { address })
    }

    fn record(&mut self, allocation: Allocation, purpose: &str) -> Allocation {
        self.live.insert(allocation.storage, allocation);
        self.log.alloc(&allocation, purpose);
        allocation
    }

    fn fresh_garbage(&mut self) -> Pattern {
        self.backings += 1;
        Pattern::Garbage(poison::mix(self.config.seed ^ poison::mix(self.backings)))
    }
}

impl Space {
    const fn unbacked(&self, offset: u64) -> ArenaError {
        ArenaError::Unbacked { address: Address(self.base + offset) }
    }
}

#[cfg(test)]
mod tests;
