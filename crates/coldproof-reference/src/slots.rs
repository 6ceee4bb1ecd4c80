//! The slots of one rank: what the forward reads, by name, and where it is stored.

use std::collections::BTreeMap;

use coldproof_contract::evidence::SlotFact;
use coldproof_contract::words::{
    Address, Dtype, Fingerprint, Generation, Packing, Policy, SlotKind, SlotName,
};

use crate::arena::{Allocation, Region};

/// Position of a slot in its table; the same on every rank of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId(usize);

/// What a layer declares about a slot.
#[derive(Clone, Debug)]
pub(crate) struct SlotSpec {
    /// Its name within the rank.
    pub(crate) name: SlotName,
    /// What it is to the forward.
    pub(crate) kind: SlotKind,
    /// Element type.
    pub(crate) dtype: Dtype,
    /// Logical shape on this rank, padding included.
    pub(crate) shape: Vec<u64>,
    /// Runtime order of storage.
    pub(crate) packing: Packing,
    /// What an update does to it.
    pub(crate) policy: Policy,
    /// Slots it is computed from.
    pub(crate) inputs: Vec<SlotName>,
    /// Where it is stored.
    pub(crate) region: Region,
}

impl SlotSpec {
    /// A bf16 parameter, stored in logical order.
    pub(crate) fn parameter(name: String, shape: &[u64]) -> Self {
        Self {
            name: SlotName(name),
            kind: SlotKind::Parameter,
            dtype: Dtype::Bf16,
            shape: shape.to_vec(),
            packing: Packing::Plain,
            policy: Policy::Refresh,
            inputs: Vec::new(),
            region: Region::Weights,
        }
    }

    /// The same slot in another runtime order.
    pub(crate) fn packed(self, packing: Packing) -> Self {
        Self { packing, ..self }
    }

    /// A slot that post-load computes from `inputs`.
    pub(crate) fn derived(name: String, dtype: Dtype, shape: &[u64], inputs: &[SlotName]) -> Self {
        Self {
            kind: SlotKind::Derived,
            dtype,
            packing: Packing::Opaque,
            inputs: inputs.to_vec(),
            ..Self::parameter(name, shape)
        }
    }

    /// A slot that no checkpoint holds and no other slot determines.
    pub(crate) fn unsourced(
        name: String,
        kind: SlotKind,
        dtype: Dtype,
        shape: &[u64],
        policy: Policy,
    ) -> Self {
        Self { kind, policy, ..Self::derived(name, dtype, shape, &[]) }
    }

    /// Number of logical elements.
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of its storage.
    pub(crate) fn bytes(&self) -> u64 {
        self.elements() * self.dtype.bytes()
    }
}

/// A slot with its storage.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// What its layer declared.
    pub(crate) spec: SlotSpec,
    /// Other names of the same storage.
    pub(crate) aliases: Vec<SlotName>,
    /// Its storage, once bound.
    pub(crate) storage: Option<Allocation>,
    /// The storage that the forward reads instead, where the registry does not know of it (F1.08).
    pub(crate) hidden: Option<Allocation>,
    /// The storage that its other names still are views of, where a load gave it another (F4.01).
    pub(crate) viewed: Option<Allocation>,
    /// Whether its bytes lie in runtime order; before post-load they lie in logical order.
    pub(crate) runtime: bool,
    /// The generation whose bytes it holds.
    pub(crate) epoch: Generation,
}

/// A slot that is used before its layer bound a storage to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot `{slot}` has no storage yet; load a checkpoint first")]
pub(crate) struct Unbound {
    /// The slot.
    pub(crate) slot: SlotName,
}

/// All slots of one rank, or those of one part of its model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    /// Slots of the parts before this one.
    before: usize,
    slots: Vec<Slot>,
    by_name: BTreeMap<SlotName, SlotId>,
}

impl Slots {
    /// None yet of a part whose slots come behind these.
    pub(crate) fn behind(&self) -> Self {
        Self { before: self.before + self.slots.len(), ..Self::default() }
    }

    /// Adds the slots of the part that comes next, under names of their own.
    pub(crate) fn append(&mut self, part: Self) {
        self.slots.extend(part.slots);
        self.by_name.extend(part.by_name);
    }

    /// Adds a slot without storage. A name that is declared twice keeps its first slot.
    pub(crate) fn declare(&mut self, spec: SlotSpec) -> SlotId {
        let id = SlotId(self.before + self.slots.len());
        self.by_name.entry(spec.name.clone()).or_insert(id);
        self.slots.push(Slot {
            spec,
            aliases: Vec::new(),
            storage: None,
            hidden: None,
            viewed: None,
            runtime: false,
            epoch: Generation(0),
        });
        id
    }

    /// Gives a slot another name.
    pub(crate) fn alias(&mut self, name: SlotName, of: SlotId) {
        self[of].aliases.push(name.clone());
        self.by_name.entry(name).or_insert(of);
    }

