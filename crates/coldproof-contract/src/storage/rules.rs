//! The slot registry: every slot with its fingerprint, sealed before capture, compared after an
//! update. The check seals one of the slots that a graph retains, for each rank and arm.
//!
//! The comparison sees 1,000,000 slots in a few milliseconds: layouts are interned when they are
//! observed, and a slot that did not change costs the comparison of five words.

use std::collections::BTreeMap;
use std::fmt;

use crate::words::{Address, Dtype, Fingerprint, SlotName, StorageId};

/// How a registry holds captured storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It does not keep them alive: a storage that is freed shows as expired.
    Weak,
    /// It keeps them alive: a rebound slot leaves its old storage readable, never reused. An
    /// expired slot then means that the hold itself was broken.
    Strong,
}

/// A slot of a sealed registry, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotIndex(u32);

/// What an engine says of a slot after an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting<'a> {
    /// It is registered and lies here.
    At(&'a Fingerprint),
    /// It is registered and its storage is gone.
    Gone,
}

/// One of the eight fields of a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Which allocation.
    Storage,
    /// Address of the first element.
    Address,
    /// Bytes of the whole storage.
    StorageBytes,
    /// Elements along each axis.
    Shape,
    /// Elements between neighbours along each axis.
    Stride,
    /// Elements before the first one.
    Offset,
    /// Element type.
    Dtype,
    /// Where the storage lies.
    Device,
}

impl Field {
    /// Whether it says where the slot is, and not how it is laid out.
    #[must_use]
    pub const fn is_place(self) -> bool {
        matches!(self, Self::Storage | Self::Address)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Storage => "storage",
            Self::Address => "address",
            Self::StorageBytes => "storage size",
            Self::Shape => "shape",
            Self::Stride => "stride",
            Self::Offset => "offset",
            Self::Dtype => "dtype",
            Self::Device => "device",
        })
    }
}

/// What became of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every field is what was captured.
    Same,
    /// It is no longer registered.
    Missing,
    /// Its storage was freed.
    Expired,
    /// It has another storage, or lies at another address. All fields that differ are named.
    Rebound(Vec<Field>),
    /// The storage is the same and is described otherwise.
    Respecified(Vec<Field>),
}

/// A slot that is not the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The slot.
    pub slot: SlotName,
    /// What became of it.
    pub outcome: Outcome,
    /// What was captured.
    pub captured: Fingerprint,
    /// What is there now.
    pub now: Option<Fingerprint>,
}

/// A slot that cannot be registered or observed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Registered twice.
    #[error("`{slot}` is registered twice; give each slot one name and list others as aliases")]
    Twice {
        /// The slot.
        slot: SlotName,
    },
    /// Observed, and unknown to the registry.
    #[error("`{slot}` appeared after the registry was sealed; register it before capture")]
    Late {
        /// The slot.
        slot: SlotName,
    },
    /// More slots than a registry holds.
    #[error("a registry holds at most {} slots", u32::MAX)]
    Full,
}

/// Slots, while they are being registered.
#[derive(Clone, Debug, Default)]
pub struct RegistryDraft {
    slots: BTreeMap<SlotName, Fingerprint>,
}

impl RegistryDraft {
    /// Registers a slot.
    ///
    /// # Errors
    /// A name that is registered already, or too many slots.
    pub fn register(
        &mut self,
        slot: SlotName,
        fingerprint: Fingerprint,
    ) -> Result<(), RegistryError> {
        if self.slots.contains_key(&slot) {
            return Err(RegistryError::Twice { slot });
        }
        if self.slots.len() >= GONE as usize {
            return Err(RegistryError::Full);
        }
        self.slots.insert(slot, fingerprint);
        Ok(())
    }

    /// Makes the registry final. Do so before capture.
    #[must_use]
    pub fn seal(self, hold: Hold) -> Registry {
        let mut registry = Registry {
            hold,
            names: Vec::with_capacity(self.slots.len()),
            captured: Vec::with_capacity(self.slots.len()),
            layouts: Layouts::default(),
        };
        for (slot, fingerprint) in self.slots {
            registry.names.push(slot);
            let layout = registry.layouts.intern(&fingerprint);
            registry.captured.push(Compact::of(&fingerprint, layout));
        }
        registry
    }
}

/// The slots that were there at capture. It cannot be changed.
#[derive(Clone, Debug)]
pub struct Registry {
    hold: Hold,
    names: Vec<SlotName>,
    captured: Vec<Compact>,
    layouts: Layouts,
}

/// What an engine says of every registered slot after an update.
#[derive(Clone, Debug)]
pub struct Snapshot<'r> {
    registry: &'r Registry,
    layouts: Layouts,
    now: Vec<Compact>,
}

impl Registry {
    /// How it holds storages.
    #[must_use]
    pub const fn hold(&self) -> Hold {
        self.hold
    }

