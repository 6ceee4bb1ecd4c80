//! The application ledger: what was promised, and exactly which elements of it have been applied.
//!
//! Names are interned when the ledger is sealed. One application costs the look-up of its piece
//! (an index), the comparison of two small boxes and an insertion into the piece's cover.

use std::collections::BTreeMap;

use super::cover::{Collision, Cover};
use super::rules::{ApplicationIdentity, Manifest};
use crate::routing::Piece;
use crate::words::{Fragment, SlotName, Span};

/// A source of a sealed ledger. Valid for that ledger alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceKey {
    source: u32,
    piece: u32,
}

/// A slot of a sealed ledger. Valid for that ledger alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotKey(u32);

/// One write, as a loader reports it.
#[derive(Clone, Copy, Debug)]
pub struct Application<'a> {
    /// The checkpoint tensor.
    pub source: SourceKey,
    /// Which of its elements.
    pub source_fragment: &'a [Span],
    /// The slot.
    pub slot: SlotKey,
    /// Which of its logical elements.
    pub slot_fragment: &'a [Span],
}

/// An application that contradicts the promise or an earlier application.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// A source that is not in scope.
    #[error("`{source_name}` is not promised")]
    UnexpectedSource {
        /// The checkpoint tensor.
        source_name: String,
    },
    /// A slot that nothing in scope belongs to.
    #[error("nothing is promised for `{slot}`")]
    UnexpectedSlot {
        /// The slot.
        slot: SlotName,
    },
    /// Elements that do not belong there.
    #[error("{application}: this is not promised{}", home_text(.belongs))]
    UnexpectedFragment {
        /// The application.
        application: Box<ApplicationIdentity>,
        /// Where in the slot these elements of the source belong, if anywhere.
        belongs: Option<Fragment>,
    },
    /// The same elements of the source to the same elements of the slot, again.
    #[error("{application}: this was applied before")]
    Duplicate {
        /// The application.
        application: Box<ApplicationIdentity>,
    },
    /// Some of its elements were written by another application.
    #[error("{application}: elements of {earlier} of the source were applied before")]
    Overlapping {
        /// The application.
        application: Box<ApplicationIdentity>,
        /// The source fragment of the earlier application.
        earlier: Fragment,
    },
    /// It names more elements on one side than on the other.
    #[error("{application}: {source_elements} elements are written to {slot_elements}")]
    Undersized {
        /// The application.
        application: Box<ApplicationIdentity>,
        /// Elements of the source fragment.
        source_elements: u64,
        /// Elements of the slot fragment.
        slot_elements: u64,
    },
    /// Without a slot fragment, these elements could belong to several places of the slot.
    #[error("`{source_name}` {source_fragment} belongs to several places of `{slot}`; name one")]
    Ambiguous {
        /// The checkpoint tensor.
        source_name: String,
        /// Which of its elements.
        source_fragment: Fragment,
        /// The slot.
        slot: SlotName,
        /// Where they could belong.
        candidates: Vec<Fragment>,
    },
    /// Promised elements that were never applied.
    #[error("`{source_name}`: {elements} elements never reached `{slot}`, first {first}")]
    Missing {
        /// The checkpoint tensor.
        source_name: String,
        /// The slot.
        slot: SlotName,
        /// How many elements.
        elements: u64,
        /// The first missing fragment of the slot.
        first: Fragment,
        /// All that is missing, exactly.
        pieces: Vec<Piece>,
    },
}

fn home_text(home: &Option<Fragment>) -> String {
    home.as_ref().map(|home| format!("; these elements belong to {home}")).unwrap_or_default()
}

/// One promised piece and what has been applied of it.
#[derive(Clone, Debug)]
struct PieceState {
    slot: u32,
    /// Pieces of the same source from this one on.
    run: u32,
    /// Where its spans begin: those of the source, then those of the slot.
    spans: u32,
    source_axes: u8,
    slot_axes: u8,
    cover: Cover,
}