    /// Puts every name behind a prefix.
    pub(crate) fn nest(&mut self, prefix: &str) {
        let nested = |name: &mut SlotName| name.0.insert_str(0, prefix);
        for slot in &mut self.slots {
            nested(&mut slot.spec.name);
            slot.aliases.iter_mut().chain(&mut slot.spec.inputs).for_each(nested);
            if let Packing::ColumnsPermuted { permutation } = &mut slot.spec.packing {
                nested(permutation);
            }
        }
        let names = std::mem::take(&mut self.by_name).into_iter();
        self.by_name = names.map(|(name, id)| (SlotName(format!("{prefix}{name}")), id)).collect();
    }

    /// Ids in order of declaration.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SlotId> + use<> {
        (self.before..self.before + self.slots.len()).map(SlotId)
    }

    /// The slot of that name or alias.
    pub(crate) fn find(&self, name: &SlotName) -> Option<SlotId> {
        self.by_name.get(name).copied()
    }

    /// Where a slot's first element lies.
    pub(crate) fn address(&self, id: SlotId) -> Result<Address, Unbound> {
        let slot = &self[id];
        let unbound = || Unbound { slot: slot.spec.name.clone() };
        slot.hidden.or(slot.storage).map(|storage| storage.address).ok_or_else(unbound)
    }

    /// Where a view of a slot under another name begins.
    pub(crate) fn view_address(&self, id: SlotId) -> Result<Address, Unbound> {
        let address = self.address(id)?;
        Ok(self[id].viewed.map_or(address, |viewed| viewed.address))
    }

    /// What the engine registers of every slot and alias, by name.
    pub(crate) fn facts(&self, device: &str) -> Vec<SlotFact> {
        self.by_name.iter().map(|(name, &id)| self[id].fact(name, device)).collect()
    }
}

impl std::ops::Index<SlotId> for Slots {
    type Output = Slot;

    /// Ids come from [`Slots::declare`] alone and slots are never removed.
    fn index(&self, id: SlotId) -> &Slot {
        &self.slots[id.0 - self.before]
    }
}

impl std::ops::IndexMut<SlotId> for Slots {
    fn index_mut(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[id.0 - self.before]
    }
}

impl Slot {
    fn fact(&self, name: &SlotName, device: &str) -> SlotFact {
        let own = *name == self.spec.name;
        let names = std::iter::once(&self.spec.name).chain(&self.aliases);
        let storage = if own { self.storage } else { self.viewed.or(self.storage) };
        SlotFact {
            slot: name.clone(),
            slot_kind: if own { self.spec.kind } else { SlotKind::Alias },
            fingerprint: storage
                .map(|storage| fingerprint(&storage, (self.spec.dtype, &self.spec.shape), device)),
            packing: self.spec.packing.clone(),
            logical_shape: self.spec.shape.clone(),
            aliases: names.filter(|&other| other != name).cloned().collect(),
            policy: self.spec.policy,
            inputs: self.spec.inputs.clone(),
            epoch: self.epoch,
            replaceable: false,
        }
    }
}

/// What the engine registers of a storage that holds elements of this type and shape.
pub(crate) fn fingerprint(
    storage: &Allocation,
    (dtype, shape): (Dtype, &[u64]),
    device: &str,
) -> Fingerprint {
    Fingerprint {
        storage: storage.storage,
        address: storage.address,
        storage_bytes: storage.bytes,
        shape: shape.to_vec(),
        stride: contiguous(shape),
        offset: 0,
        dtype,
        device: device.to_owned(),
    }
}

fn contiguous(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use coldproof_contract::words::StorageId;

    #[test]
    fn an_alias_has_its_owners_storage_and_its_own_kind() {
        let mut slots = Slots::default();
        let id = slots.declare(SlotSpec::parameter("embed".to_owned(), &[4, 3]));
        slots.alias(SlotName::from("head"), id);
        slots[id].storage = Some(Allocation {
            storage: StorageId(7),
            address: Address(512),
            bytes: 24,
            region: Region::Weights,
        });
        let facts = slots.facts("arena:0");
        assert_eq!(facts.len(), 2);
        assert_eq!(facts[0].fingerprint, facts[1].fingerprint);
        assert_eq!(facts[0].aliases, [SlotName::from("head")]);
        assert_eq!(facts[1].aliases, [SlotName::from("embed")]);
        assert_eq!(facts[1].slot_kind, SlotKind::Alias);
        assert_eq!(facts[0].fingerprint.as_ref().map(|f| f.is_contiguous()), Some(true));
    }

    #[test]
    fn a_slot_without_storage_has_no_address() {
        let mut slots = Slots::default();
        let id = slots.declare(SlotSpec::parameter("norm".to_owned(), &[4]));
        assert_eq!(slots.address(id), Err(Unbound { slot: SlotName::from("norm") }));
        assert_eq!(slots.facts("arena:0")[0].fingerprint, None);
    }
}
