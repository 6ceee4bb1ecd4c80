//! What a rank holds of adapters: room for their factors, written in place.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_checkpoint::{Factors, Lora};
use coldproof_contract::evidence::SlotFact;
use coldproof_contract::words::{
    Address, Dtype, Factor, Generation, Packing, Policy, SlotKind, SlotName,
};
use half::bf16;

use super::Sites;
use super::sites::{Cut, Site};
use crate::arena::{Allocation, Region};
use crate::device::Device;
use crate::ranks::Failure;
use crate::slots::{SlotId, Slots, fingerprint};

/// Bytes of a BF16.
pub(super) const ELEMENT_BYTES: u64 = 2;
/// Bytes of an F32.
pub(super) const SCALE_BYTES: u64 = 4;

/// The room of one adapter. It is no part of the weights: sleep leaves it as it is.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) rank: u64,
    pub(crate) scale: Allocation,
    /// A and B of each site.
    pub(crate) factors: Vec<[Allocation; 2]>,
    /// The generation that its bytes were committed with.
    pub(super) epoch: Generation,
}

/// The adapters of one rank.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    pub(crate) sites: Sites,
    /// By name.
    pub(crate) loaded: BTreeMap<String, Room>,
    /// What adapters of the open transaction are written to, where that is not the room of their
    /// name.
    pub(super) next: BTreeMap<String, Room>,
    /// What the open transaction has written of those that were loaded before.
    pub(super) written: BTreeSet<String>,
    /// What waits beside the adapter of its name for the commit (R47).
    pub(crate) staged: Option<(String, Room)>,
}

/// The adapter of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InUse<'a> {
    sites: &'a Sites,
    room: &'a Room,
}

impl<'a> InUse<'a> {
    /// Columns of its smaller factors.
    pub(crate) const fn rank(self) -> usize {
        self.room.rank as usize
    }

    /// F32 `[1]`.
    pub(crate) const fn scale(self) -> Address {
        self.room.scale.address
    }

    /// Where it changes the product of a slot, with A and B.
    pub(crate) fn at(self, slot: SlotId) -> impl Iterator<Item = (&'a Site, [Address; 2])> {
        let sites = self.sites.all.iter().zip(&self.room.factors);
        sites
            .filter(move |(site, _)| site.slot == slot)
            .map(|(site, factors)| (site, factors.map(|factor| factor.address)))
    }
}

impl Adapters {
    /// None yet.
    pub(crate) fn of(sites: Sites) -> Self {
        Self { sites, ..Self::default() }
    }

    /// The adapter of that name.
    pub(crate) fn in_use(&self, name: &str) -> Result<InUse<'_>, Failure> {
        let unknown = || Failure::Refused(format!("no adapter `{name}` is loaded"));
        let room = self.loaded.get(name).ok_or_else(unknown)?;
        Ok(InUse { sites: &self.sites, room })
    }

    /// The slots of all adapters that are loaded.
    pub(crate) fn facts(&self, slots: &Slots, device: &str) -> Vec<SlotFact> {
        let loaded = self.loaded.iter();
        loaded.flat_map(|(name, room)| room.facts(name, &self.sites, slots, device)).collect()
    }
}

impl Room {
    /// Room for the factors of every site; what was taken is given back where not all fits.
    pub(crate) fn take(
        device: &mut Device,
        (sites, slots): (&Sites, &Slots),
        name: &str,
        rank: u64,
    ) -> Result<Self, Failure> {
        let factors = sites.all.iter().flat_map(|site| {
            [Factor::A, Factor::B].map(|factor| {
                let elements = site.shape(factor, rank).into_iter().fold(1, u64::saturating_mul);
                let slot = site.factor_slot(name, factor, slots);
                (slot, elements.saturating_mul(ELEMENT_BYTES))
            })
        });
        let mut taken = Vec::new();
        for (slot, bytes) in
            std::iter::once((SlotName::of_scaling(name), SCALE_BYTES)).chain(factors)
        {
            match device.alloc(Region::Runtime, bytes, &slot.0) {
                Ok(block) => taken.push(block),
                Err(error) => {
                    for block in taken {
                        device.free(block.storage)?;
                    }
                    return Err(error.into());
                }
            }
        }
        let scale = taken.remove(0);
        let factors = taken.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
        Ok(Self { rank, scale, factors, epoch: Generation(0) })
    }

