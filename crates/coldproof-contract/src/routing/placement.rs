//! The placement of a whole model: which source elements make up every slot of every rank.

use std::collections::{BTreeMap, BTreeSet};

use super::{Piece, PlacementError, SourceRule};
use crate::words::{ExpertPlacement, Fragment, Rank, SlotName, Span, Topology};

/// A piece with the source that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPiece {
    /// The checkpoint tensor.
    pub source: String,
    /// Which of its elements are which of the slot's.
    pub piece: Piece,
}

/// What makes up one slot of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPlacement {
    /// Logical shape, padding included.
    pub shape: Vec<u64>,
    /// Sources that belong to the slot, even where this rank holds none of their elements.
    pub sources: Vec<String>,
    /// Disjoint pieces, in the order of the slot's elements.
    pub pieces: Vec<PlacedPiece>,
    /// What no piece covers: disjoint boxes whose declared fill is zero.
    pub padding: Vec<Fragment>,
}

/// Every slot of every rank, covered exactly once by pieces and padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    topology: Topology,
    sources: BTreeSet<String>,
    slots: BTreeMap<Rank, BTreeMap<SlotName, SlotPlacement>>,
}

impl Placement {
    /// The most places: one for each source and each rank that may have it, and one for each
    /// expert that a source holds with others.
    pub const PLACES_MAX: u64 = 1 << 21;

    /// Places every source on every rank, experts consecutively.
    ///
    /// # Errors
    /// A source that cannot be placed; one of a rank that there is not; too many places; sources
    /// of one slot that disagree on its shape or fill the same elements; elements that nothing
    /// fills, in a slot that declares no padding.
    pub fn of(rules: &[SourceRule], topology: Topology) -> Result<Self, PlacementError> {
        Self::with_experts(rules, topology, None)
    }

    /// Places every source on every rank, experts as they were placed.
    ///
    /// # Errors
    /// As [`Placement::of`]; experts that were not placed each on one of the ranks, as many on
    /// each.
    pub fn with_experts(
        rules: &[SourceRule],
        topology: Topology,
        experts: Option<&ExpertPlacement>,
    ) -> Result<Self, PlacementError> {
        let (mut shared, mut own) = (Vec::new(), BTreeMap::<Rank, Vec<&SourceRule>>::new());
        for rule in rules {
            match rule.own_rank() {
                None => shared.push(rule),
                Some(rank) if topology.replica().contains(rank) => {
                    own.entry(rank).or_default().push(rule);
                }
                Some(rank) => return Err(PlacementError::Rank { rank, topology }),
            }
        }
        let (sources, ranks) = (shared.len(), topology.size());
        let of = |rule: &&SourceRule| u64::from(ranks).saturating_add(rule.fused_experts());
        if shared.iter().map(of).fold(0, u64::saturating_add) > Self::PLACES_MAX {
            return Err(PlacementError::TooMany { sources, ranks });
        }
        let mut slots = BTreeMap::new();
        for rank in topology.ranks() {
            let own = own.get(&rank.in_replica()).into_iter().flatten();
            let here = shared.iter().chain(own).filter(|rule| rule.is_on(topology, rank));
            slots.insert(rank, place_rank(here.copied(), (topology, experts), rank)?);
        }
        let sources = rules.iter().map(|rule| rule.source.clone()).collect();
        Ok(Self { topology, sources, slots })
    }

    /// The topology that it is for.
    #[must_use]
    pub const fn topology(&self) -> Topology {
        self.topology
    }

    /// Whether a source belongs anywhere.
    #[must_use]
    pub fn has(&self, source: &str) -> bool {
        self.sources.contains(source)
    }

    /// All slots of a rank that sources fill, by name.
    pub fn slots(&self, rank: Rank) -> impl Iterator<Item = (&SlotName, &SlotPlacement)> {
        self.slots.get(&rank).into_iter().flatten()
    }

    /// One slot of a rank.
    #[must_use]
    pub fn slot(&self, rank: Rank, slot: &SlotName) -> Option<&SlotPlacement> {
        self.slots.get(&rank)?.get(slot)
    }
}

/// A slot whose sources are still being collected.
struct Draft<'a> {
    placed: SlotPlacement,
    shaped_by: &'a str,
    pads: bool,
}

