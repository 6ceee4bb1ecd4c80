//! What the storage check reads: captured addresses, the blocks under them, their owners.

use std::collections::BTreeMap;

use crate::evidence::{
    AllocFact, ArgFact, ArmView, Fact, NodeFact, Observed, RegionFact, Seen, SlotFact,
};
use crate::words::{Address, ByteRange, Rank, StorageId};

/// A block and when it was handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'r> {
    /// The block.
    pub fact: &'r AllocFact,
    /// Ordinal of the step.
    pub step: u32,
    /// Ordinal in (arm, step, rank).
    pub seq: u64,
}

/// What became of a captured block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate<'r> {
    /// When it was freed: (step, seq).
    pub freed: Option<(u32, u64)>,
    /// The block that was handed out over it afterwards.
    pub reused: Option<Block<'r>>,
}

/// A pointer that a graph retains.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapturedArg<'r> {
    /// The node.
    pub node: Observed<Seen<'r, NodeFact>>,
    /// The pointer.
    pub arg: &'r ArgFact,
    /// The block that it pointed into at capture; absent where there was none.
    pub block: Option<Block<'r>>,
    /// The slot that was registered there at capture.
    pub owner: Option<&'r SlotFact>,
}

/// Slots of one rank by the first byte of each.
pub(super) type ByAddress<'r> = BTreeMap<Address, &'r SlotFact>;

/// The slot of a block that an address lies in, the innermost where slots are views of each other.
/// An alias gives way to the slot that owns the storage.
#[must_use]
pub(super) fn owner<'r>(
    slots: &ByAddress<'r>,
    block: Option<Block<'r>>,
    address: Address,
) -> Option<&'r SlotFact> {
    let first = block.map_or(address, |block| block.fact.address);
    let mut below = slots.range(first..=address).rev();
    below.find(|(_, slot)| covers(slot, address)).map(|(_, slot)| *slot)
}

/// Whether an address lies in the storage that a slot is registered with.
#[must_use]
pub(super) fn covers(slot: &SlotFact, address: Address) -> bool {
    slot.fingerprint.as_ref().is_some_and(|print| {
        ByteRange { address: print.address, bytes: print.bytes().max(1) }.contains(address)
    })
}

/// Arranges registered slots by address.
pub(super) fn by_address<'r>(slots: impl Iterator<Item = &'r SlotFact>) -> ByAddress<'r> {
    let mut map = ByAddress::new();
    for slot in slots {
        let Some(print) = &slot.fingerprint else { continue };
        let alias = slot.slot_kind == crate::words::SlotKind::Alias;
        if !alias || !map.contains_key(&print.address) {
            map.insert(print.address, slot);
        }
    }
    map
}

/// The blocks that live on one rank when its graphs are captured, and what became of them.
#[derive(Debug, Default)]
pub(super) struct Blocks<'r> {
    live: BTreeMap<Address, Block<'r>>,
    captured: Option<BTreeMap<Address, Block<'r>>>,
    fates: BTreeMap<StorageId, Fate<'r>>,
    regions: Vec<(u32, u64, &'r RegionFact)>,
}

impl<'r> Blocks<'r> {
    /// Reads the allocator's log of one rank.
    #[must_use]
    pub(super) fn of(arm: &ArmView<'r>, rank: Rank) -> Self {
        let mut blocks = Self::default();
        for event in arm.events.iter().filter(|event| event.rank == rank) {
            match &event.fact {
                Fact::Alloc(fact) => {
                    let block = Block { fact, step: event.step, seq: event.seq };
                    blocks.alloc(block);
                }
                Fact::Free(fact) => {
                    blocks.live.remove(&fact.address);
                    if blocks.captured.is_some() {
                        let fate = blocks.fates.entry(fact.storage).or_default();
                        fate.freed.get_or_insert((event.step, event.seq));
                    }
                }
                Fact::Region(fact) => blocks.regions.push((event.step, event.seq, fact)),
                Fact::Node(_) if blocks.captured.is_none() => {
                    blocks.captured = Some(blocks.live.clone());
                }
                _ => {}
            }
        }
        blocks
    }

    fn alloc(&mut self, block: Block<'r>) {
        let range = ByteRange { address: block.fact.address, bytes: block.fact.bytes };
        if let Some(captured) = &self.captured {
            let below = captured.range(..Address(range.address.0.saturating_add(range.bytes)));
            for (address, old) in below.rev().filter(|(_, old)| old.fact.bytes > 0) {
                if !(ByteRange { address: *address, bytes: old.fact.bytes }).overlaps(range) {
                    break;
                }
                if let Some(fate) = self.fates.get_mut(&old.fact.storage) {
                    fate.reused.get_or_insert(block);
                }
            }
        }
        self.live.insert(block.fact.address, block);
    }

    /// The block that this address pointed into at capture.
    #[must_use]
    pub(super) fn at_capture(&self, address: Address) -> Option<Block<'r>> {
        let (_, block) = self.captured.as_ref()?.range(..=address).next_back()?;
        let range = ByteRange { address: block.fact.address, bytes: block.fact.bytes };
        range.contains(address).then_some(*block)
    }

    /// The region that an address lies in, and when it was unmapped, where it was unmapped in or
    /// before this step and not mapped again by then: (region, step, seq).
    #[must_use]
    pub(super) fn unmapped(&self, address: Address, step: u32) -> Option<(&'r str, u32, u64)> {
        let of = |fact: &RegionFact| ByteRange { address: fact.address, bytes: fact.bytes };
        let until = self.regions.iter().rev().filter(|(when, _, _)| *when <= step);
        let (when, seq, last) =
            until.into_iter().find(|(_, _, fact)| of(fact).contains(address))?;
        (!last.mapped).then_some((last.region.as_str(), *when, *seq))
    }

    /// What became of it since.
    #[must_use]
    pub(super) fn fate(&self, block: Block<'r>) -> Fate<'r> {
        self.fates.get(&block.fact.storage).copied().unwrap_or_default()
    }
}
