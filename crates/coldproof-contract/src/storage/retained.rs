//! What became of an address that a graph retains (R71), for a gate that asks as the engine runs.
//!
//! A captured address is stale if its block is unmapped or free, or was freed since the capture
//! (even if it was reused), or had an owner before and has none now. That a slot has moved is
//! neither necessary nor sufficient.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::words::{Address, ByteRange, StorageId};

/// One line of an allocator's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// A block was handed out, under a serial that is never used again.
    Alloc {
        /// The serial.
        storage: StorageId,
        /// The block.
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

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A slot's.
    Owned,
    /// Of the graphs' own pool, which lives as long as they do: intermediate values.
    GraphPool,
    /// An input or output of the replay, which every replay writes or reads anew.
    InputOutput,
    /// The KV cache's.
    Kv,
    /// A library's workspace.
    Workspace,
    /// Nobody's that is known.
    Unknown,
}

impl Class {
    /// Its name in a report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::GraphPool => "graph-pool",
            Self::InputOutput => "input-output",
            Self::Kv => "kv",
            Self::Workspace => "library-workspace",
            Self::Unknown => "unknown",
        }
    }
}

/// A named range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The owner's path.
    pub name: String,
    /// What it holds there.
    pub range: ByteRange,
    /// Whose memory that is.
    pub class: Class,
    /// Whether the name is one that was declared, as a module's parameters are: it is what an
    /// update writes to, whatever else names the same memory.
    pub is_registered: bool,
}

/// What became of a retained address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The block of the capture, with the owner of the capture. The only one that is not stale.
    Alive,
    /// Backed by no memory, or free: a replay is an illegal access or reads what was left.
    Dangling {
        /// Whether the memory went back to the driver.
        unmapped: bool,
    },
    /// Freed since the capture, and handed out again: a replay reads and writes another's memory.
    Reused {
        /// The block that lies there now.
        by: StorageId,
        /// Who owns it, where that is known.
        owner: Option<String>,
    },
    /// Still allocated, but its owner holds other memory now, and nobody else who had it then has
    /// it: a replay reads the old value, or that of a slot that moved here.
    Rebound {
        /// Where the owner lies now.
        now: Address,
    },
    /// Still allocated, and its owner is gone.
    Orphaned,
}

impl Fate {
    /// Whether R71 calls the address stale.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        !matches!(self, Self::Alive)
    }

    /// Its name in a report.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Dangling { .. } => "dangling",
            Self::Reused { .. } => "reused",
            Self::Rebound { .. } => "rebound",
            Self::Orphaned => "orphaned",
        }
    }
}

/// A retained address, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The address.
    pub address: Address,
    /// The block under it at capture; absent where the log has none.
    pub block: Option<StorageId>,
    /// Whose memory it was at capture.
    pub class: Class,
    /// Who owned it at capture.
    pub owner: Option<String>,
    /// What became of it.
    pub fate: Fate,
}

/// Live blocks by their first byte.
#[derive(Clone, Debug, Default)]
struct Live(BTreeMap<Address, (StorageId, ByteRange)>);

impl Live {
    fn at(&self, address: Address) -> Option<StorageId> {
        let (_, (storage, range)) = self.0.range(..=address).next_back()?;
        range.contains(address).then_some(*storage)
    }
}

/// An allocator's log, cut where graphs were captured.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    captured: Live,
    now: Live,
    places: BTreeMap<StorageId, Address>,
    /// Maps and unmaps, in order, and how many came before the capture.
    backed: Vec<(ByteRange, bool)>,
    backed_then: usize,
    pools: Vec<ByteRange>,
}

impl MemoryLog {
    /// Reads a log, of which `captured` events came before the capture. `pools` are the ranges of
    /// the graphs' own memory: what is freed in there stays theirs.
    #[must_use]
    pub fn new(events: &[MemoryEvent], captured: usize, pools: &[ByteRange]) -> Self {
        let mut log = Self { pools: pools.to_vec(), ..Self::default() };
        let (before, after) = events.split_at(captured.min(events.len()));
        before.iter().for_each(|event| log.apply(*event));
        log.captured = log.now.clone();
        log.backed_then = log.backed.len();
        after.iter().for_each(|event| log.apply(*event));
        log
    }