fn place_rank<'a>(
    rules: impl Iterator<Item = &'a SourceRule>,
    (topology, experts): (Topology, Option<&ExpertPlacement>),
    rank: Rank,
) -> Result<BTreeMap<SlotName, SlotPlacement>, PlacementError> {
    let mut drafts: BTreeMap<&SlotName, Draft<'_>> = BTreeMap::new();
    for rule in rules {
        let (pieces, shape) = rule.pieces_of(topology, rank, experts)?;
        let draft = drafts.entry(&rule.slot).or_insert_with(|| Draft {
            placed: SlotPlacement {
                shape: shape.clone(),
                sources: Vec::new(),
                pieces: Vec::new(),
                padding: Vec::new(),
            },
            shaped_by: &rule.source,
            pads: false,
        });
        if draft.placed.shape != shape {
            return Err(PlacementError::Layout {
                slot: rule.slot.clone(),
                rank,
                first: draft.shaped_by.to_owned(),
                first_shape: draft.placed.shape.as_slice().into(),
                second: rule.source.clone(),
                second_shape: shape.into(),
            });
        }
        draft.pads |= rule.pads();
        draft.placed.sources.push(rule.source.clone());
        let source = || rule.source.clone();
        let placed = pieces.into_iter().map(|piece| PlacedPiece { source: source(), piece });
        draft.placed.pieces.extend(placed);
    }
    drafts.into_iter().map(|(slot, draft)| Ok((slot.clone(), draft.close(slot, rank)?))).collect()
}

impl Draft<'_> {
    /// Checks that the pieces are disjoint and declares the rest as padding.
    fn close(mut self, slot: &SlotName, rank: Rank) -> Result<SlotPlacement, PlacementError> {
        self.placed.pieces.sort_by(|a, b| a.piece.slot_fragment.cmp(&b.piece.slot_fragment));
        if let Some((first, second, fragment)) = first_overlap(&self.placed.pieces) {
            let (slot, first, second) = (slot.clone(), first.to_owned(), second.to_owned());
            return Err(PlacementError::Overlap { slot, rank, first, second, fragment });
        }
        let pieces = self.placed.pieces.iter().map(|placed| &placed.piece.slot_fragment);
        let padding = uncovered(&Fragment::whole(&self.placed.shape), pieces);
        match padding.first() {
            Some(fragment) if !self.pads => Err(PlacementError::Uncovered {
                slot: slot.clone(),
                rank,
                fragment: fragment.clone(),
            }),
            _ => Ok(SlotPlacement { padding, ..self.placed }),
        }
    }
}

/// The first two pieces that share elements. Pieces are sorted by their first span, so those that
/// may meet a piece follow it until one begins behind its end.
fn first_overlap(pieces: &[PlacedPiece]) -> Option<(&str, &str, Fragment)> {
    for (index, placed) in pieces.iter().enumerate() {
        let fragment = &placed.piece.slot_fragment;
        let end = fragment.0.first().map_or(u64::MAX, |span| span.end);
        for later in &pieces[index + 1..] {
            let other = &later.piece.slot_fragment;
            if other.0.first().is_some_and(|span| span.start >= end) {
                break;
            }
            if let Some(common) = fragment.intersect(other) {
                return Some((&placed.source, &later.source, common));
            }
        }
    }
    None
}

/// What `covers` leave of `whole`, as disjoint boxes, sorted.
pub(crate) fn uncovered<'a>(
    whole: &Fragment,
    covers: impl Iterator<Item = &'a Fragment>,
) -> Vec<Fragment> {
    let mut left = if whole.volume() == 0 { Vec::new() } else { vec![whole.clone()] };
    for cover in covers {
        if left.is_empty() {
            break;
        }
        left = left.into_iter().flat_map(|rest| without(rest, cover)).collect();
    }
    left.sort();
    left
}

/// `rest` without `cover`, as disjoint boxes: axis by axis, the part before and the part behind.
fn without(rest: Fragment, cover: &Fragment) -> Vec<Fragment> {
    let Some(common) = rest.intersect(cover) else { return vec![rest] };
    let mut pieces = Vec::new();
    let mut core = rest;
    for (axis, cut) in common.0.iter().enumerate() {
        let span = core.0[axis];
        for part in [Span::new(span.start, cut.start), Span::new(cut.end, span.end)] {
            if !part.is_empty() {
                pieces.push(core.clone().with(axis, part));
            }
        }
        core = core.with(axis, *cut);
    }
    pieces
}