    /// All slots, by name.
    #[must_use]
    pub fn names(&self) -> &[SlotName] {
        &self.names
    }

    /// The position of a slot.
    #[must_use]
    pub fn index(&self, slot: &SlotName) -> Option<SlotIndex> {
        let found = self.names.binary_search(slot).ok()?;
        u32::try_from(found).ok().map(SlotIndex)
    }

    /// An empty snapshot: until they are seen, all slots are missing.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        let now = vec![Compact::MISSING; self.names.len()];
        Snapshot { registry: self, layouts: self.layouts.clone(), now }
    }
}

impl Snapshot<'_> {
    /// Notes what is there now, by name.
    ///
    /// # Errors
    /// A slot that the registry does not know.
    pub fn see(&mut self, slot: &SlotName, sighting: Sighting<'_>) -> Result<(), RegistryError> {
        let late = || RegistryError::Late { slot: slot.clone() };
        let index = self.registry.index(slot).ok_or_else(late)?;
        self.see_at(index, sighting);
        Ok(())
    }

    /// Notes what is there now. A position of another registry is ignored.
    pub fn see_at(&mut self, index: SlotIndex, sighting: Sighting<'_>) {
        let compact = match sighting {
            Sighting::At(fingerprint) => Compact::of(fingerprint, self.layouts.intern(fingerprint)),
            Sighting::Gone => Compact::GONE,
        };
        if let Some(now) = self.now.get_mut(index.0 as usize) {
            *now = compact;
        }
    }

    /// Slots that are not what they were at capture, by name. Costs nothing for those that are.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let pairs = self.registry.captured.iter().zip(&self.now).enumerate();
        let differing = pairs.filter(|(_, (captured, now))| captured != now);
        differing.filter_map(|(index, (captured, now))| self.change(index, captured, now)).collect()
    }

    #[cold]
    fn change(&self, index: usize, captured: &Compact, now: &Compact) -> Option<Change> {
        let outcome = self.outcome(captured, now);
        if outcome == Outcome::Same {
            return None;
        }
        Some(Change {
            slot: self.registry.names.get(index)?.clone(),
            outcome,
            captured: self.layouts.fingerprint(captured)?,
            now: self.layouts.fingerprint(now),
        })
    }

    fn outcome(&self, captured: &Compact, now: &Compact) -> Outcome {
        if now.layout == MISSING {
            return Outcome::Missing;
        }
        if now.layout == GONE {
            return Outcome::Expired;
        }
        let fields = self.fields(captured, now);
        if fields.iter().any(|field| field.is_place()) {
            Outcome::Rebound(fields)
        } else if fields.is_empty() {
            Outcome::Same
        } else {
            Outcome::Respecified(fields)
        }
    }

    fn fields(&self, a: &Compact, b: &Compact) -> Vec<Field> {
        let (Some(x), Some(y)) = (self.layouts.get(a.layout), self.layouts.get(b.layout)) else {
            return Vec::new();
        };
        let differs = [
            (Field::Storage, a.storage != b.storage),
            (Field::Address, a.address != b.address),
            (Field::StorageBytes, a.storage_bytes != b.storage_bytes),
            (Field::Shape, x.shape != y.shape),
            (Field::Stride, x.stride != y.stride),
            (Field::Offset, a.offset != b.offset),
            (Field::Dtype, x.dtype != y.dtype),
            (Field::Device, x.device != y.device),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field).collect()
    }
}

/// Layout of a slot that is not registered now.
const MISSING: u32 = u32::MAX;
/// Layout of a slot whose storage is gone.
const GONE: u32 = u32::MAX - 1;

/// A fingerprint of five words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Compact {
    storage: u64,
    address: u64,
    storage_bytes: u64,
    offset: u64,
    layout: u32,
}

impl Compact {
    const MISSING: Self =
        Self { storage: 0, address: 0, storage_bytes: 0, offset: 0, layout: MISSING };
    const GONE: Self = Self { layout: GONE, ..Self::MISSING };

    const fn of(fingerprint: &Fingerprint, layout: u32) -> Self {
        Self {
            storage: fingerprint.storage.0,
            address: fingerprint.address.0,
            storage_bytes: fingerprint.storage_bytes,
            offset: fingerprint.offset,
            layout,
        }
    }
}

/// What slots have in common: a model has few layouts and many slots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Layout {
    shape: Vec<u64>,
    stride: Vec<u64>,
    dtype: Dtype,
    device: String,
}

#[derive(Clone, Debug, Default)]
struct Layouts {
    numbers: BTreeMap<Layout, u32>,
    layouts: Vec<Layout>,
}

