//! Whole blocks of one rank in host memory, below the paged ones: the least recently used makes
//! room.

use std::collections::BTreeMap;
use std::sync::Arc;

use coldproof_contract::words::Generation;

use super::{BlockKey, Invalidation};

/// A block's bytes in every paged slot of its rank, one after the other.
pub(crate) type BlockBytes = Arc<Vec<u8>>;

#[derive(Debug)]
struct Entry {
    bytes: BlockBytes,
    /// The generation that computed it.
    made: Generation,
    /// When it was last used.
    used: u64,
}

/// Blocks by key, up to a number of bytes.
#[derive(Debug)]
pub(crate) struct HostTier {
    room: u64,
    held: u64,
    clock: u64,
    entries: BTreeMap<BlockKey, Entry>,
    /// Keys by when they were last used.
    order: BTreeMap<u64, BlockKey>,
    invalidation: Invalidation,
}

impl HostTier {
    /// An empty tier that holds blocks of `room` bytes in all.
    pub(crate) const fn new(room: u64, invalidation: Invalidation) -> Self {
        Self {
            room,
            held: 0,
            clock: 0,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            invalidation,
        }
    }

    /// A block that is held; it is the most recently used from here on.
    pub(crate) fn find(&mut self, key: BlockKey) -> Option<BlockBytes> {
        let entry = self.entries.get_mut(&key)?;
        self.order.remove(&entry.used);
        self.clock += 1;
        entry.used = self.clock;
        self.order.insert(self.clock, key);
        Some(Arc::clone(&entry.bytes))
    }

    /// Holds a block, if it fits at all.
    pub(crate) fn put(&mut self, key: BlockKey, made: Generation, bytes: BlockBytes) {
        let size = bytes.len() as u64;
        if size > self.room || self.find(key).is_some() {
            return;
        }
        while self.held + size > self.room {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            let gone = self.entries.remove(&oldest);
            self.held -= gone.map_or(0, |entry| entry.bytes.len() as u64);
        }
        self.clock += 1;
        self.held += size;
        self.order.insert(self.clock, key);
        self.entries.insert(key, Entry { bytes, made, used: self.clock });
    }

    /// Answers an update.
    pub(crate) fn invalidate(&mut self) {
        if self.invalidation == Invalidation::Empty {
            self.forget();
        }
    }

    /// Forgets every block.
    pub(crate) fn forget(&mut self) {
        self.entries.clear();
        self.order.clear();
        self.held = 0;
    }

    /// Blocks that a request at `current` could reach.
    pub(crate) fn entries(&self, current: Generation) -> u64 {
        let reaches = |entry: &&Entry| self.invalidation.reaches(entry.made, current);
        self.entries.values().filter(reaches).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caches::Symbol;

    const ONE: Generation = Generation(1);
    const TWO: Generation = Generation(2);

    fn key(token: u32) -> BlockKey {
        BlockKey::of(None, &[Symbol::Token(token)], None)
    }

    fn bytes(count: usize) -> BlockBytes {
        Arc::new(vec![7; count])
    }

    #[test]
    fn the_least_recently_used_block_makes_room() {
        let mut tier = HostTier::new(20, Invalidation::Empty);
        for token in [1, 2] {
            tier.put(key(token), ONE, bytes(10));
        }
        assert!(tier.find(key(1)).is_some());
        tier.put(key(3), ONE, bytes(5));
        assert!(tier.find(key(2)).is_none(), "1 was used after it");
        assert!(tier.find(key(1)).is_some() && tier.find(key(3)).is_some());
        tier.put(key(4), ONE, bytes(21));
        assert_eq!((tier.entries(ONE), tier.held), (2, 15), "one that never fits moves nothing");
        tier.put(key(3), ONE, bytes(5));
        assert_eq!((tier.entries(ONE), tier.held), (2, 15), "one that is held is held once");
        tier.put(key(5), ONE, bytes(20));
        assert_eq!((tier.entries(ONE), tier.held), (1, 20));
    }

    #[test]
    fn only_unkeyed_blocks_are_reached_by_other_weights() {
        for (invalidation, held, reached) in [
            (Invalidation::Empty, false, 0),
            (Invalidation::KeepKeyed, true, 0),
            (Invalidation::KeepUnkeyed, true, 1),
        ] {
            let mut tier = HostTier::new(20, invalidation);
            tier.put(key(1), ONE, bytes(10));
            tier.invalidate();
            assert_eq!(tier.find(key(1)).is_some(), held);
            assert_eq!(tier.entries(TWO), reached);
            tier.forget();
            assert_eq!((tier.find(key(1)), tier.held), (None, 0));
        }
    }
}
