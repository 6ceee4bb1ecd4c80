//! What an update promises to write, sealed before the first write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::routing::{Piece, Placement};
use crate::words::{Fragment, Rank, SlotName};

/// The identity of one write: source, source fragment, slot, slot fragment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApplicationIdentity {
    /// The checkpoint tensor.
    pub source: String,
    /// Which of its elements.
    pub source_fragment: Fragment,
    /// The slot.
    pub slot: SlotName,
    /// Which of its logical elements.
    pub slot_fragment: Fragment,
}

impl fmt::Display for ApplicationIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, source_fragment, slot, slot_fragment } = self;
        write!(f, "`{source}` {source_fragment} -> `{slot}` {slot_fragment}")
    }
}

/// What one rank's update will write, while it is still being written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestDraft {
    /// Every piece that must be applied. An application may be any part of one.
    pub pieces: Vec<ApplicationIdentity>,
    /// Sources and slots that belong together although this rank holds none of their elements.
    pub idle: Vec<(String, SlotName)>,
    /// Other names of a slot, and the slot that owns the storage.
    pub aliases: Vec<(SlotName, SlotName)>,
}

/// A promise that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The two fragments of a piece have no common order of axes.
    #[error("{piece}: the fragments must have equal extents, extra leading axes being 1 long")]
    Misaligned {
        /// The piece.
        piece: Box<ApplicationIdentity>,
    },
    /// A span ends before it begins, or the elements do not fit 64 bits.
    #[error("{piece}: a span ends before it begins, or the piece is too large")]
    Malformed {
        /// The piece.
        piece: Box<ApplicationIdentity>,
    },
    /// Two pieces promise the same elements of a slot.
    #[error("two pieces fill the same elements: {first}, and {second}")]
    Overlap {
        /// One piece.
        first: Box<ApplicationIdentity>,
        /// The other piece.
        second: Box<ApplicationIdentity>,
    },
    /// An alias that names two slots.
    #[error("`{alias}` is a name of both `{first}` and `{second}`")]
    AmbiguousAlias {
        /// The alias.
        alias: SlotName,
        /// One slot.
        first: SlotName,
        /// The other slot.
        second: SlotName,
    },
    /// A slot that owns its storage is also declared as another name of a slot.
    #[error("`{alias}` is filled by sources of its own, so it is no other name of `{owner}`")]
    AliasOwns {
        /// The alias.
        alias: SlotName,
        /// What it is said to be a name of.
        owner: SlotName,
    },
    /// More pieces than a ledger counts.
    #[error("{pieces} pieces; a ledger holds at most {}", Manifest::PIECES_MAX)]
    TooMany {
        /// How many.
        pieces: usize,
    },
}

/// What one rank's update will write. It cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Sorted by source, then slot, then slot fragment.
    pieces: Vec<ApplicationIdentity>,
    sources: BTreeSet<String>,
    slots: BTreeSet<SlotName>,
    owners: BTreeMap<SlotName, SlotName>,
}

impl ManifestDraft {
    /// All pieces of the sources in `scope` that belong on `rank`.
    ///
    /// The scope is the caller's: it is never inferred from what arrives.
    #[must_use]
    pub fn of(placement: &Placement, rank: Rank, scope: impl Fn(&str) -> bool) -> Self {
        let mut draft = Self::default();
        for (slot, placed) in placement.slots(rank) {
            let in_scope = placed.sources.iter().filter(|source| scope(source));
            draft.idle.extend(in_scope.map(|source| (source.clone(), slot.clone())));
            for part in placed.pieces.iter().filter(|part| scope(&part.source)) {
                draft.pieces.push(ApplicationIdentity {
                    source: part.source.clone(),
                    source_fragment: part.piece.source_fragment.clone(),
                    slot: slot.clone(),
                    slot_fragment: part.piece.slot_fragment.clone(),
                });
            }
        }
        draft
    }

    /// Declares another name of a slot.
    #[must_use]
    pub fn with_alias(mut self, alias: SlotName, owner: SlotName) -> Self {
        self.aliases.push((alias, owner));
        self
    }