impl Layouts {
    fn intern(&mut self, fingerprint: &Fingerprint) -> u32 {
        let layout = Layout {
            shape: fingerprint.shape.clone(),
            stride: fingerprint.stride.clone(),
            dtype: fingerprint.dtype,
            device: fingerprint.device.clone(),
        };
        if let Some(&number) = self.numbers.get(&layout) {
            return number;
        }
        // Two snapshots' worth of slots is the most there can be: far below the two marks.
        let number = u32::try_from(self.layouts.len()).unwrap_or(GONE).min(GONE - 1);
        self.layouts.push(layout.clone());
        self.numbers.insert(layout, number);
        number
    }

    fn get(&self, number: u32) -> Option<&Layout> {
        self.layouts.get(number as usize)
    }

    fn fingerprint(&self, compact: &Compact) -> Option<Fingerprint> {
        let layout = self.get(compact.layout)?;
        Some(Fingerprint {
            storage: StorageId(compact.storage),
            address: Address(compact.address),
            storage_bytes: compact.storage_bytes,
            shape: layout.shape.clone(),
            stride: layout.stride.clone(),
            offset: compact.offset,
            dtype: layout.dtype,
            device: layout.device.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(storage: u64) -> Fingerprint {
        Fingerprint {
            storage: StorageId(storage),
            address: Address(storage * 0x100),
            storage_bytes: 48,
            shape: vec![2, 3],
            stride: vec![3, 1],
            offset: 0,
            dtype: Dtype::F32,
            device: "arena:0".to_owned(),
        }
    }

    fn registry() -> Registry {
        let mut draft = RegistryDraft::default();
        draft.register("a".into(), print(1)).unwrap();
        draft.register("b".into(), print(2)).unwrap();
        draft.seal(Hold::Weak)
    }

    /// What became of `b` when it is seen like this and `a` is unchanged.
    fn outcome(b: Option<Sighting<'_>>) -> Outcome {
        let registry = registry();
        let mut snapshot = registry.snapshot();
        snapshot.see(&"a".into(), Sighting::At(&print(1))).unwrap();
        if let Some(sighting) = b {
            snapshot.see(&"b".into(), sighting).unwrap();
        }
        let changes = snapshot.changes();
        assert!(changes.iter().all(|change| change.slot == "b".into()));
        changes.into_iter().next().map_or(Outcome::Same, |change| change.outcome)
    }

    fn moved(storage: u64, change: impl Fn(&mut Fingerprint)) -> Fingerprint {
        let mut moved = print(storage);
        change(&mut moved);
        moved
    }

    #[test]
    fn every_outcome_is_told_from_the_others() {
        assert_eq!(outcome(Some(Sighting::At(&print(2)))), Outcome::Same);
        assert_eq!(outcome(None), Outcome::Missing);
        assert_eq!(outcome(Some(Sighting::Gone)), Outcome::Expired);
        let rebound = Outcome::Rebound(vec![Field::Storage, Field::Address]);
        assert_eq!(outcome(Some(Sighting::At(&print(3)))), rebound);
    }

    #[test]
    fn a_reused_address_is_another_storage() {
        let reused = moved(3, |print| print.address = Address(0x200));
        let outcome = outcome(Some(Sighting::At(&reused)));
        assert_eq!(outcome, Outcome::Rebound(vec![Field::Storage]));
    }

    #[test]
    fn each_field_of_a_layout_is_named() {
        type Change = fn(&mut Fingerprint);
        let changes: [(Field, Change); 6] = [
            (Field::StorageBytes, |print| print.storage_bytes = 64),
            (Field::Shape, |print| print.shape = vec![3, 2]),
            (Field::Stride, |print| print.stride = vec![1, 2]),
            (Field::Offset, |print| print.offset = 4),
            (Field::Dtype, |print| print.dtype = Dtype::I32),
            (Field::Device, |print| print.device = "cpu".to_owned()),
        ];
        for (field, change) in changes {
            let now = moved(2, change);
            let outcome = outcome(Some(Sighting::At(&now)));
            assert_eq!(outcome, Outcome::Respecified(vec![field]));
        }
    }

    #[test]
    fn names_are_registered_once_and_before_the_seal() {
        let mut draft = RegistryDraft::default();
        draft.register("a".into(), print(1)).unwrap();
        let twice = RegistryError::Twice { slot: "a".into() };
        assert_eq!(draft.register("a".into(), print(2)), Err(twice));
        let registry = draft.seal(Hold::Strong);
        let late = RegistryError::Late { slot: "z".into() };
        assert_eq!(registry.snapshot().see(&"z".into(), Sighting::Gone), Err(late));
    }

    #[test]
    fn a_change_shows_what_was_and_what_is() {
        let registry = registry();
        let mut snapshot = registry.snapshot();
        snapshot.see(&"a".into(), Sighting::At(&print(9))).unwrap();
        snapshot.see(&"b".into(), Sighting::At(&print(2))).unwrap();
        let change = snapshot.changes().remove(0);
        assert_eq!((change.captured, change.now), (print(1), Some(print(9))));
    }
}
