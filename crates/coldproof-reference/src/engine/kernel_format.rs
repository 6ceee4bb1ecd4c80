//! Updates in kernel format: the bytes of every slot that an update refreshes, as kernels read
//! them, under the slots' names. No loader places them and no post-load follows, as where vLLM is
//! told that weights are in no checkpoint's format.
//!
//! What one slot is computed from another comes with it: a derived slot that stayed behind would be
//! of the old generation.

use std::collections::BTreeSet;
use std::sync::Arc;

use coldproof_checkpoint::TensorRef;
use coldproof_contract::words::{Fragment, Packing, Policy, SlotKind, SlotName};

use super::EngineError;
use super::core::Core;
use super::update::twice;
use crate::loader::Move;
use crate::ranks::{Failure, Worker};
use crate::slots::{SlotId, SlotSpec};

impl Core {
    /// Whether an update in kernel format has a meaning here.
    pub(super) fn check_kernel_format(&self) -> Result<(), EngineError> {
        if self.config.topology.size() == 1 {
            return Ok(());
        }
        Err(EngineError::refused(
            "an update in kernel format names slots, and every rank has its own bytes of one; \
             start the engine with one rank",
        ))
    }
}

/// Whether an update in kernel format delivers a slot.
fn is_delivered(spec: &SlotSpec) -> bool {
    spec.policy == Policy::Refresh && matches!(spec.kind, SlotKind::Parameter | SlotKind::Derived)
}

impl Worker {
    /// Whether these are the slots that an update refreshes, all of them.
    pub(super) fn admit_kernel_promise(&self, slots: &BTreeSet<String>) -> Result<(), Failure> {
        let refused = |text: String| Err(Failure::Refused(text));
        for name in slots {
            self.kernel_slot(name)?;
        }
        let own = self.slots.ids().map(|id| &self.slots[id].spec);
        let mut wanted = own.filter(|spec| is_delivered(spec));
        match wanted.find(|spec| !slots.contains(&spec.name.0)) {
            Some(spec) => refused(format!(
                "`{}` is refreshed by every update and is not delivered; an update in kernel \
                 format delivers every parameter and all that is computed from one",
                spec.name
            )),
            None => Ok(()),
        }
    }

    fn kernel_slot(&self, name: &str) -> Result<SlotId, Failure> {
        let found = self.slots.find(&SlotName(name.to_owned()));
        let own = |id: &SlotId| {
            let spec = &self.slots[*id].spec;
            spec.name.0 == name && is_delivered(spec)
        };
        found.filter(own).ok_or_else(|| {
            Failure::Refused(format!("no slot `{name}` is refreshed by an update; leave it out"))
        })
    }

    /// Whether a bucket may be written.
    pub(super) fn admit_kernel(&self, tensors: &[TensorRef]) -> Result<(), Failure> {
        let mut names = BTreeSet::new();
        for tensor in tensors {
            let name = tensor.name.as_str();
            let spec = &self.slots[self.kernel_slot(name)?].spec;
            if !names.insert(name) || self.load()?.received(name) {
                return Err(twice(name, name));
            }
            if (tensor.dtype, &tensor.shape) != (spec.dtype, &spec.shape)
                || tensor.bytes != spec.bytes()
            {
                return Err(Failure::Refused(format!(
                    "`{name}` is {} {:?} of {} bytes where the slot is {} {:?}; deliver the slot \
                     as this engine stores it",
                    tensor.dtype, tensor.shape, tensor.bytes, spec.dtype, spec.shape
                )));
            }
        }
        Ok(())
    }

    /// Writes a slot's bytes as they are.
    pub(super) fn apply_kernel(&mut self, name: &str, bytes: &Arc<Vec<u8>>) -> Result<(), Failure> {
        let id = self.kernel_slot(name)?;
        self.device.write(self.slots.address(id)?, bytes)?;
        let slot = &mut self.slots[id];
        slot.runtime |= slot.spec.packing != Packing::Plain;
        let whole = Fragment::whole(&slot.spec.shape);
        self.load_mut()?.receive(name);
        self.record(name, id, &[Move { source: whole.clone(), slot: whole }])
    }
}