    /// Gives it back.
    pub(crate) fn free(self, device: &mut Device) -> Result<(), Failure> {
        for block in self.blocks() {
            device.free(block.storage)?;
        }
        Ok(())
    }

    /// Its blocks: the scale, then A and B of each site.
    pub(crate) fn blocks(&self) -> Vec<Allocation> {
        std::iter::once(self.scale).chain(self.factors.iter().copied().flatten()).collect()
    }

    /// Writes the scale and every factor: zeros where the adapter has none.
    pub(crate) fn write(
        &self,
        device: &mut Device,
        sites: &Sites,
        lora: &Lora,
    ) -> Result<(), Failure> {
        device.write(self.scale.address, bytemuck::bytes_of(&lora.scale))?;
        let mut cuts: Vec<Vec<(&Cut, &Factors)>> = vec![Vec::new(); sites.all.len()];
        for (module, factors) in &lora.factors {
            if let Some(cut) = sites.cuts.get(module) {
                cuts[cut.site].push((cut, factors));
            }
        }
        let rank = self.rank as usize;
        for ((site, cuts), [a, b]) in sites.all.iter().zip(cuts).zip(&self.factors) {
            let mut matrices = vec![bf16::ZERO; site.matrices() * rank * site.k];
            for (cut, factors) in &cuts {
                let start = cut.place * rank * site.k;
                let rows = factors.a.chunks_exact((factors.inputs as usize).max(1));
                for (into, row) in matrices[start..].chunks_exact_mut(site.k.max(1)).zip(rows) {
                    into.copy_from_slice(
                        &row[cut.columns.start as usize..cut.columns.end as usize],
                    );
                }
            }
            device.write(a.address, bytemuck::cast_slice(&matrices))?;
            let mut matrices = vec![bf16::ZERO; site.matrices() * site.n * rank];
            for (cut, factors) in &cuts {
                let (start, rows) = (cut.place * site.n * rank, cut.rows);
                let own = &factors.b[rows.start as usize * rank..rows.end as usize * rank];
                matrices[start..start + own.len()].copy_from_slice(own);
            }
            device.write(b.address, bytemuck::cast_slice(&matrices))?;
        }
        Ok(())
    }

    fn facts(&self, name: &str, sites: &Sites, slots: &Slots, device: &str) -> Vec<SlotFact> {
        let scaling = (SlotName::of_scaling(name), self.scale, Dtype::F32, vec![1]);
        let factors = sites.all.iter().zip(&self.factors).flat_map(|(site, blocks)| {
            let both = [Factor::A, Factor::B].into_iter().zip(blocks);
            both.map(|(factor, block)| {
                let slot = site.factor_slot(name, factor, slots);
                (slot, *block, Dtype::Bf16, site.shape(factor, self.rank))
            })
        });
        let fact = |(slot, block, dtype, shape): (SlotName, Allocation, Dtype, Vec<u64>)| {
            let kind = if dtype == Dtype::F32 { SlotKind::Derived } else { SlotKind::Parameter };
            SlotFact {
                slot,
                slot_kind: kind,
                fingerprint: Some(fingerprint(&block, (dtype, &shape), device)),
                packing: Packing::Plain,
                logical_shape: shape,
                aliases: Vec::new(),
                policy: Policy::Refresh,
                inputs: Vec::new(),
                epoch: self.epoch,
                replaceable: false,
            }
        };
        std::iter::once(scaling).chain(factors).map(fact).collect()
    }
}

impl Site {
    /// The slot of one of its factors.
    pub(crate) fn factor_slot(&self, adapter: &str, factor: Factor, slots: &Slots) -> SlotName {
        SlotName::of_factor(adapter, &slots[self.slot].spec.name, self.slice, factor)
    }
}