/// The accounts of one rank in one transaction.
#[derive(Clone, Debug)]
pub struct Ledger {
    pieces: Vec<PieceState>,
    spans: Vec<Span>,
    source_names: Vec<String>,
    slot_names: Vec<SlotName>,
    sources: BTreeMap<String, SourceKey>,
    slots: BTreeMap<SlotName, SlotKey>,
    /// For each slot, its pieces.
    pieces_of_slot: Vec<Vec<u32>>,
    applications: u64,
}

impl Ledger {
    /// Opens the accounts of a promise.
    #[must_use]
    pub fn seal(manifest: &Manifest) -> Self {
        let slot_names: Vec<SlotName> = manifest.slots().iter().cloned().collect();
        let mut slots: BTreeMap<SlotName, SlotKey> =
            slot_names.iter().cloned().zip((0..).map(SlotKey)).collect();
        for (alias, owner) in manifest.owners() {
            if let Some(&key) = slots.get(owner) {
                slots.insert(alias.clone(), key);
            }
        }
        let mut ledger = Self {
            pieces: Vec::with_capacity(manifest.pieces().len()),
            spans: Vec::new(),
            source_names: Vec::with_capacity(manifest.sources().len()),
            pieces_of_slot: vec![Vec::new(); slot_names.len()],
            slot_names,
            sources: BTreeMap::new(),
            slots,
            applications: 0,
        };
        let mut rest = manifest.pieces();
        for (number, source) in (0..).zip(manifest.sources()) {
            let count = rest.iter().take_while(|piece| piece.source == *source).count();
            let (own, others) = rest.split_at(count);
            rest = others;
            let first = narrow(ledger.pieces.len());
            ledger.sources.insert(source.clone(), SourceKey { source: number, piece: first });
            ledger.source_names.push(source.clone());
            for (index, piece) in own.iter().enumerate() {
                ledger.open(piece, narrow(count - index));
            }
            if own.is_empty() {
                ledger.sources.insert(source.clone(), SourceKey { source: number, piece: NONE });
            }
        }
        ledger
    }

    fn open(&mut self, piece: &ApplicationIdentity, run: u32) {
        let slot = self.slots.get(&piece.slot).map_or(NONE, |key| key.0);
        let index = narrow(self.pieces.len());
        if let Some(of_slot) = self.pieces_of_slot.get_mut(slot as usize) {
            of_slot.push(index);
        }
        let (source, target) = (&piece.source_fragment.0, &piece.slot_fragment.0);
        self.pieces.push(PieceState {
            slot,
            run,
            spans: narrow(self.spans.len()),
            source_axes: source.len() as u8,
            slot_axes: target.len() as u8,
            cover: Cover::default(),
        });
        self.spans.extend(source.iter().chain(target));
    }

    /// The key of a source.
    ///
    /// # Errors
    /// A source that is not in scope.
    pub fn source(&self, name: &str) -> Result<SourceKey, LedgerError> {
        let unexpected = || LedgerError::UnexpectedSource { source_name: name.to_owned() };
        self.sources.get(name).copied().ok_or_else(unexpected)
    }

    /// The key of a slot; other names of a slot lead to the slot that owns the storage.
    ///
    /// # Errors
    /// A slot that nothing in scope belongs to.
    pub fn slot(&self, name: &SlotName) -> Result<SlotKey, LedgerError> {
        let unexpected = || LedgerError::UnexpectedSlot { slot: name.clone() };
        self.slots.get(name).copied().ok_or_else(unexpected)
    }

    /// Applications that were accepted.
    #[must_use]
    pub const fn applications(&self) -> u64 {
        self.applications
    }

    /// Records an application whose names are not interned.
    ///
    /// # Errors
    /// As [`Ledger::record`], and names that are not promised.
    pub fn record_named(&mut self, application: &ApplicationIdentity) -> Result<(), LedgerError> {
        let source = self.source(&application.source)?;
        let slot = self.slot(&application.slot)?;
        self.record(&Application {
            source,
            source_fragment: &application.source_fragment.0,
            slot,
            slot_fragment: &application.slot_fragment.0,
        })
    }