    fn apply(&mut self, event: MemoryEvent) {
        match event {
            MemoryEvent::Alloc { storage, range } => {
                self.now.0.insert(range.address, (storage, range));
                self.places.insert(storage, range.address);
            }
            MemoryEvent::Free { storage } => {
                let Some(place) = self.places.get(&storage) else { return };
                // Another block may have begun there in a log with gaps.
                if self.now.0.get(place).is_some_and(|(there, _)| *there == storage) {
                    self.now.0.remove(place);
                }
            }
            MemoryEvent::Map { range } => self.backed.push((range, true)),
            MemoryEvent::Unmap { range } => self.backed.push((range, false)),
        }
    }

    /// Whether memory lies under an address after some of the maps and unmaps; one that none speaks
    /// of has some.
    fn is_mapped(&self, address: Address, events: usize) -> bool {
        let mut last = self.backed[..events].iter().rev();
        last.find(|(range, _)| range.contains(address)).is_none_or(|(_, mapped)| *mapped)
    }

    /// What became of an address, with the owners at capture and those of now.
    #[must_use]
    pub fn judge(&self, address: Address, then: &Owners, now: &Owners) -> Retained {
        let block = self.captured.at(address);
        let owner = then.of(address);
        let pooled = self.pools.iter().any(|pool| pool.contains(address));
        let class = match owner {
            Some(owner) => owner.class,
            None if pooled => Class::GraphPool,
            None => Class::Unknown,
        };
        let name = owner.map(|owner| owner.name.clone());
        // What nobody had, and what had no memory then, was no address of anything.
        let is_one =
            block.is_some() || owner.is_some() || self.is_mapped(address, self.backed_then);
        let fate = if is_one && !self.is_mapped(address, self.backed.len()) {
            Fate::Dangling { unmapped: true }
        } else if let Some(fate) = self.freed(address, block, pooled && owner.is_none(), now) {
            fate
        } else {
            owner.map_or(Fate::Alive, |owner| ownership(address, owner, then, now))
        };
        Retained { address, block, class, owner: name, fate }
    }

    /// What became of a block that was taken back since the capture. What a pool takes back it
    /// hands to its own graphs alone, and stays theirs.
    fn freed(
        &self,
        address: Address,
        block: Option<StorageId>,
        stays: bool,
        now: &Owners,
    ) -> Option<Fate> {
        let lies_now = self.now.at(address);
        if block.is_none() || lies_now == block || stays {
            return None;
        }
        let owner = || now.of(address).map(|owner| owner.name.clone());
        Some(
            lies_now.map_or(Fate::Dangling { unmapped: false }, |by| Fate::Reused {
                by,
                owner: owner(),
            }),
        )
    }
}

/// What became of an address whose block lives on and had an owner at capture.
fn ownership(address: Address, owner: &Owner, then: &Owners, now: &Owners) -> Fate {
    let holds = |owner: &Owner| now.named(&owner.name).iter().any(|range| range.contains(address));
    let holders = || then.covering(address).filter(|other| other.class == owner.class);
    // A declared name that kept it is what the update wrote to.
    if holders().any(|other| other.is_registered && holds(other)) {
        return Fate::Alive;
    }
    // Else none may have moved on: an artefact of a compiler's keeps what a slot has left. Names of
    // inputs and caches come and go.
    let moved = holders().filter(|other| !holds(other)).find_map(|other| {
        now.named(&other.name).first().map(|range| Fate::Rebound { now: range.address })
    });
    let is_held = holders().any(holds);
    match moved {
        Some(moved) if owner.class == Class::Owned || !is_held => moved,
        _ if is_held => Fate::Alive,
        // It goes by a name that is new. One that lay elsewhere brought another value.
        _ if now.covering(address).any(|other| then.named(&other.name).is_empty()) => Fate::Alive,
        _ => Fate::Orphaned,
    }
}

/// Owners of memory at one time.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// By the first byte, then by length, the longest first: the innermost owner comes last. Of
    /// several names of one range it is a declared one, then the shortest.
    by_address: Vec<Owner>,
    by_name: BTreeMap<String, Vec<ByteRange>>,
    /// The furthest end of all ranges up to each one.
    reach: Vec<u64>,
}

