//! What a rank holds of adapters: room for their factors, written in place.

use std::collections::BTreeMap;

use coldproof_checkpoint::{Factors, Lora};
use coldproof_contract::words::Address;
use half::bf16;

use super::Sites;
use super::sites::{Cut, Site};
use crate::arena::{Allocation, Region};
use crate::device::Device;
use crate::ranks::{Failure, Worker};
use crate::slots::SlotId;

/// The largest rank that is taken.
const RANK_MAX: u64 = 512;
/// Bytes of a BF16.
const ELEMENT_BYTES: u64 = 2;
/// Bytes of an F32.
const SCALE_BYTES: u64 = 4;

/// The room of one adapter. It is no part of the weights: sleep leaves it as it is.
#[derive(Debug)]
struct Room {
    rank: u64,
    scale: Allocation,
    /// A and B of each site.
    factors: Vec<[Allocation; 2]>,
}

/// The adapters of one rank.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    sites: Sites,
    /// By name.
    loaded: BTreeMap<String, Room>,
    /// What the next adapter is written to, where that is not the room of its name.
    next: Option<Room>,
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
}

impl Room {
    /// Room for the factors of every site; what was taken is given back where not all fits.
    fn take(device: &mut Device, sites: &Sites, name: &str, rank: u64) -> Result<Self, Failure> {
        let mut taken = Vec::new();
        let sizes = sites.all.iter().flat_map(|site| {
            [site.k, site.n].map(|extent| site.matrices() as u64 * extent as u64 * rank)
        });
        let bytes = sizes.map(|elements| elements.saturating_mul(ELEMENT_BYTES));
        for bytes in std::iter::once(SCALE_BYTES).chain(bytes) {
            match device.alloc(Region::Runtime, bytes, &format!("adapter.{name}")) {
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
        Ok(Self { rank, scale, factors })
    }

    fn free(self, device: &mut Device) -> Result<(), Failure> {
        for block in std::iter::once(self.scale).chain(self.factors.into_iter().flatten()) {
            device.free(block.storage)?;
        }
        Ok(())
    }

    /// Writes every factor: zeros where the adapter has none.
    fn write(&self, device: &mut Device, sites: &Sites, lora: &Lora) -> Result<(), Failure> {
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
}

impl Worker {
    /// Whether every factor is of a module that an adapter may change, in its shape.
    pub(crate) fn check_adapter(&self, lora: &Lora) -> Result<(), Failure> {
        let refused = |text: String| Err(Failure::Refused(text));
        let rank = lora.adapter.rank;
        if rank > RANK_MAX {
            return refused(format!("the adapter has rank {rank}; the most is {RANK_MAX}"));
        }
        let mut changed: BTreeMap<(usize, usize), &str> = BTreeMap::new();
        for (module, factors) in &lora.factors {
            let name = format!("{module}.weight");
            let Some(source) = self.catalogue.source(&name) else {
                // Another stage has it. A second name of a tensor is no projection of its own.
                if self.catalogue.is_elsewhere(&name) {
                    continue;
                }
                if self.catalogue.repeated_by(&name).is_some() {
                    return refused(not_computed(module));
                }
                return refused(format!(
                    "the adapter changes the module `{module}`, which this model does not have; \
                     load an adapter of this model"
                ));
            };
            let Some(cut) = self.adapters.sites.cuts.get(module) else {
                return refused(not_computed(module));
            };
            if let Some(other) = changed.insert((cut.site, cut.place), module) {
                return refused(format!(
                    "the adapter changes one module as `{other}` and as `{module}`; keep one"
                ));
            }
            let found = [factors.outputs, factors.inputs];
            if source.shape != found {
                return refused(format!(
                    "the adapter's factors of `{module}` make a matrix of {found:?} where this \
                     model has {:?}",
                    source.shape
                ));
            }
        }
        Ok(())
    }

    /// Takes room for an adapter where that of its name does not fit.
    pub(crate) fn make_room(&mut self, name: &str, rank: u64) -> Result<(), Failure> {
        if self.adapters.loaded.get(name).is_none_or(|room| room.rank != rank) {
            let room = Room::take(&mut self.device, &self.adapters.sites, name, rank)?;
            self.adapters.next = Some(room);
        }
        Ok(())
    }

    /// Gives room back that nothing was written to.
    pub(crate) fn give_room_back(&mut self) -> Result<(), Failure> {
        self.adapters.next.take().map_or(Ok(()), |room| room.free(&mut self.device))
    }

    /// Writes an adapter, over that of its name where there is one.
    pub(crate) fn write_adapter(&mut self, name: &str, lora: &Lora) -> Result<(), Failure> {
        let Adapters { sites, loaded, next } = &mut self.adapters;
        if let Some(room) = next.take()
            && let Some(old) = loaded.insert(name.to_owned(), room)
        {
            old.free(&mut self.device)?;
        }
        loaded.get(name).map_or(Ok(()), |room| room.write(&mut self.device, sites, lora))
    }
}

fn not_computed(module: &str) -> String {
    format!(
        "the adapter changes the module `{module}`; this engine computes adapters of the \
         projections of attention, MLP and single experts"
    )
}