    /// Records one application. One that is refused changes nothing.
    ///
    /// # Errors
    /// Elements that do not belong there, that were applied before, or that are fewer on one side.
    pub fn record(&mut self, application: &Application<'_>) -> Result<(), LedgerError> {
        let first = application.source.piece as usize;
        if let Some(piece) = self.pieces.get_mut(first)
            && piece.slot == application.slot.0
            && let (source, slot) = spans_of(&self.spans, piece)
            && is_image(source, slot, application)
            && is_inside(application.source_fragment, source)
        {
            let (part, whole) = shared(application, source, slot);
            return match piece.cover.add(part, whole) {
                Ok(()) => {
                    self.applications += 1;
                    Ok(())
                }
                Err(collision) => Err(self.collided(application, first, collision)),
            };
        }
        self.record_parts(application)
    }

    /// An application that is not plainly a part of the source's first piece.
    #[cold]
    #[inline(never)]
    fn record_parts(&mut self, application: &Application<'_>) -> Result<(), LedgerError> {
        let source_elements = volume(application.source_fragment);
        let slot_elements = volume(application.slot_fragment);
        if source_elements != slot_elements {
            let application = Box::new(self.identity(application));
            return Err(LedgerError::Undersized { application, source_elements, slot_elements });
        }
        if source_elements == 0 {
            self.applications += 1;
            return Ok(());
        }
        let parts = self.parts(application);
        let covered: u64 = parts.iter().map(|(_, part)| volume(part)).sum();
        if covered != source_elements {
            return Err(self.unexpected(application));
        }
        self.check_parts(application, &parts)?;
        for (index, part) in &parts {
            if let Some(piece) = self.pieces.get_mut(*index) {
                let (source, slot) = spans_of(&self.spans, piece);
                // Checked above, and the parts of one application are disjoint.
                let added = piece.cover.add(part, shared_of(source, slot));
                debug_assert_eq!(added, Ok(()));
            }
        }
        self.applications += 1;
        Ok(())
    }

    /// The pieces that an application lies in, each with the part of it there.
    fn parts(&self, application: &Application<'_>) -> Vec<(usize, Vec<Span>)> {
        let mut parts = Vec::new();
        for (index, piece) in self.pieces_of(application.source) {
            let (source, slot) = spans_of(&self.spans, piece);
            if piece.slot != application.slot.0 || !is_image(source, slot, application) {
                continue;
            }
            let (part, whole) = shared(application, source, slot);
            let common: Vec<Span> = part.iter().zip(whole).map(|(a, b)| a.intersect(*b)).collect();
            if common.iter().all(|span| !span.is_empty()) {
                parts.push((index, common));
            }
        }
        parts
    }

    /// A duplicate where every part was applied before as it is now, else an overlap.
    fn check_parts(
        &self,
        application: &Application<'_>,
        parts: &[(usize, Vec<Span>)],
    ) -> Result<(), LedgerError> {
        let mut collisions = parts.iter().filter_map(|(index, part)| {
            let piece = self.pieces.get(*index)?;
            let (source, slot) = spans_of(&self.spans, piece);
            Some((*index, part, piece.cover.collision(part, shared_of(source, slot))?))
        });
        let Some((index, part, collision)) = collisions.next() else { return Ok(()) };
        let mut same = 1 + collisions.filter(|(_, _, next)| *next == Collision::Same).count();
        same -= usize::from(collision != Collision::Same);
        let collision = match collision {
            Collision::Same if same < parts.len() => Collision::Meets(Fragment(part.clone())),
            collision => collision,
        };
        Err(self.collided(application, index, collision))
    }

    fn pieces_of(&self, source: SourceKey) -> impl Iterator<Item = (usize, &PieceState)> {
        let first = source.piece as usize;
        let run = self.pieces.get(first).map_or(0, |piece| piece.run as usize);
        self.pieces.iter().enumerate().skip(first).take(run)
    }

