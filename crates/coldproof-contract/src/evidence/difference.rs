//! Where the bytes of a live engine differ from those they must equal.

use std::collections::BTreeMap;

use super::view::{ArmView, PhaseView, Seen, SlotKey, View};
use super::{Observed, PieceContent, ReadBackFact, SlotFact};
use crate::words::{Rank, SlotKind};

/// What a differing slot or piece holds instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The bytes of the generation before the update.
    Old,
    /// Neither those nor the new ones.
    Neither,
    /// It cannot be read.
    Unreadable,
}

/// One piece of a differing slot.
#[derive(Clone, Copy, Debug)]
pub struct PieceDifference<'r> {
    /// Which source should be there.
    pub piece: &'r PieceContent,
    /// What is there.
    pub holds: Holds,
}

/// One differing slot.
#[derive(Clone, Debug)]
pub struct Difference<'r> {
    /// In which arm.
    pub arm: &'r str,
    /// In which phase.
    pub phase: &'r str,
    /// Ordinal of that phase in the arm.
    pub phase_index: usize,
    /// Which rank.
    pub rank: Rank,
    /// The slot, as registered.
    pub slot: &'r SlotFact,
    /// What was read.
    pub read: Seen<'r, ReadBackFact>,
    /// What it had to equal.
    pub reference: &'r ReadBackFact,
    /// Where that comes from: `cold-b`, or an earlier phase of the arm.
    pub against: String,
    /// What the slot holds.
    pub holds: Holds,
    /// Differing pieces, for a slot that is a bijection of its sources.
    pub pieces: Vec<PieceDifference<'r>>,
}

/// All comparisons of one run.
#[derive(Debug, Default)]
pub struct Comparison<'r> {
    /// Slots that differ.
    pub differences: Vec<Difference<'r>>,
    /// Slots that were compared after an update and are equal, by kind.
    pub equal: BTreeMap<SlotKind, u64>,
    /// Slots that were compared after an update and are equal, but also equal to the old bytes:
    /// their equality proves nothing. By (slot), until an arm shows a change.
    pub unchanged: BTreeMap<String, bool>,
}

impl<'r> Comparison<'r> {
    /// Compares every read-back of every arm with what it must equal.
    #[must_use]
    pub fn of(view: &View<'r>) -> Self {
        let mut comparison = Self::default();
        for arm in &view.arms {
            for index in 0..arm.phases.len() {
                comparison.phase(view, arm, index);
            }
        }
        comparison
    }

    /// Comparisons of these kinds that found equality after an update.
    #[must_use]
    pub fn equal_of(&self, kinds: &[SlotKind]) -> u64 {
        kinds.iter().filter_map(|kind| self.equal.get(kind)).sum()
    }

    /// Whether this slot differs in the same phase and on the same rank.
    #[must_use]
    pub fn differs(&self, near: &Difference<'_>, slot: &crate::words::SlotName) -> bool {
        self.differences.iter().any(|other| {
            other.arm == near.arm
                && other.phase_index == near.phase_index
                && other.rank == near.rank
                && other.slot.slot == *slot
        })
    }

    fn phase(&mut self, view: &View<'r>, arm: &ArmView<'r>, index: usize) {
        let Some(phase) = arm.phases.get(index) else { return };
        if phase.from.is_none() {
            return;
        }
        let Some((reference, against)) = reference(view, arm, index) else { return };
        let old = arm.earlier(index, phase.from).map(|old| &old.read_backs);
        for (key, read) in &phase.read_backs {
            let Some(wanted) = reference.get(key) else { continue };
            let Some(slot) = slot_at(arm, index, *key) else { continue };
            let old = old.and_then(|old| old.get(key)).map(|old| old.fact);
            if equal(read.fact, wanted.fact) {
                *self.equal.entry(slot.slot_kind).or_default() += 1;
                let same = old.is_some_and(|old| old.content == read.fact.content);
                let entry = self.unchanged.entry(slot.slot.0.clone()).or_insert(true);
                *entry &= same;
                continue;
            }
            self.differences.push(Difference {
                arm: &arm.header.arm,
                phase: phase.phase,
                phase_index: index,
                rank: key.0,
                slot,
                read: **read,
                reference: wanted.fact,
                against: against.clone(),
                holds: holds(read.fact, old),
                pieces: pieces(read.fact, wanted.fact, old),
            });
        }
    }
}

fn slot_at<'r>(arm: &ArmView<'r>, index: usize, key: SlotKey<'r>) -> Option<&'r SlotFact> {
    let phases = arm.phases.get(..=index)?;
    phases.iter().rev().find_map(|phase| phase.slots.get(&key)).map(|slot| slot.fact)
}

type ReadBacks<'v, 'r> = &'v BTreeMap<SlotKey<'r>, Observed<Seen<'r, ReadBackFact>>>;

/// The cold arm where it serves the same checkpoint, else an earlier phase that did.
fn reference<'v, 'r>(
    view: &'v View<'r>,
    arm: &'v ArmView<'r>,
    index: usize,
) -> Option<(ReadBacks<'v, 'r>, String)> {
    let phase: &PhaseView<'r> = arm.phases.get(index)?;
    let cold = arm.header.against.as_deref().and_then(|name| view.arm(name));
    if let Some(cold) = cold.filter(|cold| cold.header.topology == arm.header.topology) {
        let at = view.content(phase.at);
        let same = cold.phases.iter().rev().find(|cold| cold.at == at);
        if let Some(found) = same.filter(|found| !found.read_backs.is_empty()) {
            return Some((&found.read_backs, cold.header.arm.clone()));
        }
    }
    let earlier = arm.earlier(index, phase.at)?;
    Some((&earlier.read_backs, format!("phase `{}` of the same arm", earlier.phase)))
}

fn equal(read: &ReadBackFact, wanted: &ReadBackFact) -> bool {
    read.content.is_some() && read.content == wanted.content
}

fn holds(read: &ReadBackFact, old: Option<&ReadBackFact>) -> Holds {
    match (read.content, old.and_then(|old| old.content)) {
        (None, _) => Holds::Unreadable,
        (Some(now), Some(old)) if now == old => Holds::Old,
        _ => Holds::Neither,
    }
}

fn pieces<'r>(
    read: &'r ReadBackFact,
    wanted: &'r ReadBackFact,
    old: Option<&'r ReadBackFact>,
) -> Vec<PieceDifference<'r>> {
    if read.pieces.len() != wanted.pieces.len() {
        return Vec::new();
    }
    let pairs = read.pieces.iter().zip(&wanted.pieces).enumerate();
    pairs
        .filter(|(_, (now, new))| now.content != new.content)
        .map(|(index, (now, _))| {
            let old = old.and_then(|old| old.pieces.get(index)).map(|old| old.content);
            let holds = if old == Some(now.content) { Holds::Old } else { Holds::Neither };
            PieceDifference { piece: now, holds }
        })
        .collect()
}
