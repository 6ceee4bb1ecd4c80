//! One rank: its device, its part of the model, its loads and its graphs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use coldproof_contract::evidence::{ClaimFact, Fact};
use coldproof_contract::words::{ExpertPlacement, Generation, Packing, Rank, SlotKind};

use super::Failure;
use super::step::Captured;
use super::tiers::{TierConfig, Tiers};
use crate::adapters::{Adapters, Sites};
use crate::arena::{ArenaConfig, Region};
use crate::device::Device;
use crate::faults::Faults;
use crate::groups::Groups;
use crate::loader::{Catalogue, Hook, Load, Place, Shard, bind, read_slot};
use crate::models::{Builder, Decoder, Dims, KvShape};
use crate::slots::{SlotId, Slots};

/// What one rank is started with.
#[derive(Debug)]
pub(crate) struct WorkerConfig {
    /// Which rank.
    pub(crate) rank: Rank,
    /// What it holds of the model.
    pub(crate) place: Place,
    /// The model.
    pub(crate) dims: Arc<Dims>,
    /// The KV cache.
    pub(crate) kv: KvShape,
    /// The device's memory.
    pub(crate) arena: ArenaConfig,
    /// The tiers below the KV cache's blocks, and this rank's number in their folder.
    pub(crate) tiers: Option<(TierConfig, u32)>,
    /// Faults that are switched on.
    pub(crate) faults: Faults,
    /// This rank's ends of its groups.
    pub(crate) groups: Groups,
    /// Ends every wait once it is set.
    pub(crate) cancel: Arc<AtomicBool>,
}

/// A region's slots, copied to the host while it is unmapped.
type Backup = Vec<(SlotId, Vec<u8>)>;

/// One rank.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) rank: Rank,
    pub(crate) place: Place,
    pub(crate) shard: Shard,
    pub(crate) dims: Arc<Dims>,
    pub(crate) kv: KvShape,
    pub(crate) device: Device,
    pub(crate) slots: Slots,
    pub(crate) decoder: Arc<Decoder>,
    pub(crate) catalogue: Catalogue,
    pub(crate) hooks: Vec<Hook>,
    pub(crate) faults: Faults,
    pub(crate) graphs: Vec<Captured>,
    pub(crate) draft_graph: Option<Captured>,
    pub(crate) adapters: Adapters,
    /// Where experts are.
    pub(crate) placement: Arc<ExpertPlacement>,
    /// Slots of which every block of the KV cache has a part.
    pub(crate) paged: Vec<SlotId>,
    pub(crate) tiers: Option<Tiers>,
    /// The load that is going on.
    pub(crate) load: Option<Load>,
    /// What this rank says of itself, since it was last asked.
    pub(crate) claims: Vec<Fact>,
    /// Whether all weights and buffers were discarded since the last load.
    pub(crate) lost: bool,
    backup: Option<Backup>,
}

impl Worker {
    /// A rank with storages for its parameters and its KV cache, and nothing in them.
    pub(crate) fn new(config: WorkerConfig) -> Result<Self, Failure> {
        let mut device = Device::new(config.arena, config.groups, config.cancel)?;
        let dims = config.dims;
        let mut builder = Builder::new(&dims, config.place, config.kv);
        let decoder = Arc::new(dims.declare(&mut builder));
        let Builder { mut slots, mut catalogue, hooks, adapted, paged, .. } = builder;
        let adapters = Adapters::of(Sites::of(&slots, &catalogue, &adapted));
        know_elsewhere(&mut catalogue, &dims, config.place, config.kv);
        for id in slots.ids() {
            let spec = &slots[id].spec;
            if spec.kind == SlotKind::Parameter || spec.region == Region::KvCache {
                bind(&mut device, &mut slots, id)?;
            }
        }
        let tiers = (config.tiers).map(|(tiers, rank)| Tiers::open(tiers, rank, &slots, &paged));
        let tiers = tiers.transpose()?;
        Ok(Self {
            rank: config.rank,
            place: config.place,
            shard: config.place.shard,
            dims,
            kv: config.kv,
            device,
            slots,
            decoder,
            catalogue,
            hooks,
            faults: config.faults,
            graphs: Vec::new(),
            draft_graph: None,
            adapters,
            placement: Arc::default(),
            paged,
            tiers,
            load: None,
            claims: Vec::new(),
            lost: false,
            backup: None,
        })
    }

    /// States something of this rank.
    pub(crate) fn claim(&mut self, what: &str, value: &str) {
        let (what, value) = (what.to_owned(), value.to_owned());
        self.claims.push(Fact::Claim(ClaimFact { what, value }));
    }

    /// The load that is going on.
    pub(crate) fn load(&self) -> Result<&Load, Failure> {
        self.load.as_ref().ok_or_else(no_load)
    }

    /// The load that is going on.
    pub(crate) fn load_mut(&mut self) -> Result<&mut Load, Failure> {
        self.load.as_mut().ok_or_else(no_load)
    }

    /// Gives both regions' memory back; weights are kept on the host, and with them the blocks of
    /// the host tier, or discarded.
    pub(crate) fn sleep(&mut self, keep_weights: bool) -> Result<(), Failure> {
        if keep_weights {
            self.backup = Some(self.copy_to_host()?);
        } else {
            self.discard();
        }
        self.device.unmap(Region::Weights)?;
        Ok(self.device.unmap(Region::KvCache)?)
    }

    fn copy_to_host(&self) -> Result<Backup, Failure> {
        let mut backup = Backup::new();
        for id in self.slots.ids() {
            let slot = &self.slots[id];
            if slot.spec.region == Region::Weights && slot.storage.is_some() {
                backup.push((id, read_slot(&self.device, &self.slots, id)?));
            }
        }
        Ok(backup)
    }

    /// Nothing is known of any byte of the weights any more. A storage whose order depends on its
    /// bytes is in none, so the next load finds it in logical order; panels stay panels.
    fn discard(&mut self) {
        self.lost = true;
        self.backup = None;
        self.tiers.iter_mut().for_each(Tiers::forget);
        for id in self.slots.ids() {
            let slot = &mut self.slots[id];
            if slot.spec.region == Region::Weights {
                slot.runtime &= matches!(slot.spec.packing, Packing::Panels { .. });
                slot.epoch = Generation(0);
            }
        }
    }

    /// Takes memory for weights at the old addresses, and what the host kept of them.
    pub(crate) fn wake_weights(&mut self) -> Result<(), Failure> {
        self.device.map(Region::Weights)?;
        for (id, bytes) in self.backup.take().unwrap_or_default() {
            self.device.write(self.slots.address(id)?, &bytes)?;
        }
        Ok(())
    }

    /// Takes memory for the KV cache at the old address; it holds nothing.
    pub(crate) fn wake_kv(&mut self) -> Result<(), Failure> {
        Ok(self.device.map(Region::KvCache)?)
    }
}

/// Declares what other ranks alone take of the model.
pub(super) fn know_elsewhere(catalogue: &mut Catalogue, dims: &Dims, place: Place, kv: KvShape) {
    if place != place.of_all() {
        let mut all = Builder::new(dims, place.of_all(), kv);
        dims.declare(&mut all);
        catalogue.know_elsewhere(&all.catalogue);
    }
}

fn no_load() -> Failure {
    Failure::Refused("no load is going on; call `begin` first".to_owned())
}