    /// Where elements of a source belong in a slot, for loaders that do not say.
    ///
    /// # Errors
    /// Elements that belong nowhere in the slot, or to several places.
    pub fn locate(
        &self,
        source: SourceKey,
        source_fragment: &Fragment,
        slot: SlotKey,
    ) -> Result<Fragment, LedgerError> {
        let mut candidates = Vec::new();
        for (_, piece) in self.pieces_of(source) {
            let (from, to) = spans_of(&self.spans, piece);
            if piece.slot == slot.0 && is_inside(&source_fragment.0, from) {
                candidates.extend(image(&source_fragment.0, from, to));
            }
        }
        match candidates.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(self.unexpected(&Application {
                source,
                source_fragment: &source_fragment.0,
                slot,
                slot_fragment: &[],
            })),
            _ => Err(LedgerError::Ambiguous {
                source_name: self.source_name(source.source),
                source_fragment: source_fragment.clone(),
                slot: self.slot_name(slot.0),
                candidates,
            }),
        }
    }

    /// Whether every promised element of a slot has been applied.
    #[must_use]
    pub fn is_complete(&self, slot: SlotKey) -> bool {
        let pieces = self.pieces_of_slot.get(slot.0 as usize).into_iter().flatten();
        pieces.filter_map(|&index| self.pieces.get(index as usize)).all(|piece| {
            let (source, slot) = spans_of(&self.spans, piece);
            piece.cover.missing(shared_of(source, slot)).is_empty()
        })
    }

    /// What is missing, by source and slot. Nothing where every promised element was applied.
    #[must_use]
    pub fn finish(&self) -> Vec<LedgerError> {
        let mut missing: BTreeMap<(u32, u32), Vec<Piece>> = BTreeMap::new();
        for (key, piece) in self
            .sources
            .values()
            .flat_map(|key| self.pieces_of(*key).map(move |(_, piece)| (key.source, piece)))
        {
            let (source, slot) = spans_of(&self.spans, piece);
            for part in piece.cover.missing(shared_of(source, slot)) {
                let pieces = missing.entry((key, piece.slot)).or_default();
                pieces.push(piece_of(&part, source, slot));
            }
        }
        let error = |((source, slot), pieces): ((u32, u32), Vec<Piece>)| LedgerError::Missing {
            source_name: self.source_name(source),
            slot: self.slot_name(slot),
            elements: pieces.iter().map(|piece| piece.slot_fragment.volume()).sum(),
            first: pieces.first().map(|p| p.slot_fragment.clone()).unwrap_or(Fragment(vec![])),
            pieces,
        };
        missing.into_iter().map(error).collect()
    }

    #[cold]
    fn collided(
        &self,
        application: &Application<'_>,
        index: usize,
        collision: Collision,
    ) -> LedgerError {
        let identity = Box::new(self.identity(application));
        match collision {
            Collision::Same => LedgerError::Duplicate { application: identity },
            Collision::Meets(part) => {
                let spans = self.pieces.get(index).map(|piece| spans_of(&self.spans, piece));
                let earlier = spans.map(|(source, slot)| piece_of(&part, source, slot));
                let earlier = earlier.map_or(part, |piece| piece.source_fragment);
                LedgerError::Overlapping { application: identity, earlier }
            }
        }
    }

    #[cold]
    fn unexpected(&self, application: &Application<'_>) -> LedgerError {
        let belongs = self.pieces_of(application.source).find_map(|(_, piece)| {
            let (from, to) = spans_of(&self.spans, piece);
            let here = piece.slot == application.slot.0;
            let inside = here && is_inside(application.source_fragment, from);
            if inside { image(application.source_fragment, from, to) } else { None }
        });
        let application = Box::new(self.identity(application));
        LedgerError::UnexpectedFragment { application, belongs }
    }

    fn identity(&self, application: &Application<'_>) -> ApplicationIdentity {
        ApplicationIdentity {
            source: self.source_name(application.source.source),
            source_fragment: Fragment(application.source_fragment.to_vec()),
            slot: self.slot_name(application.slot.0),
            slot_fragment: Fragment(application.slot_fragment.to_vec()),
        }
    }

    fn source_name(&self, source: u32) -> String {
        self.source_names.get(source as usize).cloned().unwrap_or_default()
    }

    fn slot_name(&self, slot: u32) -> SlotName {
        self.slot_names.get(slot as usize).cloned().unwrap_or_else(|| SlotName(String::new()))
    }
}

