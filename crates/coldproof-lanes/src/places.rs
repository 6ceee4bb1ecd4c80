//! Where the elements of sources are expected in slots: by the catalogue, or, for a model that it
//! does not know, where the cold load of the same engine was seen to put them.

use std::collections::BTreeMap;

use coldproof_contract::evidence::{ApplicationFact, SlotFact};
use coldproof_contract::routing::{Piece, PlacedPiece, Placement, SourceRule};
use coldproof_contract::words::{Dtype, ExpertPlacement, Rank, SlotName, Topology};

use crate::engine::ReadBackPiece;
use crate::inputs::Inputs;

/// One slot of one rank.
#[derive(Debug, Default)]
struct Place {
    /// The shape that the catalogue gives it; none where the pieces were seen.
    shape: Option<Vec<u64>>,
    pieces: Vec<PlacedPiece>,
    padded: bool,
}

/// Where sources are expected.
#[derive(Debug)]
pub(crate) struct Places<'i> {
    sources: BTreeMap<&'i str, (Dtype, &'i [u64])>,
    slots: BTreeMap<(Rank, SlotName), Place>,
}

impl<'i> Places<'i> {
    /// By the catalogue's rules, with experts as they were placed, or by what was `applied` where
    /// it has none.
    pub(crate) fn of(
        inputs: &'i Inputs,
        topology: Topology,
        (applied, experts): (&[(Rank, ApplicationFact)], Option<&ExpertPlacement>),
    ) -> Self {
        if inputs.rules.is_empty() {
            let tensors = &inputs.to.tensors;
            let sources = tensors.iter().map(|t| (t.name.as_str(), (t.dtype, &*t.shape)));
            return Self { sources: sources.collect(), slots: seen(applied) };
        }
        Self::with(&inputs.rules, topology, experts)
    }

    /// By these rules.
    pub(crate) fn by(rules: &'i [SourceRule], topology: Topology) -> Self {
        Self::with(rules, topology, None)
    }

    fn with(
        rules: &'i [SourceRule],
        topology: Topology,
        experts: Option<&ExpertPlacement>,
    ) -> Self {
        let sources = rules.iter().map(|r| (r.source.as_str(), (r.dtype, &*r.shape)));
        let placement = Placement::with_experts(rules, topology, experts).ok();
        let slots = topology.ranks().flat_map(|rank| {
            let own = placement.iter().flat_map(move |placement| placement.slots(rank));
            own.map(move |(slot, placed)| {
                let place = Place {
                    shape: Some(placed.shape.clone()),
                    pieces: placed.pieces.clone(),
                    padded: !placed.padding.is_empty(),
                };
                ((rank, slot.clone()), place)
            })
        });
        Self { sources: sources.collect(), slots: slots.collect() }
    }

    /// Element type and shape of a source.
    pub(crate) fn source(&self, name: &str) -> Option<(Dtype, &'i [u64])> {
        self.sources.get(name).copied()
    }

    /// The pieces of a slot, and whether the rest of it must be zero. None where its shape or type
    /// is another one than its sources have there.
    pub(crate) fn pieces(
        &self,
        rank: Rank,
        slot: &SlotFact,
        dtype: Dtype,
    ) -> (Vec<ReadBackPiece>, bool) {
        let place = self.slots.get(&(rank, slot.slot.clone()));
        let Some(place) = place.filter(|place| self.fits(place, slot, dtype)) else {
            return (Vec::new(), false);
        };
        let pieces = place.pieces.iter().filter_map(|placed| {
            Some(ReadBackPiece {
                source: placed.source.clone(),
                source_shape: self.source(&placed.source)?.1.to_vec(),
                piece: placed.piece.clone(),
            })
        });
        (pieces.collect(), place.padded)
    }

    fn fits(&self, place: &Place, slot: &SlotFact, dtype: Dtype) -> bool {
        let known = place.shape.as_ref().is_none_or(|shape| *shape == slot.logical_shape);
        let all = place.pieces.iter().all(|placed| {
            let Some((own, shape)) = self.source(&placed.source) else { return false };
            let piece = &placed.piece;
            own == dtype
                && piece.slot_fragment.fits(&slot.logical_shape).is_ok()
                && piece.source_fragment.fits(shape).is_ok()
                && piece.source_fragment.volume() == piece.slot_fragment.volume()
        });
        known && all
    }
}

/// What was applied, by slot. A piece that came twice is one.
fn seen(applied: &[(Rank, ApplicationFact)]) -> BTreeMap<(Rank, SlotName), Place> {
    let mut slots: BTreeMap<(Rank, SlotName), Place> = BTreeMap::new();
    for (rank, fact) in applied {
        let place = slots.entry((*rank, fact.slot.clone())).or_default();
        let piece = Piece {
            source_fragment: fact.source_fragment.clone(),
            slot_fragment: fact.slot_fragment.clone(),
        };
        let placed = PlacedPiece { source: fact.source.clone(), piece };
        if !place.pieces.contains(&placed) {
            place.pieces.push(placed);
        }
    }
    slots
}
