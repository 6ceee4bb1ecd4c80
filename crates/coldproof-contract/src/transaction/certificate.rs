//! The certificate: all receipts, reconciled, bound to a generation that evidence defines.

use std::collections::BTreeMap;
use std::fmt;

use super::receipt::Reconciled;
use crate::verdict::Room;
use crate::words::{Generation, Hex128, Rank, SlotName, TransactionId};

/// The identity of a generation by what it holds: BLAKE3 over the sorted (slot, rank, content)
/// of every rank. Two engines that hold the same bytes at the same topology have the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationIdentity([u8; 32]);

impl GenerationIdentity {
    /// Derives the identity from slot contents.
    ///
    /// For each entry: the slot's name (its length as 8 bytes, then UTF-8), the rank's pp, ep and
    /// tp (4 bytes each), the content (16 bytes); all numbers little-endian. Before an entry of a
    /// replica other than the first: 8 bytes of ones, which no name's length is, and its dp (4
    /// bytes).
    #[must_use]
    pub fn of(contents: &BTreeMap<Rank, BTreeMap<SlotName, Hex128>>) -> Self {
        let mut entries: Vec<(&SlotName, Rank, Hex128)> = contents
            .iter()
            .flat_map(|(&rank, slots)| slots.iter().map(move |(slot, &hex)| (slot, rank, hex)))
            .collect();
        entries.sort();
        let mut hasher = blake3::Hasher::new();
        for (slot, rank, content) in entries {
            if rank.dp > 0 {
                hasher.update(&u64::MAX.to_le_bytes());
                hasher.update(&rank.dp.to_le_bytes());
            }
            hasher.update(&(slot.0.len() as u64).to_le_bytes());
            hasher.update(slot.0.as_bytes());
            for coordinate in [rank.pp, rank.ep, rank.tp] {
                hasher.update(&coordinate.to_le_bytes());
            }
            hasher.update(&content.0.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for GenerationIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for GenerationIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What was shown of one category in this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Proven here, by this many checks; at least one.
    Proven {
        /// Checks that could have failed.
        checks: u64,
    },
    /// Not proven here.
    NotProven {
        /// Why: not covered, undecided, or a finding.
        reason: String,
    },
}

/// What each category's checks showed; one entry a category, so that none is left out silently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proofs(BTreeMap<Room, Proof>);

impl Proofs {
    /// Categories that are not in `shown` are not proven. A proof without a check is none.
    #[must_use]
    pub fn new(shown: BTreeMap<Room, Proof>) -> Self {
        let not = |reason: &str| Proof::NotProven { reason: reason.to_owned() };
        let of = |room| match shown.get(&room) {
            Some(Proof::Proven { checks: 0 }) => not("nothing was checked"),
            Some(proof) => proof.clone(),
            None => not("not covered"),
        };
        Self(Room::ALL.into_iter().map(|room| (room, of(room))).collect())
    }

    /// Every category in order.
    pub fn iter(&self) -> impl Iterator<Item = (Room, &Proof)> {
        self.0.iter().map(|(&room, proof)| (room, proof))
    }

    /// Whether a category was proven here.
    #[must_use]
    pub fn is_proven(&self, room: Room) -> bool {
        matches!(self.0.get(&room), Some(Proof::Proven { .. }))
    }
}

/// States of one committed update what it holds and what was proven of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    transaction: TransactionId,
    generation: Generation,
    identity: GenerationIdentity,
    ranks: Vec<Rank>,
    proofs: Proofs,
}

impl Certificate {
    /// Certifies a committed transaction. Receipts of every rank come before: [`Reconciled`] has
    /// no other source.
    #[must_use]
    pub fn issue(receipts: &Reconciled, generation: Generation, proofs: Proofs) -> Self {
        Self {
            transaction: receipts.transaction(),
            generation,
            identity: GenerationIdentity::of(receipts.contents()),
            ranks: receipts.contents().keys().copied().collect(),
            proofs,
        }
    }

    /// The transaction that it certifies.
    #[must_use]
    pub const fn transaction(&self) -> TransactionId {
        self.transaction
    }

    /// The number that the engine gives to the generation: a label.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// What the generation holds: evidence.
    #[must_use]
    pub const fn identity(&self) -> GenerationIdentity {
        self.identity
    }

    /// The ranks that gave receipts.
    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// What was proven here, and what was not.
    #[must_use]
    pub const fn proofs(&self) -> &Proofs {
        &self.proofs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(entries: &[(u32, &str, u128)]) -> BTreeMap<Rank, BTreeMap<SlotName, Hex128>> {
        let mut contents: BTreeMap<Rank, BTreeMap<SlotName, Hex128>> = BTreeMap::new();
        for &(tp, slot, hex) in entries {
            contents.entry(Rank::tensor(tp)).or_default().insert(slot.into(), Hex128(hex));
        }
        contents
    }

    #[test]
    fn the_identity_depends_on_slot_rank_and_content_alone() {
        let one = GenerationIdentity::of(&contents(&[(0, "a", 1), (1, "a", 2)]));
        let same = GenerationIdentity::of(&contents(&[(1, "a", 2), (0, "a", 1)]));
        assert_eq!(one, same);
        for other in [
            contents(&[(0, "a", 2), (1, "a", 1)]),
            contents(&[(0, "b", 1), (1, "a", 2)]),
            contents(&[(0, "a", 1), (2, "a", 2)]),
            contents(&[(0, "a", 1)]),
        ] {
            assert_ne!(one, GenerationIdentity::of(&other));
        }
    }

    #[test]
    fn the_identity_is_the_written_one() {
        let mut bytes = 1_u64.to_le_bytes().to_vec();
        bytes.push(b'a');
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        bytes.extend(7_u128.to_le_bytes());
        let written = blake3::hash(&bytes).to_hex().to_string();
        assert_eq!(GenerationIdentity::of(&contents(&[(3, "a", 7)])).to_string(), written);
        // The same rank of the second replica, behind it.
        let one = bytes.clone();
        bytes.extend([0xff; 8]);
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(one);
        let written = blake3::hash(&bytes).to_hex().to_string();
        let mut both = contents(&[(3, "a", 7)]);
        let slots = both.values().next().unwrap().clone();
        both.insert(Rank { dp: 1, ..Rank::tensor(3) }, slots.clone());
        assert_eq!(GenerationIdentity::of(&both).to_string(), written);
        let alone = |dp| BTreeMap::from([(Rank { dp, ..Rank::tensor(3) }, slots.clone())]);
        assert_ne!(GenerationIdentity::of(&alone(0)), GenerationIdentity::of(&alone(1)));
        assert_ne!(GenerationIdentity::of(&alone(1)), GenerationIdentity::of(&alone(2)));
    }

    #[test]
    fn what_nobody_checked_is_not_proven() {
        let shown = BTreeMap::from([
            (Room::Storage, Proof::Proven { checks: 3 }),
            (Room::Names, Proof::Proven { checks: 0 }),
        ]);
        let proofs = Proofs::new(shown);
        assert_eq!(proofs.iter().count(), 7);
        assert!(proofs.is_proven(Room::Storage));
        assert!(!proofs.is_proven(Room::Names));
        assert!(!proofs.is_proven(Room::Caches));
    }
}