impl Owners {
    /// Arranges owners, whose ranges may lie in each other.
    #[must_use]
    pub fn new(owners: impl IntoIterator<Item = Owner>) -> Self {
        let order = |owner: &Owner| {
            let ByteRange { address, bytes } = owner.range;
            let name = Reverse((owner.name.len(), owner.name.clone()));
            (address, Reverse(bytes), owner.is_registered, name)
        };
        let mut by_address: Vec<Owner> =
            owners.into_iter().filter(|owner| owner.range.bytes > 0).collect();
        by_address.sort_by_cached_key(order);
        let mut by_name: BTreeMap<String, Vec<ByteRange>> = BTreeMap::new();
        let mut reach = Vec::with_capacity(by_address.len());
        let mut furthest = 0;
        for owner in &by_address {
            by_name.entry(owner.name.clone()).or_default().push(owner.range);
            furthest = furthest.max(owner.range.address.0.saturating_add(owner.range.bytes));
            reach.push(furthest);
        }
        Self { by_address, by_name, reach }
    }

    /// The innermost owner of an address.
    #[must_use]
    pub fn of(&self, address: Address) -> Option<&Owner> {
        self.covering(address).next()
    }

    /// All owners of an address, the innermost first.
    fn covering(&self, address: Address) -> impl Iterator<Item = &Owner> {
        let after = self.by_address.partition_point(|owner| owner.range.address <= address);
        let below = (0..after).rev().take_while(move |index| self.reach[*index] > address.0);
        let owners = below.map(|index| &self.by_address[index]);
        owners.filter(move |owner| owner.range.contains(address))
    }

    /// What goes by a name.
    fn named(&self, name: &str) -> &[ByteRange] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::staleness::{AT, alloc, free, range};

    fn owner(name: &str, address: u64, bytes: u64) -> Owner {
        let range = range(address, bytes);
        Owner { name: name.to_owned(), range, class: Class::Owned, is_registered: false }
    }

    fn registered(name: &str, address: u64, bytes: u64) -> Owner {
        Owner { is_registered: true, ..owner(name, address, bytes) }
    }

    /// The address after events that follow the capture of one block, with owners then and now.
    fn after(
        events: &[MemoryEvent],
        then: &[Owner],
        now: &[Owner],
        pools: &[ByteRange],
    ) -> Retained {
        let mut log = vec![alloc(1, 0x100, 0x40)];
        log.extend(events);
        let log = MemoryLog::new(&log, 1, pools);
        log.judge(AT, &Owners::new(then.iter().cloned()), &Owners::new(now.iter().cloned()))
    }

    #[test]
    fn in_place_and_under_another_name_are_alive() {
        let here = [owner("w", 0x100, 0x40)];
        let kept = after(&[alloc(2, 0x200, 0x40), free(2)], &here, &here, &[]);
        assert_eq!((kept.fate.clone(), kept.class), (Fate::Alive, Class::Owned));
        assert_eq!(kept.block, Some(StorageId(1)));
        assert!(!kept.fate.is_stale());
        assert_eq!(after(&[], &here, &[owner("v", 0x100, 0x40)], &[]).fate, Fate::Alive);
    }

    #[test]
    fn a_declared_name_keeps_it_alive_and_an_alias_that_stays_behind_does_not() {
        let config = owner("config.scale", 0x100, 0x40);
        let elsewhere = owner("config.scale", 0x300, 0x40);
        let rebound = Fate::Rebound { now: Address(0x300) };
        let fate = |then: &[Owner], now: &[Owner]| after(&[], then, now, &[]).fate;
        // The parameter had the storage all along, and the configuration names a staging tensor.
        let scale = registered("scale", 0x100, 0x40);
        let both = [config.clone(), scale.clone()];
        assert_eq!(fate(&both, &[elsewhere.clone(), scale.clone()]), Fate::Alive);
        assert_eq!(fate(&both, &[config.clone(), registered("scale", 0x300, 0x40)]), rebound);
        // What a compiled program was called with holds what the slot has left.
        let artefact = owner("compiled.inputs[3]", 0x100, 0x40);
        let both = [config.clone(), artefact.clone()];
        assert_eq!(fate(&both, &[elsewhere.clone(), artefact.clone()]), rebound);
        assert_eq!(fate(&both, &both), Fate::Alive);
        assert_eq!(fate(&both, std::slice::from_ref(&artefact)), Fate::Alive);
        // A name that is new, beside a slot that lives on elsewhere: a stash of what was replaced.
        let one = [config];
        assert_eq!(fate(&one, &[elsewhere.clone(), owner("old", 0x100, 0x40)]), rebound);
        // Two slots that changed places.
        let swapped = [one[0].clone(), owner("scale", 0x300, 0x40)];
        assert_eq!(fate(&swapped, &[elsewhere, owner("scale", 0x100, 0x40)]), rebound);
    }