    /// Makes the promise final.
    ///
    /// # Errors
    /// A piece without a common order of axes, two pieces that fill the same elements, an alias
    /// that names two slots or that is a slot of its own.
    pub fn seal(mut self) -> Result<Manifest, ManifestError> {
        if self.pieces.len() > Manifest::PIECES_MAX {
            return Err(ManifestError::TooMany { pieces: self.pieces.len() });
        }
        for piece in &self.pieces {
            check_piece(piece)?;
        }
        self.pieces.sort_by(|a, b| (&a.slot, &a.slot_fragment).cmp(&(&b.slot, &b.slot_fragment)));
        check_disjoint(&self.pieces)?;
        let slots: BTreeSet<SlotName> = (self.pieces.iter().map(|piece| &piece.slot))
            .chain(self.idle.iter().map(|(_, slot)| slot))
            .cloned()
            .collect();
        let sources = (self.pieces.iter().map(|piece| &piece.source))
            .chain(self.idle.iter().map(|(source, _)| source))
            .cloned()
            .collect();
        let owners = owners(self.aliases, &slots)?;
        self.pieces.sort_by(|a, b| {
            (&a.source, &a.slot, &a.slot_fragment).cmp(&(&b.source, &b.slot, &b.slot_fragment))
        });
        Ok(Manifest { pieces: self.pieces, sources, slots, owners })
    }
}

impl Manifest {
    /// The most pieces that a manifest holds.
    pub const PIECES_MAX: usize = 1 << 26;

    /// Every piece, sorted by source, slot and slot fragment.
    #[must_use]
    pub fn pieces(&self) -> &[ApplicationIdentity] {
        &self.pieces
    }

    /// Every source in scope.
    #[must_use]
    pub const fn sources(&self) -> &BTreeSet<String> {
        &self.sources
    }

    /// Every slot that owns its storage.
    #[must_use]
    pub const fn slots(&self) -> &BTreeSet<SlotName> {
        &self.slots
    }

    /// Other names of slots, with the slot that owns the storage.
    #[must_use]
    pub const fn owners(&self) -> &BTreeMap<SlotName, SlotName> {
        &self.owners
    }
}

/// The most axes of a fragment.
const AXES_MAX: usize = 16;

fn check_piece(piece: &ApplicationIdentity) -> Result<(), ManifestError> {
    let boxed = || Box::new(piece.clone());
    let (source, slot) = (&piece.source_fragment.0, &piece.slot_fragment.0);
    for fragment in [source, slot] {
        let ordered = fragment.iter().all(|span| span.start <= span.end);
        let volume = fragment.iter().try_fold(1_u64, |v, span| v.checked_mul(span.len().max(1)));
        if !ordered || volume.is_none() || fragment.len() > AXES_MAX {
            return Err(ManifestError::Malformed { piece: boxed() });
        }
    }
    let extra = source.len().abs_diff(slot.len());
    let (long, short) = if source.len() > slot.len() { (source, slot) } else { (slot, source) };
    let (lead, shared) = long.split_at(extra);
    let aligned = lead.iter().all(|span| span.len() == 1)
        && shared.iter().zip(short).all(|(a, b)| a.len() == b.len());
    if aligned { Ok(()) } else { Err(ManifestError::Misaligned { piece: boxed() }) }
}

/// Pieces are sorted by slot and fragment: those that may meet one follow it until one begins
/// behind its end along the first axis.
fn check_disjoint(pieces: &[ApplicationIdentity]) -> Result<(), ManifestError> {
    for (index, piece) in pieces.iter().enumerate() {
        let end = piece.slot_fragment.0.first().map_or(u64::MAX, |span| span.end);
        for later in &pieces[index + 1..] {
            let begins_behind = later.slot_fragment.0.first().is_some_and(|s| s.start >= end);
            if later.slot != piece.slot || begins_behind {
                break;
            }
            if piece.slot_fragment.intersect(&later.slot_fragment).is_some() {
                let (first, second) = (Box::new(piece.clone()), Box::new(later.clone()));
                return Err(ManifestError::Overlap { first, second });
            }
        }
    }
    Ok(())
}

