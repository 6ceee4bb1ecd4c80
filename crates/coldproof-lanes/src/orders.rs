//! The order in which an engine stores what it packs, learned from sentinels that are loaded cold:
//! with it a packed slot is read back by source, and one that a reload left in another order is
//! told from one that holds other elements.

use std::collections::BTreeMap;

use coldproof_checkpoint::SentinelPlan;
use coldproof_contract::digest::{self, SourceKey};
use coldproof_contract::evidence::{
    ArmHeader, Fact, LaneName, PieceContent, ReorderedFact, SlotFact,
};
use coldproof_contract::words::{ByteRange, Dtype, Packing, Rank, SlotKind, SlotName, StepName};

use crate::driver::{ArmResult, Driver};
use crate::engine::{EngineUnderTest, ReadBack, ReadBackRequest, Reply};
use crate::lane::Lane;
use crate::origins;
use crate::session::{Slots, load, slots_of};

/// The element of a source that a stored element is.
type Element = (usize, u64);

/// Stored orders of packed slots.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// Names that elements refer to.
    sources: Vec<String>,
    slots: BTreeMap<(Rank, SlotName), Vec<Element>>,
}

/// The bytes of a slot, once for each sentinel checkpoint.
type Loads = (Dtype, Vec<Vec<u8>>);

/// The bytes of packed slots as they are stored.
#[derive(Debug, Default)]
pub(crate) struct Stored(BTreeMap<(Rank, SlotName), Loads>);

/// Whether a slot's order is the engine's own.
fn is_packed(slot: &SlotFact) -> bool {
    slot.packing == Packing::Opaque && slot.slot_kind == SlotKind::Parameter
}

/// Loads every sentinel cold, where the engine packs any parameter, and decodes what is stored.
pub(crate) fn learn(lane: &mut Lane<'_, '_>, slots: &Slots) -> Orders {
    let mut orders = Orders::default();
    let inputs = lane.inputs;
    let Some(plan) = &inputs.sentinel_plan else { return orders };
    if !slots.values().any(is_packed) {
        return orders;
    }
    let mut stored = Stored::default();
    for (digit, sentinel) in inputs.sentinels.iter().enumerate() {
        let arm = format!("order-{digit}");
        let header = ArmHeader::new(&arm, LaneName::Differential, inputs.topology, None);
        let last = digit + 1 == inputs.sentinels.len();
        lane.arm(header, |_, driver| {
            load(driver, sentinel)?;
            let slots = slots_of(&driver.claims()?);
            stored.read(driver, &slots)?;
            if last {
                orders = decode(plan, std::mem::take(&mut stored));
                orders.record(driver, plan);
            }
            Ok(())
        });
    }
    orders
}

impl Stored {
    /// Reads every packed slot as it is stored.
    pub(crate) fn read(&mut self, driver: &mut Driver<'_, '_>, slots: &Slots) -> ArmResult<()> {
        let packed: Vec<_> = slots.iter().filter(|(_, slot)| is_packed(slot)).collect();
        if packed.is_empty() {
            return Ok(());
        }
        driver.step(StepName::ReadBack, |engine| {
            for ((rank, name), slot) in packed {
                let Some(print) = slot.fingerprint.as_ref() else { continue };
                let range = ByteRange { address: print.address, bytes: print.bytes() };
                let bytes = engine.read(*rank, range)?;
                let key = (*rank, name.clone());
                self.0.entry(key).or_insert_with(|| (print.dtype, Vec::new())).1.push(bytes);
            }
            Ok(())
        })
    }
}

/// The order of every slot of which each stored element came from a source.
pub(crate) fn decode(plan: &SentinelPlan, stored: Stored) -> Orders {
    let slots = stored.0.into_iter().filter_map(|(key, (dtype, loads))| {
        let origins = plan.decode_slot(dtype, &loads).into_iter();
        let elements: Option<Vec<Element>> =
            origins.map(|origin| origin.map(|origin| (origin.source, origin.element))).collect();
        Some((key, elements?))
    });
    let sources = plan.sources().iter().map(|spec| spec.name.clone()).collect();
    Orders { slots: slots.collect(), sources }
}

impl Orders {
    /// Records every order as evidence.
    pub(crate) fn record(&self, driver: &mut Driver<'_, '_>, plan: &SentinelPlan) {
        for ((rank, slot), elements) in &self.slots {
            let origins = elements.iter().copied().map(Some);
            driver.record(*rank, Fact::Order(origins::fact(plan, slot.clone(), origins)));
        }
    }