    #[test]
    fn inputs_may_be_renamed_as_long_as_one_name_stays() {
        let input =
            |name: &str, address| Owner { class: Class::InputOutput, ..owner(name, address, 0x40) };
        let then = [input("buffer", 0x100), input("last", 0x100)];
        let fate = |now: &[Owner]| after(&[], &then, now, &[]).fate;
        assert_eq!(fate(&[input("buffer", 0x100), input("last", 0x300)]), Fate::Alive);
        let moved = [input("buffer", 0x300), input("last", 0x300)];
        assert_eq!(fate(&moved), Fate::Rebound { now: Address(0x300) });
    }

    #[test]
    fn what_had_no_memory_at_the_capture_was_no_address() {
        let region = range(0x1000, 0x1000);
        let (map, unmap) =
            (MemoryEvent::Map { range: region }, MemoryEvent::Unmap { range: region });
        let none = Owners::default();
        let fate = |log: &[MemoryEvent], captured| {
            MemoryLog::new(log, captured, &[]).judge(Address(0x1010), &none, &none).fate
        };
        assert_eq!(fate(&[map, unmap], 2), Fate::Alive);
        assert_eq!(fate(&[map, unmap], 1), Fate::Dangling { unmapped: true });
        let owned = Owners::new([owner("w", 0x1000, 0x40)]);
        let log = MemoryLog::new(&[map, unmap], 2, &[]);
        assert!(log.judge(Address(0x1010), &owned, &owned).fate.is_stale());
    }

    #[test]
    fn each_way_to_be_stale_is_told_apart() {
        let here = [owner("w", 0x100, 0x40)];
        let moved = [owner("w", 0x300, 0x40)];
        let fate = |events: &[MemoryEvent], now: &[Owner]| after(events, &here, now, &[]).fate;
        assert_eq!(fate(&[], &moved), Fate::Rebound { now: Address(0x300) });
        assert_eq!(fate(&[], &[]), Fate::Orphaned);
        assert_eq!(fate(&[free(1)], &moved), Fate::Dangling { unmapped: false });
        let other = [owner("x", 0x100, 0x40), moved[0].clone()];
        let reused = fate(&[free(1), alloc(2, 0x100, 0x40)], &other);
        assert_eq!(reused, Fate::Reused { by: StorageId(2), owner: Some("x".to_owned()) });
        // Its own slot got the block back: still another storage.
        assert!(fate(&[free(1), alloc(2, 0x100, 0x40)], &here).is_stale());
        let unmap = MemoryEvent::Unmap { range: range(0, 0x1000) };
        assert_eq!(fate(&[unmap], &here), Fate::Dangling { unmapped: true });
        let map = MemoryEvent::Map { range: range(0, 0x1000) };
        assert_eq!(fate(&[unmap, map], &here), Fate::Alive);
    }

    #[test]
    fn what_a_graphs_pool_takes_back_stays_the_graphs() {
        let pool = [range(0x100, 0x100)];
        let freed = after(&[free(1), alloc(2, 0x100, 0x20)], &[], &[], &pool);
        assert_eq!((freed.fate, freed.class), (Fate::Alive, Class::GraphPool));
        // Not what somebody owned in there.
        let here = [owner("scratch", 0x100, 0x40)];
        assert!(after(&[free(1)], &here, &[], &pool).fate.is_stale());
        assert!(after(&[free(1)], &[], &[], &[]).fate.is_stale());
    }

    #[test]
    fn an_address_that_nobody_knows_is_unknown_and_not_stale() {
        let log = MemoryLog::new(&[alloc(1, 0x100, 0x40)], 1, &[]);
        let none = Owners::default();
        let found = log.judge(Address(0x140), &none, &none);
        assert_eq!((found.class, found.block, found.fate), (Class::Unknown, None, Fate::Alive));
    }

    #[test]
    fn the_innermost_owner_is_the_one() {
        let owners = Owners::new([
            owner("fused", 0x100, 0x100),
            owner("first", 0x100, 0x40),
            owner("third", 0x180, 0x40),
        ]);
        let name = |address| owners.of(Address(address)).map(|owner| owner.name.as_str());
        assert_eq!(name(0x100), Some("first"));
        assert_eq!(name(0x150), Some("fused"));
        assert_eq!(name(0x190), Some("third"));
        assert_eq!(name(0x1d0), Some("fused"));
        assert_eq!(name(0x200), None);
        assert_eq!(name(0xff), None);
    }
}
