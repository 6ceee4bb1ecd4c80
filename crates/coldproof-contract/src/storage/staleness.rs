//! What an address that was captured is now, by the allocator's log alone (R71).
//!
//! "The slot has moved" is neither necessary nor sufficient: a block may be freed and reused while
//! its slot still names it, and a slot may move while its old block lives on.

use crate::evidence::{AllocFact, FreeFact, RegionFact};
use crate::words::{Address, ByteRange, StorageId};

/// One line of the allocator's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// A block was handed out.
    Alloc {
        /// Its serial, never reused.
        storage: StorageId,
        /// Where it lies.
        range: ByteRange,
    },
    /// A block was taken back.
    Free {
        /// Its serial.
        storage: StorageId,
    },
    /// A range was backed by memory.
    Map {
        /// The range.
        range: ByteRange,
    },
    /// A range lost its memory. Blocks in it keep their addresses.
    Unmap {
        /// The range.
        range: ByteRange,
    },
}

impl From<&AllocFact> for MemoryEvent {
    fn from(fact: &AllocFact) -> Self {
        let range = ByteRange { address: fact.address, bytes: fact.bytes };
        Self::Alloc { storage: fact.storage, range }
    }
}

impl From<&FreeFact> for MemoryEvent {
    fn from(fact: &FreeFact) -> Self {
        Self::Free { storage: fact.storage }
    }
}

impl From<&RegionFact> for MemoryEvent {
    fn from(fact: &RegionFact) -> Self {
        let range = ByteRange { address: fact.address, bytes: fact.bytes };
        if fact.mapped { Self::Map { range } } else { Self::Unmap { range } }
    }
}

/// Whether somebody owned a block at capture, and owns it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// At capture.
    pub then: bool,
    /// Now.
    pub now: bool,
}

/// What a captured address is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staleness {
    /// The block of the capture, with an owner if it had one: the only state that is not stale.
    Live,
    /// It is backed by no memory: a replay is an illegal access.
    Unmapped,
    /// The block was freed, and no other lies there.
    Free,
    /// The block was freed since the capture, and another lies there: a replay reads that one.
    FreedSince {
        /// The block that lies there now.
        reused_by: StorageId,
    },
    /// The block lives on and nobody owns it any more: nothing will refresh it.
    Orphaned,
    /// No block lay there at capture, as far as the log tells.
    Unresolved,
}

/// What `address`, captured after the first `captured` events of `log`, is at the end of the log.
#[must_use]
pub fn staleness(
    log: &[MemoryEvent],
    captured: usize,
    address: Address,
    owned: Ownership,
) -> Staleness {
    let (before, _) = log.split_at(captured.min(log.len()));
    let Some(then) = block_at(before, address) else { return Staleness::Unresolved };
    if !is_mapped(log, address) {
        return Staleness::Unmapped;
    }
    match block_at(log, address) {
        None => Staleness::Free,
        Some(now) if now != then => Staleness::FreedSince { reused_by: now },
        Some(_) if owned.then && !owned.now => Staleness::Orphaned,
        Some(_) => Staleness::Live,
    }
}

/// The block that holds an address at the end of a log.
fn block_at(log: &[MemoryEvent], address: Address) -> Option<StorageId> {
    let mut holder = None;
    for event in log {
        match *event {
            MemoryEvent::Alloc { storage, range } if range.contains(address) => {
                holder = Some(storage);
            }
            MemoryEvent::Free { storage } if holder == Some(storage) => holder = None,
            _ => {}
        }
    }
    holder
}

/// Whether an address is backed by memory at the end of a log; one that no event speaks of is.
fn is_mapped(log: &[MemoryEvent], address: Address) -> bool {
    let last = log.iter().rev().find_map(|event| match *event {
        MemoryEvent::Map { range } if range.contains(address) => Some(true),
        MemoryEvent::Unmap { range } if range.contains(address) => Some(false),
        _ => None,
    });
    last.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Address = Address(0x110);
    const OWNED: Ownership = Ownership { then: true, now: true };

    const fn range(address: u64, bytes: u64) -> ByteRange {
        ByteRange { address: Address(address), bytes }
    }

    const fn alloc(storage: u64, address: u64, bytes: u64) -> MemoryEvent {
        MemoryEvent::Alloc { storage: StorageId(storage), range: range(address, bytes) }
    }

    const fn free(storage: u64) -> MemoryEvent {
        MemoryEvent::Free { storage: StorageId(storage) }
    }

    /// The state of `AT`, captured after the one allocation that every log begins with.
    fn after(events: &[MemoryEvent]) -> Staleness {
        let mut log = vec![alloc(1, 0x100, 0x40)];
        log.extend(events);
        staleness(&log, 1, AT, OWNED)
    }

    #[test]
    fn a_block_that_nobody_touched_is_live() {
        assert_eq!(after(&[]), Staleness::Live);
        assert_eq!(after(&[alloc(2, 0x140, 0x40), free(2)]), Staleness::Live);
    }

    #[test]
    fn a_freed_block_is_stale_whether_or_not_it_was_reused() {
        assert_eq!(after(&[free(1)]), Staleness::Free);
        let reused_by = StorageId(2);
        let reused = after(&[free(1), alloc(2, 0x100, 0x40)]);
        assert_eq!(reused, Staleness::FreedSince { reused_by });
        let shifted = after(&[free(1), alloc(2, 0x80, 0x100)]);
        assert_eq!(shifted, Staleness::FreedSince { reused_by });
        assert_eq!(after(&[free(1), alloc(2, 0x80, 0x90)]), Staleness::Free);
    }

    #[test]
    fn sleep_and_wake_at_the_same_address_keep_it_live() {
        let region = range(0, 0x1000);
        let unmap = MemoryEvent::Unmap { range: region };
        assert_eq!(after(&[unmap]), Staleness::Unmapped);
        assert_eq!(after(&[unmap, MemoryEvent::Map { range: region }]), Staleness::Live);
        let elsewhere = MemoryEvent::Unmap { range: range(0x2000, 0x1000) };
        assert_eq!(after(&[elsewhere]), Staleness::Live);
    }

    #[test]
    fn a_block_that_lost_its_owner_is_orphaned() {
        let log = [alloc(1, 0x100, 0x40)];
        let of = |then, now| staleness(&log, 1, AT, Ownership { then, now });
        assert_eq!(of(true, false), Staleness::Orphaned);
        assert_eq!(of(true, true), Staleness::Live);
        assert_eq!(of(false, false), Staleness::Live);
    }

    #[test]
    fn an_address_outside_every_block_is_unresolved() {
        let log = [alloc(1, 0x100, 0x40), alloc(2, 0x200, 0x40)];
        assert_eq!(staleness(&log, 1, Address(0x140), OWNED), Staleness::Unresolved);
        assert_eq!(staleness(&log, 1, Address(0x210), OWNED), Staleness::Unresolved);
        assert_eq!(staleness(&log, 2, Address(0x210), OWNED), Staleness::Live);
    }
}
