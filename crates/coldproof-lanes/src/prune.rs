//! Keeps the allocator's history where it matters.
//!
//! R71 asks what happened to the blocks under captured addresses, and a finding tells who has
//! them now. Blocks that no captured or registered address ever overlapped say nothing; nor does
//! the second activation that passes through the same freed block.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::evidence::{Event, Fact};
use coldproof_contract::words::{ByteRange, Rank, StorageId};

/// Drops allocator events of `arm` from index `first` on that R71 cannot depend on.
pub(crate) fn allocations(events: &mut Vec<Event>, first: usize, arm: &str) {
    let ranges = watched(events, first, arm);
    let mut seen = BTreeSet::new();
    let mut dropped: BTreeSet<(Rank, StorageId)> = BTreeSet::new();
    let freed = freed_in_step(events, first, arm);
    let mut index = 0;
    events.retain(|event| {
        index += 1;
        if index <= first || event.arm != arm {
            return true;
        }
        match &event.fact {
            Fact::Alloc(block) => {
                let range = ByteRange { address: block.address, bytes: block.bytes };
                let watched = overlaps(ranges.get(&event.rank), range);
                let passing = freed.get(&(event.rank, block.storage)) == Some(&event.step);
                let keep =
                    watched && (!passing || seen.insert((event.rank, block.address, event.step)));
                if !keep {
                    dropped.insert((event.rank, block.storage));
                }
                keep
            }
            Fact::Free(block) => !dropped.contains(&(event.rank, block.storage)),
            _ => true,
        }
    });
    renumber(events, first);
}

/// Disjoint sorted ranges that graphs retain or slots are registered at.
fn watched(events: &[Event], first: usize, arm: &str) -> BTreeMap<Rank, Vec<ByteRange>> {
    let mut all: BTreeMap<Rank, BTreeSet<ByteRange>> = BTreeMap::new();
    for event in events.iter().skip(first).filter(|event| event.arm == arm) {
        let ranges = all.entry(event.rank).or_default();
        match &event.fact {
            Fact::Node(node) => ranges.extend(
                node.args
                    .iter()
                    .map(|arg| ByteRange { address: arg.address, bytes: arg.bytes.max(1) }),
            ),
            Fact::Slot(slot) => ranges.extend(
                slot.fingerprint
                    .iter()
                    .map(|print| ByteRange { address: print.address, bytes: print.bytes().max(1) }),
            ),
            _ => {}
        }
    }
    all.into_iter().map(|(rank, ranges)| (rank, merge(ranges))).collect()
}

fn merge(ranges: BTreeSet<ByteRange>) -> Vec<ByteRange> {
    let mut merged: Vec<ByteRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.address.0.saturating_add(last.bytes) >= range.address.0 => {
                let end = (last.address.0.saturating_add(last.bytes))
                    .max(range.address.0.saturating_add(range.bytes));
                last.bytes = end - last.address.0;
            }
            _ => merged.push(range),
        }
    }
    merged
}

fn overlaps(ranges: Option<&Vec<ByteRange>>, range: ByteRange) -> bool {
    let Some(ranges) = ranges else { return false };
    let after = ranges.partition_point(|r| r.address.0.saturating_add(r.bytes) <= range.address.0);
    ranges.get(after).is_some_and(|r| r.overlaps(range))
}

/// The step in which each storage was freed, where that is the step it was allocated in.
fn freed_in_step(events: &[Event], first: usize, arm: &str) -> BTreeMap<(Rank, StorageId), u32> {
    let mut born = BTreeMap::new();
    let mut passing = BTreeMap::new();
    for event in events.iter().skip(first).filter(|event| event.arm == arm) {
        match &event.fact {
            Fact::Alloc(block) => {
                born.insert((event.rank, block.storage), event.step);
            }
            Fact::Free(block) => {
                let key = (event.rank, block.storage);
                if born.get(&key) == Some(&event.step) {
                    passing.insert(key, event.step);
                }
            }
            _ => {}
        }
    }
    passing
}

/// Makes `seq` dense again.
fn renumber(events: &mut [Event], first: usize) {
    let mut next: BTreeMap<(u32, Rank), u64> = BTreeMap::new();
    for event in events.iter_mut().skip(first) {
        let seq = next.entry((event.step, event.rank)).or_default();
        event.seq = *seq;
        *seq += 1;
    }
}