/// The key of a source without pieces.
const NONE: u32 = u32::MAX;

/// Indices fit: a manifest has at most [`Manifest::PIECES_MAX`] pieces of 32 spans.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}

/// Spans of a piece: source, then slot.
fn spans_of<'a>(spans: &'a [Span], piece: &PieceState) -> (&'a [Span], &'a [Span]) {
    let first = piece.spans as usize;
    let middle = first + usize::from(piece.source_axes);
    let end = middle + usize::from(piece.slot_axes);
    (spans.get(first..middle).unwrap_or(&[]), spans.get(middle..end).unwrap_or(&[]))
}

/// Splits off what one side has more axes than the other; those axes are one index long.
fn trailing(spans: &[Span], axes: usize) -> (&[Span], &[Span]) {
    spans.split_at(spans.len().saturating_sub(axes))
}

/// Whether the application moves elements as the piece does: the same axes, the same offset along
/// each. It may reach beyond the piece.
fn is_image(source: &[Span], slot: &[Span], application: &Application<'_>) -> bool {
    let (from, to) = (application.source_fragment, application.slot_fragment);
    if from.len() != source.len() || to.len() != slot.len() {
        return false;
    }
    let axes = source.len().min(slot.len());
    let ((from_lead, from), (to_lead, to)) = (trailing(from, axes), trailing(to, axes));
    let ((source_lead, source), (slot_lead, slot)) = (trailing(source, axes), trailing(slot, axes));
    let moves = |((from, to), (source, slot)): ((&Span, &Span), (&Span, &Span))| {
        let offset = slot.start.wrapping_sub(source.start);
        from.start.wrapping_add(offset) == to.start && from.end.wrapping_add(offset) == to.end
    };
    from_lead == source_lead
        && to_lead == slot_lead
        && from.iter().zip(to).zip(source.iter().zip(slot)).all(moves)
}

/// Whether a non-empty box lies inside another.
fn is_inside(part: &[Span], whole: &[Span]) -> bool {
    part.len() == whole.len()
        && part
            .iter()
            .zip(whole)
            .all(|(p, w)| w.start <= p.start && p.start < p.end && p.end <= w.end)
}

/// The application and its piece along the axes that source and slot share.
fn shared<'a>(
    application: &Application<'a>,
    source: &'a [Span],
    slot: &'a [Span],
) -> (&'a [Span], &'a [Span]) {
    let axes = source.len().min(slot.len());
    (trailing(application.source_fragment, axes).1, trailing(source, axes).1)
}

fn shared_of<'a>(source: &'a [Span], slot: &[Span]) -> &'a [Span] {
    trailing(source, source.len().min(slot.len())).1
}

/// Where a part of a piece's source lies in its slot.
fn image(part: &[Span], source: &[Span], slot: &[Span]) -> Option<Fragment> {
    let axes = source.len().min(slot.len());
    let shared = Fragment(trailing(part, axes).1.to_vec());
    (part.len() == source.len()).then(|| piece_of(&shared, source, slot).slot_fragment)
}

/// Both fragments of a part that is given along the shared axes.
fn piece_of(part: &Fragment, source: &[Span], slot: &[Span]) -> Piece {
    let axes = source.len().min(slot.len());
    let ((source_lead, source), (slot_lead, slot)) = (trailing(source, axes), trailing(slot, axes));
    let moved = part.0.iter().zip(source.iter().zip(slot)).map(|(part, (source, slot))| {
        let offset = slot.start.wrapping_sub(source.start);
        Span::new(part.start.wrapping_add(offset), part.end.wrapping_add(offset))
    });
    Piece {
        source_fragment: Fragment(source_lead.iter().chain(&part.0).copied().collect()),
        slot_fragment: Fragment(slot_lead.iter().copied().chain(moved).collect()),
    }
}

fn volume(spans: &[Span]) -> u64 {
    spans.iter().fold(1, |volume, span| volume.saturating_mul(span.len()))
}
