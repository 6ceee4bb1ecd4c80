//! The caching allocator of one region.
//!
//! The rules are those of PyTorch's CUDA caching allocator (`c10/cuda/CUDACachingAllocator.cpp`):
//! sizes round to 512 bytes, small and large requests have pools of their own, the smallest free
//! block that fits is taken (of equals, the lowest address), the rest is split off, neighbours
//! coalesce on free, and a freed block is reused at once. Segment sizes are an eighth of
//! PyTorch's, for small models; segments are never given back.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::words::StorageId;

/// Every block is a multiple of this many bytes.
pub(super) const GRANULE_BYTES: u64 = 512;
/// Requests up to this size come from the small pool.
const SMALL_BYTES: u64 = 128 << 10;
/// Segments of the small pool.
const SMALL_SEGMENT_BYTES: u64 = 256 << 10;
/// Requests from this size on get a segment of their own size.
const LARGE_BYTES: u64 = 1280 << 10;
/// Segments of the large pool for requests below [`LARGE_BYTES`].
const LARGE_SEGMENT_BYTES: u64 = 2560 << 10;
/// Larger segments are a multiple of this many bytes.
const SEGMENT_GRANULE_BYTES: u64 = 256 << 10;

/// Which end of a free block a request takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The low end, as PyTorch does.
    #[default]
    Forward,
    /// The high end: the same requests get other addresses.
    Reversed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pool {
    Small,
    Large,
}

impl Pool {
    const fn of(bytes: u64) -> Self {
        if bytes <= SMALL_BYTES { Self::Small } else { Self::Large }
    }

    /// Whether a rest of so many bytes is worth a block of its own.
    const fn splits(self, rest: u64) -> bool {
        match self {
            Self::Small => rest >= GRANULE_BYTES,
            Self::Large => rest > SMALL_BYTES,
        }
    }
}

/// A piece of a segment, free or in use. Offsets count from the region's first byte.
#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    segment: u64,
    pool: Pool,
    owner: Option<StorageId>,
}

/// A segment that the region must back with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewSegment {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Where a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) offset: u64,
    pub(super) segment: Option<NewSegment>,
}

/// Blocks of one region; it knows offsets, not memory.
#[derive(Debug)]
pub(super) struct Allocator {
    placement: Placement,
    capacity: u64,
    end: u64,
    blocks: BTreeMap<u64, Block>,
    free: BTreeSet<(Pool, u64, u64)>,
}

impl Allocator {
    pub(super) fn new(capacity: u64, placement: Placement) -> Self {
        Self { placement, capacity, end: 0, blocks: BTreeMap::new(), free: BTreeSet::new() }
    }

    /// Places a request, or nothing where the region is full. Zero bytes take one granule.
    pub(super) fn allocate(&mut self, bytes: u64, owner: StorageId) -> Option<Placed> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRANULE_BYTES)?;
        let pool = Pool::of(bytes);
        let best = self.free.range((pool, bytes, 0)..=(pool, u64::MAX, u64::MAX)).next().copied();
        let (free, segment) = match best {
            Some((_, _, offset)) => (offset, None),
            None => {
                let segment = self.grow(bytes, pool)?;
                (segment.offset, Some(segment))
            }
        };
        Some(Placed { offset: self.take(free, bytes, owner), segment })
    }

    /// Gives a block back. The offset must be one that [`Allocator::allocate`] returned.
    pub(super) fn free(&mut self, offset: u64) {
        let Some(mut block) = self.blocks.remove(&offset) else { return };
        let mut start = offset;
        block.owner = None;
        let after = self.blocks.range(offset..).next().map(|(&at, &next)| (at, next));
        if let Some((at, next)) = after.filter(|(_, next)| joins(next, &block)) {
            self.forget(at, &next);
            block.bytes += next.bytes;
        }
        let before = self.blocks.range(..offset).next_back().map(|(&at, &prior)| (at, prior));
        if let Some((at, prior)) = before.filter(|(_, prior)| joins(prior, &block)) {
            self.forget(at, &prior);
            block.bytes += prior.bytes;
            start = at;
        }
        self.insert(start, block);
    }

    /// Free blocks as (offset, bytes), by offset.
    pub(super) fn free_blocks(&self) -> Vec<(u64, u64)> {
        self.blocks
            .iter()
            .filter(|(_, block)| block.owner.is_none())
            .map(|(&offset, block)| (offset, block.bytes))
            .collect()
    }

    /// Gives the whole free block at `offset` to `owner`.
    pub(super) fn claim(&mut self, offset: u64, owner: StorageId) {
        if let Some(block) = self.blocks.get(&offset).copied().filter(|b| b.owner.is_none()) {
            self.forget(offset, &block);
            self.insert(offset, Block { owner: Some(owner), ..block });
        }
    }

    fn grow(&mut self, bytes: u64, pool: Pool) -> Option<NewSegment> {
        let segment = match pool {
            Pool::Small => SMALL_SEGMENT_BYTES,
            Pool::Large if bytes < LARGE_BYTES => LARGE_SEGMENT_BYTES,
            Pool::Large => bytes.checked_next_multiple_of(SEGMENT_GRANULE_BYTES)?,
        };
        let offset = self.end;
        let end = offset.checked_add(segment).filter(|&end| end <= self.capacity)?;
        self.end = end;
        self.insert(offset, Block { bytes: segment, segment: offset, pool, owner: None });
        Some(NewSegment { offset, bytes: segment })
    }

    /// Takes `bytes` of the free block at `offset`, and returns where they begin.
    fn take(&mut self, offset: u64, bytes: u64, owner: StorageId) -> u64 {
        let Some(block) = self.blocks.get(&offset).copied() else { return offset };
        self.forget(offset, &block);
        let rest = block.bytes - bytes;
        if !block.pool.splits(rest) {
            self.insert(offset, Block { owner: Some(owner), ..block });
            return offset;
        }
        let (taken, left) = match self.placement {
            Placement::Forward => (offset, offset + bytes),
            Placement::Reversed => (offset + rest, offset),
        };
        self.insert(left, Block { bytes: rest, ..block });
        self.insert(taken, Block { bytes, owner: Some(owner), ..block });
        taken
    }

    fn insert(&mut self, offset: u64, block: Block) {
        if block.owner.is_none() {
            self.free.insert((block.pool, block.bytes, offset));
        }
        self.blocks.insert(offset, block);
    }

    fn forget(&mut self, offset: u64, block: &Block) {
        self.free.remove(&(block.pool, block.bytes, offset));
        self.blocks.remove(&offset);
    }
}

