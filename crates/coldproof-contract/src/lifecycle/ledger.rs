//! The application ledger: what was promised, and exactly which elements of it have been applied.
//!
//! Names are interned when the ledger is sealed. One application costs the look-up of its piece
//! (an index), the comparison of two small boxes and an insertion into the piece's cover.

use std::collections::BTreeMap;

use super::cover::Collision;
use super::promised::Promised;
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

/// The accounts of one rank in one transaction.
#[derive(Clone, Debug)]
pub struct Ledger {
    pieces: Vec<Promised>,
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
            let first = if own.is_empty() { NONE } else { narrow(ledger.pieces.len()) };
            let key = SourceKey { source: number, piece: first };
            ledger.sources.insert(source.clone(), key);
            ledger.source_names.push(source.clone());
            for (index, piece) in own.iter().enumerate() {
                ledger.open(piece, narrow(count - index));
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
        self.pieces.push(Promised::new(piece, slot, run));
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
        let Application { source, source_fragment, slot, slot_fragment } = *application;
        let piece = self.pieces.get_mut(source.piece as usize);
        match piece.and_then(|piece| piece.apply(slot.0, source_fragment, slot_fragment)) {
            Some(Ok(())) => {
                self.applications += 1;
                Ok(())
            }
            Some(Err(collision)) => {
                Err(self.collided(application, source.piece as usize, collision))
            }
            None => self.record_parts(application),
        }
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
            let both = [application.source_fragment, application.slot_fragment];
            if both.into_iter().flatten().any(|span| span.start > span.end) {
                return Err(self.unexpected(application));
            }
            // A rank may be given nothing of a source: nothing is written, and nothing counted.
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
                // Checked above, and the parts of one application are disjoint.
                let added = piece.add(part);
                debug_assert_eq!(added, Ok(()));
            }
        }
        self.applications += 1;
        Ok(())
    }

    /// The pieces that an application lies in, each with the part of it there.
    fn parts(&self, application: &Application<'_>) -> Vec<(usize, Vec<Span>)> {
        let Application { source, source_fragment, slot, slot_fragment } = *application;
        self.pieces_of(source)
            .filter(|(_, piece)| piece.slot == slot.0)
            .filter_map(|(index, piece)| Some((index, piece.part(source_fragment, slot_fragment)?)))
            .collect()
    }

    /// A duplicate where every part was applied before as it is now, else an overlap.
    fn check_parts(
        &self,
        application: &Application<'_>,
        parts: &[(usize, Vec<Span>)],
    ) -> Result<(), LedgerError> {
        let mut collisions = parts.iter().filter_map(|(index, part)| {
            Some((*index, part, self.pieces.get(*index)?.collision(part)?))
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

    fn pieces_of(&self, source: SourceKey) -> impl Iterator<Item = (usize, &Promised)> {
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
        let pieces = self.pieces_of(source).filter(|(_, piece)| piece.slot == slot.0);
        let candidates: Vec<Fragment> =
            pieces.filter_map(|(_, piece)| piece.image(&source_fragment.0)).collect();
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
        pieces.filter_map(|&index| self.pieces.get(index as usize)).all(Promised::is_complete)
    }

    /// What is missing, by source and slot. Nothing where every promised element was applied.
    #[must_use]
    pub fn finish(&self) -> Vec<LedgerError> {
        let mut missing: BTreeMap<(u32, u32), Vec<Piece>> = BTreeMap::new();
        for key in self.sources.values() {
            for (_, piece) in self.pieces_of(*key) {
                let left = piece.missing();
                if !left.is_empty() {
                    missing.entry((key.source, piece.slot)).or_default().extend(left);
                }
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
                let earlier = self.pieces.get(index).map(|piece| piece.piece_of(&part));
                let earlier = earlier.map_or(part, |piece| piece.source_fragment);
                LedgerError::Overlapping { application: identity, earlier }
            }
        }
    }

    #[cold]
    fn unexpected(&self, application: &Application<'_>) -> LedgerError {
        let mut pieces = self.pieces_of(application.source);
        let belongs = pieces.find_map(|(_, piece)| {
            let here = piece.slot == application.slot.0;
            if here { piece.image(application.source_fragment) } else { None }
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

/// Indices fit: a manifest has at most [`Manifest::PIECES_MAX`] pieces.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}

fn volume(spans: &[Span]) -> u64 {
    spans.iter().fold(1, |volume, span| volume.saturating_mul(span.len()))
}