fn owners(
    aliases: Vec<(SlotName, SlotName)>,
    slots: &BTreeSet<SlotName>,
) -> Result<BTreeMap<SlotName, SlotName>, ManifestError> {
    let mut owners: BTreeMap<SlotName, SlotName> = BTreeMap::new();
    for (alias, owner) in aliases {
        if slots.contains(&alias) {
            return Err(ManifestError::AliasOwns { alias, owner });
        }
        match owners.get(&alias) {
            Some(first) if *first != owner => {
                let first = first.clone();
                return Err(ManifestError::AmbiguousAlias { alias, first, second: owner });
            }
            _ => owners.insert(alias, owner),
        };
    }
    Ok(owners)
}

impl ApplicationIdentity {
    /// The two fragments.
    #[must_use]
    pub fn piece(&self) -> Piece {
        Piece {
            source_fragment: self.source_fragment.clone(),
            slot_fragment: self.slot_fragment.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Span;

    fn identity(
        source: &str,
        from: &[(u64, u64)],
        slot: &str,
        to: &[(u64, u64)],
    ) -> ApplicationIdentity {
        let fragment = |spans: &[(u64, u64)]| Fragment(spans.iter().map(|&s| s.into()).collect());
        ApplicationIdentity {
            source: source.to_owned(),
            source_fragment: fragment(from),
            slot: slot.into(),
            slot_fragment: fragment(to),
        }
    }

    fn sealed(pieces: &[ApplicationIdentity]) -> Result<Manifest, ManifestError> {
        ManifestDraft { pieces: pieces.to_vec(), ..ManifestDraft::default() }.seal()
    }

    #[test]
    fn an_expert_may_have_one_axis_less_than_its_slot() {
        let one = identity("e1", &[(0, 2), (0, 3)], "w", &[(1, 2), (4, 6), (0, 3)]);
        assert!(sealed(&[one]).is_ok());
        let two = identity("e1", &[(0, 2), (0, 3)], "w", &[(1, 3), (4, 6), (0, 3)]);
        assert!(matches!(sealed(&[two]), Err(ManifestError::Misaligned { .. })));
    }

    #[test]
    fn reversed_and_enormous_spans_are_refused() {
        let reversed = identity("a", &[(2, 1)], "w", &[(2, 1)]);
        assert!(matches!(sealed(&[reversed]), Err(ManifestError::Malformed { .. })));
        let all = (0, u64::MAX);
        let enormous = identity("a", &[all, all], "w", &[all, all]);
        assert!(matches!(sealed(&[enormous]), Err(ManifestError::Malformed { .. })));
    }

    #[test]
    fn pieces_of_a_slot_are_disjoint() {
        let a = identity("a", &[(0, 4)], "w", &[(0, 4)]);
        let beside = identity("b", &[(0, 4)], "w", &[(4, 8)]);
        assert!(sealed(&[a.clone(), beside]).is_ok());
        let over = identity("b", &[(0, 4)], "w", &[(3, 7)]);
        assert!(matches!(sealed(&[a, over]), Err(ManifestError::Overlap { .. })));
    }

    #[test]
    fn an_alias_names_one_slot_that_is_not_itself() {
        let draft = || ManifestDraft {
            pieces: vec![identity("a", &[(0, 4)], "embed", &[(0, 4)])],
            ..ManifestDraft::default()
        };
        let twice = draft().with_alias("head".into(), "embed".into());
        assert!(twice.clone().with_alias("head".into(), "embed".into()).seal().is_ok());
        let split = twice.with_alias("head".into(), "norm".into()).seal();
        assert!(matches!(split, Err(ManifestError::AmbiguousAlias { .. })));
        let owns = draft().with_alias("embed".into(), "norm".into()).seal();
        assert!(matches!(owns, Err(ManifestError::AliasOwns { .. })));
    }

    #[test]
    fn empty_spans_take_no_room() {
        let empty = identity("a", &[(0, 0)], "w", &[(2, 2)]);
        let full = identity("b", &[(0, 4)], "w", &[(0, 4)]);
        assert!(sealed(&[empty, full]).is_ok());
        assert_eq!(Span::new(2, 2).len(), 0);
    }
}
