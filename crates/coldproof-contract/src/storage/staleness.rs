//! What an address that was captured is now, spelled out from the allocator's log alone (R71): slow
//! and plain, for [`Blocks`] and [`MemoryLog`] to be held against.
//!
//! "The slot has moved" is neither necessary nor sufficient: a block may be freed and reused while
//! its slot still names it, and a slot may move while its old block lives on. Whether somebody owns
//! the block is the registry's to say.

use proptest::prelude::*;

use super::facts::Blocks;
use super::retained::{Fate, MemoryEvent, MemoryLog, Owners};
use crate::evidence::{
    AllocFact, ArgFact, ArmHeader, ArmView, Event, Fact, FreeFact, LaneName, NodeFact, RegionFact,
};
use crate::words::{Address, ByteRange, Rank, StorageId, Topology};

/// What a captured address is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Staleness {
    /// The block of the capture: the only state that is not stale.
    Live,
    /// It is backed by no memory: a replay is an illegal access.
    Unmapped,
    /// The block was freed, and no other lies there.
    Free,
    /// The block was freed since the capture, and another lies there: a replay reads that one.
    FreedSince { reused_by: StorageId },
    /// No block lay there at capture, as far as the log tells.
    Unresolved,
}

/// What `address`, captured after the first `captured` events of `log`, is at the end of the log.
fn staleness(log: &[MemoryEvent], captured: usize, address: Address) -> Staleness {
    let (before, _) = log.split_at(captured.min(log.len()));
    let Some(then) = block_at(before, address) else { return Staleness::Unresolved };
    if !is_mapped(log, address) {
        return Staleness::Unmapped;
    }
    match block_at(log, address) {
        None => Staleness::Free,
        Some(now) if now != then => Staleness::FreedSince { reused_by: now },
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

/// In the first block that a log of a test hands out.
pub(super) const AT: Address = Address(0x110);

pub(super) const fn range(address: u64, bytes: u64) -> ByteRange {
    ByteRange { address: Address(address), bytes }
}

pub(super) const fn alloc(storage: u64, address: u64, bytes: u64) -> MemoryEvent {
    MemoryEvent::Alloc { storage: StorageId(storage), range: range(address, bytes) }
}

pub(super) const fn free(storage: u64) -> MemoryEvent {
    MemoryEvent::Free { storage: StorageId(storage) }
}

/// The state of `AT`, captured after the one allocation that every log begins with.
fn after(events: &[MemoryEvent]) -> Staleness {
    let mut log = vec![alloc(1, 0x100, 0x40)];
    log.extend(events);
    staleness(&log, 1, AT)
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
fn an_address_outside_every_block_is_unresolved() {
    let log = [alloc(1, 0x100, 0x40), alloc(2, 0x200, 0x40)];
    assert_eq!(staleness(&log, 1, Address(0x140)), Staleness::Unresolved);
    assert_eq!(staleness(&log, 1, Address(0x210)), Staleness::Unresolved);
    assert_eq!(staleness(&log, 2, Address(0x210)), Staleness::Live);
}

/// What a run does to memory; what cannot be done in its place is left out.
#[derive(Clone, Copy, Debug)]
enum Act {
    Alloc { at: u64, bytes: u64 },
    Free { which: usize },
    Back { at: u64, bytes: u64, mapped: bool },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0..12_u64, 1..5_u64).prop_map(|(at, bytes)| Act::Alloc { at, bytes }),
        3 => (0..8_usize).prop_map(|which| Act::Free { which }),
        1 => (0..12_u64, 1..12_u64, any::<bool>())
            .prop_map(|(at, bytes, mapped)| Act::Back { at, bytes, mapped }),
    ];
    prop::collection::vec(act, 1..40)
}

/// The log of an allocator that hands no byte out twice.
fn log(acts: &[Act]) -> Vec<MemoryEvent> {
    let mut live: Vec<(StorageId, ByteRange)> = Vec::new();
    let mut log = Vec::new();
    for (serial, act) in (1..).zip(acts) {
        match *act {
            Act::Alloc { at, bytes } => {
                let (storage, range) = (StorageId(serial), range(at, bytes));
                if live.iter().all(|(_, other)| !other.overlaps(range)) {
                    live.push((storage, range));
                    log.push(MemoryEvent::Alloc { storage, range });
                }
            }
            Act::Free { which } if which < live.len() => {
                log.push(MemoryEvent::Free { storage: live.remove(which).0 });
            }
            Act::Free { .. } => {}
            Act::Back { at, bytes, mapped: true } => {
                log.push(MemoryEvent::Map { range: range(at, bytes) });
            }
            Act::Back { at, bytes, mapped: false } => {
                log.push(MemoryEvent::Unmap { range: range(at, bytes) });
            }
        }
    }
    log
}

/// The log as evidence, one step an event, with a capture after the first `captured` of them.
fn events(log: &[MemoryEvent], captured: usize) -> Vec<Event> {
    let place = |storage: StorageId| {
        log.iter().find_map(|event| match *event {
            MemoryEvent::Alloc { storage: of, range } if of == storage => Some(range.address),
            _ => None,
        })
    };
    let fact = |event: &MemoryEvent| match *event {
        MemoryEvent::Alloc { storage, range: ByteRange { address, bytes } } => {
            let (region, purpose) = ("weights".to_owned(), String::new());
            Fact::Alloc(AllocFact { storage, address, bytes, region, purpose })
        }
        MemoryEvent::Free { storage } => {
            Fact::Free(FreeFact { storage, address: place(storage).unwrap() })
        }
        MemoryEvent::Map { range } => region(range, true),
        MemoryEvent::Unmap { range } => region(range, false),
    };
    let args: Vec<ArgFact> = Vec::new();
    let node = NodeFact { graph: "g".to_owned(), node: 0, kernel: "k".to_owned(), args };
    let facts = log[..captured].iter().map(fact).chain([Fact::Node(node)]);
    let facts = facts.chain(log[captured..].iter().map(fact));
    let event = |(step, fact)| Event {
        arm: "warm".to_owned(),
        step,
        rank: Rank::default(),
        seq: 0,
        t: None,
        fact,
    };
    (0..).zip(facts).map(event).collect()
}

fn region(range: ByteRange, mapped: bool) -> Fact {
    let ByteRange { address, bytes } = range;
    Fact::Region(RegionFact { region: "weights".to_owned(), address, bytes, mapped })
}

proptest! {
    /// The check's index over the log says of every address what the plain reading of it says, at
    /// the end of every step since the capture.
    #[test]
    fn the_index_over_the_log_agrees(acts in acts(), at in 0..100_usize) {
        let log = log(&acts);
        let captured = at % (log.len() + 1);
        let events = events(&log, captured);
        let header = ArmHeader::new("warm", LaneName::Differential, Topology::SINGLE, None);
        let arm = ArmView { header: &header, phases: vec![], events: events.iter().collect() };
        let blocks = Blocks::of(&arm, Rank::default());
        for (address, end) in (0..16).flat_map(|a| (captured..=log.len()).map(move |end| (a, end)))
        {
            let (address, step) = (Address(address), u32::try_from(end).unwrap());
            let block = blocks.at_capture(address);
            let freed = block.and_then(|block| blocks.fate(block).freed);
            let unmapped = blocks.unmapped(address, step).is_some();
            prop_assert_eq!(unmapped, !is_mapped(&log[..end], address));
            let is_freed = freed.is_some_and(|(when, _)| when <= step);
            let ownerless = Owners::default();
            let retained = MemoryLog::new(&log[..end], captured, &[]);
            let retained = retained.judge(address, &ownerless, &ownerless);
            let fate = match staleness(&log[..end], captured, address) {
                Staleness::Unresolved if unmapped && is_mapped(&log[..captured], address) => {
                    Fate::Dangling { unmapped }
                }
                Staleness::Unresolved | Staleness::Live => Fate::Alive,
                Staleness::Unmapped => Fate::Dangling { unmapped: true },
                Staleness::Free => Fate::Dangling { unmapped: false },
                Staleness::FreedSince { reused_by: by } => Fate::Reused { by, owner: None },
            };
            prop_assert_eq!(retained.fate, fate);
            prop_assert_eq!(retained.block, block.map(|block| block.fact.storage));
            match staleness(&log[..end], captured, address) {
                Staleness::Unresolved => prop_assert!(block.is_none()),
                Staleness::Live => prop_assert!(block.is_some() && !is_freed && !unmapped),
                Staleness::Unmapped => prop_assert!(block.is_some() && unmapped),
                Staleness::Free | Staleness::FreedSince { .. } => {
                    prop_assert!(block.is_some() && is_freed && !unmapped);
                }
            }
        }
    }
}
