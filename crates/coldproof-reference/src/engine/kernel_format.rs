//! Updates in kernel format: the bytes of every slot that an update refreshes, as kernels read
//! them, rank by rank under the names of shards. No loader places them and no post-load follows, as
//! where vLLM is told that weights are in no checkpoint's format.
//!
//! What one slot is computed from another comes with it: a derived slot that stayed behind would be
//! of the old generation. A rank takes its own shards and passes all others by; every replica takes
//! the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use coldproof_checkpoint::TensorRef;
use coldproof_contract::words::{Fragment, Packing, Policy, SlotKind, SlotShard};

use super::EngineError;
use super::core::Core;
use super::update::twice;
use crate::faults;
use crate::loader::Move;
use crate::ranks::{Failure, Worker};
use crate::slots::{SlotId, SlotSpec};

impl Core {
    /// Whether there is a rank for each of these shards.
    pub(super) fn check_shards(&self, names: &BTreeSet<String>) -> Result<(), EngineError> {
        let topology = self.config.topology;
        for name in names {
            let shard = name.parse::<SlotShard>();
            let shard = shard.map_err(|error| EngineError::refused(error.to_string()))?;
            if !topology.contains(shard.rank()) {
                let (rank, ranks) = (shard.rank(), topology.size());
                return Err(EngineError::refused(format!(
                    "`{name}` is for rank {rank}, which is none of the {ranks} ranks (tp {}, pp \
                     {}, ep {}); leave it out",
                    topology.tp, topology.pp, topology.ep
                )));
            }
        }
        Ok(())
    }
}

/// Whether an update in kernel format delivers a slot.
fn is_delivered(spec: &SlotSpec) -> bool {
    spec.policy == Policy::Refresh && matches!(spec.kind, SlotKind::Parameter | SlotKind::Derived)
}

fn parsed(name: &str) -> Result<SlotShard, Failure> {
    name.parse::<SlotShard>().map_err(|error| Failure::Refused(error.to_string()))
}

impl Worker {
    /// Whether these have all slots that an update refreshes on this rank, and no other slot of it.
    pub(super) fn admit_kernel_promise(&self, names: &BTreeSet<String>) -> Result<(), Failure> {
        for name in names {
            self.own_slot(&parsed(name)?)?;
        }
        let own = self.slots.ids().map(|id| &self.slots[id].spec);
        let shards = own.filter(|spec| is_delivered(spec)).map(|spec| spec.name.clone());
        let mut shards = shards.map(|slot| SlotShard::new(self.rank, slot).to_string());
        match shards.find(|shard| !names.contains(shard)) {
            Some(shard) => Err(Failure::Refused(format!(
                "`{shard}` is refreshed by every update and is not delivered; an update in kernel \
                 format delivers every parameter of every rank and all that is computed from one"
            ))),
            None => Ok(()),
        }
    }

    /// The slot that a shard of this rank is for; none where it is another rank's.
    fn own_slot(&self, shard: &SlotShard) -> Result<Option<SlotId>, Failure> {
        if !shard.is_of(self.rank) {
            return Ok(None);
        }
        let own = |id: &SlotId| {
            let spec = &self.slots[*id].spec;
            spec.name == *shard.slot() && is_delivered(spec)
        };
        let found = self.slots.find(shard.slot()).filter(own);
        found.map(Some).ok_or_else(|| {
            Failure::Refused(format!(
                "rank {} has no slot `{}` that an update refreshes; leave `{shard}` out",
                shard.rank(),
                shard.slot()
            ))
        })
    }

    /// Whether a bucket may be written.
    pub(super) fn admit_kernel(&self, tensors: &[TensorRef]) -> Result<(), Failure> {
        let mut names = BTreeSet::new();
        for tensor in tensors {
            let name = tensor.name.as_str();
            if !names.insert(name) || self.load()?.received(name) {
                return Err(twice(name, name));
            }
            let Some(id) = self.own_slot(&parsed(name)?)? else { continue };
            let spec = &self.slots[id].spec;
            if (tensor.dtype, &tensor.shape) != (spec.dtype, &spec.shape)
                || tensor.bytes != spec.bytes()
            {
                return Err(Failure::Refused(format!(
                    "`{name}` is {} {:?} of {} bytes where the slot is {} {:?}; deliver the slot \
                     as this rank stores it",
                    tensor.dtype, tensor.shape, tensor.bytes, spec.dtype, spec.shape
                )));
            }
        }
        Ok(())
    }

    /// Writes the bytes of this rank's shard as they are.
    pub(super) fn apply_kernel(&mut self, name: &str, bytes: &Arc<Vec<u8>>) -> Result<(), Failure> {
        self.load_mut()?.receive(name);
        let shard = faults::taken_for(self, parsed(name)?);
        let Some(id) = self.own_slot(&shard)? else { return Ok(()) };
        self.device.write(self.slots.address(id)?, bytes)?;
        let slot = &mut self.slots[id];
        slot.runtime |= slot.spec.packing != Packing::Plain;
        let whole = Fragment::whole(&slot.spec.shape);
        self.record(&shard.to_string(), id, &[Move { source: whole.clone(), slot: whole }])
    }
}