    /// Puts what is stored now in the order that was learned: `now` is the order of a live engine.
    pub(crate) fn reorder(
        &self,
        now: &Self,
        driver: &mut Driver<'_, '_>,
        slots: &Slots,
    ) -> ArmResult<()> {
        let differing: Vec<_> = (self.slots.iter())
            .filter_map(|(key, cold)| Some((key, cold, now.slots.get(key)?, slots.get(key)?)))
            .filter(|(_, cold, live, _)| cold != live)
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        let facts = driver.step(StepName::ReadBack, |engine| {
            let mut facts = Vec::new();
            for ((rank, name), cold, live, slot) in differing {
                let Some(print) = slot.fingerprint.as_ref() else { continue };
                let range = ByteRange { address: print.address, bytes: print.bytes() };
                let bytes = engine.read(*rank, range)?;
                let size = print.dtype.bytes() as usize;
                if let Some(bytes) = gather(&bytes, size, &places(live), cold.iter()) {
                    let content = digest::content(&bytes);
                    facts.push((*rank, ReorderedFact { slot: name.clone(), content }));
                }
            }
            Ok(facts)
        })?;
        for (rank, fact) in facts {
            driver.record(rank, Fact::Reordered(fact));
        }
        Ok(())
    }

    /// Reads a packed slot back by source; nothing where its order is not known.
    pub(crate) fn read_back(
        &self,
        engine: &mut dyn EngineUnderTest,
        (rank, slot): (Rank, &SlotName),
        request: &ReadBackRequest,
    ) -> Reply<Option<ReadBack>> {
        let Some(order) = self.slots.get(&(rank, slot.clone())) else { return Ok(None) };
        if request.packing != Packing::Opaque || request.pieces.is_empty() {
            return Ok(None);
        }
        let size = request.dtype.bytes() as usize;
        let range = ByteRange { address: request.address, bytes: (order.len() * size) as u64 };
        let stored = engine.read(rank, range)?;
        Ok(self.pieces(request, order, &stored))
    }

    fn pieces(
        &self,
        request: &ReadBackRequest,
        order: &[Element],
        stored: &[u8],
    ) -> Option<ReadBack> {
        let size = request.dtype.bytes() as usize;
        let places = places(order);
        let (mut pieces, mut shares) = (Vec::new(), Vec::new());
        for wanted in &request.pieces {
            let source = self.sources.binary_search(&wanted.source).ok()?;
            let mut elements = Vec::new();
            let fragment = &wanted.piece.source_fragment;
            fragment.for_each_row(&wanted.source_shape, |first, length| {
                elements.extend((first..first + length).map(|element| (source, element)));
            });
            let bytes = gather(stored, size, &places, elements.iter())?;
            let key = SourceKey::new(&wanted.source, request.dtype, &wanted.source_shape).ok()?;
            shares.push(digest::digest_piece(&key, fragment, &bytes).ok()?);
            pieces.push(PieceContent {
                source: wanted.source.clone(),
                source_fragment: fragment.clone(),
                content: digest::content(&bytes),
            });
        }
        let content = Some(digest::content(stored));
        Some(ReadBack { content, pieces, shares, padding_written: 0 })
    }
}

/// Elements with the places where they are stored, in the order of elements.
fn places(order: &[Element]) -> Vec<(Element, usize)> {
    let mut places: Vec<(Element, usize)> =
        order.iter().copied().enumerate().map(|(place, element)| (element, place)).collect();
    places.sort_unstable();
    places
}

/// The bytes of `wanted` elements, in that order, out of what is stored at `places`; nothing where
/// one is not stored.
fn gather<'e>(
    stored: &[u8],
    size: usize,
    places: &[(Element, usize)],
    wanted: impl Iterator<Item = &'e Element>,
) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(stored.len());
    for element in wanted {
        let found = places.binary_search_by_key(element, |(element, _)| *element).ok()?;
        let at = places[found].1 * size;
        bytes.extend_from_slice(stored.get(at..at + size)?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{gather, places};

    #[test]
    fn elements_are_gathered_in_the_order_that_is_wanted() {
        let order = places(&[(1, 0), (0, 1), (0, 0), (1, 1)]);
        let stored = [10, 11, 20, 21, 30, 31, 40, 41];
        let wanted = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let got = gather(&stored, 2, &order, wanted.iter());
        assert_eq!(got.as_deref(), Some(&[30, 31, 20, 21, 10, 11, 40, 41][..]));
        assert_eq!(gather(&stored, 2, &order, [(2, 0)].iter()), None);
        assert_eq!(gather(&stored[..6], 2, &order, [(1, 1)].iter()), None);
    }
}