fn joins(neighbour: &Block, block: &Block) -> bool {
    neighbour.owner.is_none() && neighbour.segment == block.segment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocator(placement: Placement) -> Allocator {
        Allocator::new(1 << 30, placement)
    }

    fn place(allocator: &mut Allocator, bytes: u64, owner: u64) -> u64 {
        allocator.allocate(bytes, StorageId(owner)).unwrap().offset
    }

    #[test]
    fn a_freed_block_is_reused_at_once_by_its_size() {
        let mut it = allocator(Placement::Forward);
        let a = place(&mut it, 1000, 1);
        let b = place(&mut it, 1000, 2);
        assert_eq!((a, b), (0, 1024));
        it.free(a);
        assert_eq!(place(&mut it, 1024, 3), a);
    }

    #[test]
    fn the_smallest_block_that_fits_is_taken_and_the_rest_split_off() {
        let mut it = allocator(Placement::Forward);
        let wide = place(&mut it, 4096, 1);
        place(&mut it, 512, 2);
        let narrow = place(&mut it, 2048, 3);
        place(&mut it, 512, 4);
        it.free(wide);
        it.free(narrow);
        assert_eq!(place(&mut it, 1536, 5), narrow);
        assert_eq!(place(&mut it, 512, 6), narrow + 1536);
        assert_eq!(place(&mut it, 512, 7), wide);
    }

    #[test]
    fn of_equal_blocks_the_lowest_address_is_taken() {
        let mut it = allocator(Placement::Forward);
        let blocks: Vec<u64> = (0..6).map(|owner| place(&mut it, 512, owner)).collect();
        it.free(blocks[3]);
        it.free(blocks[1]);
        assert_eq!(place(&mut it, 512, 9), blocks[1]);
    }

    #[test]
    fn neighbours_coalesce_within_their_segment_only() {
        let mut it = allocator(Placement::Forward);
        let blocks: Vec<u64> = (0..3).map(|owner| place(&mut it, 1024, owner)).collect();
        for &block in &[blocks[0], blocks[2], blocks[1]] {
            it.free(block);
        }
        assert_eq!(it.free_blocks(), [(0, SMALL_SEGMENT_BYTES)]);
        let full = SMALL_BYTES;
        let owners: Vec<u64> = (0..4).map(|owner| place(&mut it, full, owner)).collect();
        owners.iter().for_each(|&offset| it.free(offset));
        assert_eq!(
            it.free_blocks(),
            [(0, SMALL_SEGMENT_BYTES), (SMALL_SEGMENT_BYTES, SMALL_SEGMENT_BYTES)]
        );
    }

    #[test]
    fn large_requests_have_segments_of_their_own() {
        let mut it = allocator(Placement::Forward);
        place(&mut it, 512, 1);
        let large = it.allocate(200 << 10, StorageId(2)).unwrap();
        assert_eq!(large.segment.unwrap().bytes, LARGE_SEGMENT_BYTES);
        let huge = it.allocate((4 << 20) + 1, StorageId(3)).unwrap();
        assert_eq!(huge.segment.unwrap().bytes, (4 << 20) + SEGMENT_GRANULE_BYTES);
    }

    #[test]
    fn reversed_placement_takes_the_high_end() {
        let mut it = allocator(Placement::Reversed);
        assert_eq!(place(&mut it, 512, 1), SMALL_SEGMENT_BYTES - 512);
        assert_eq!(place(&mut it, 1024, 2), SMALL_SEGMENT_BYTES - 1536);
    }

    #[test]
    fn a_full_region_refuses() {
        let mut it = Allocator::new(SMALL_SEGMENT_BYTES, Placement::Forward);
        assert!(it.allocate(u64::MAX, StorageId(1)).is_none());
        assert!(it.allocate(SMALL_SEGMENT_BYTES, StorageId(2)).is_none());
        assert!(it.allocate(SMALL_BYTES, StorageId(3)).is_some());
    }
}
