//! Where the bytes of a live engine differ from those they must equal.

use std::collections::{BTreeMap, BTreeSet};

use super::view::{ArmView, PhaseView, Seen, SlotKey, View};
use super::{LaneName, PieceContent, ReadBackFact, SlotFact};
use crate::words::{Hex128, Rank, SlotKind, SlotName};

/// What a differing slot or piece holds instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Another rank, which must hold these bytes in its own slot of the name.
    pub right_on: Option<Rank>,
    /// Differing pieces, for a slot that is a bijection of its sources.
    pub pieces: Vec<PieceDifference<'r>>,
}

/// A slot that the reference has and the live engine lacks.
#[derive(Clone, Copy, Debug)]
pub struct Absence<'r> {
    /// In which arm, by ordinal.
    pub arm: usize,
    /// Ordinal of the phase in the arm.
    pub phase_index: usize,
    /// Which rank.
    pub rank: Rank,
    /// The slot, as the reference registers it.
    pub slot: &'r SlotFact,
    /// Whether the live engine still registers it, without a storage.
    pub registered: bool,
}

/// What the parameters of one rank hold after one update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Slots that hold the new bytes, and held others before.
    pub renewed: u64,
    /// Slots that hold the bytes of the generation before, where others are wanted.
    pub old: u64,
    /// Slots that hold neither, or cannot be read.
    pub neither: u64,
}

/// Equal slots of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Equal {
    cold: u64,
    earlier: u64,
}

/// All comparisons of one run.
#[derive(Debug, Default)]
pub struct Comparison<'r> {
    /// Slots that differ.
    pub differences: Vec<Difference<'r>>,
    /// Slots that are not there.
    pub absences: Vec<Absence<'r>>,
    /// Comparisons that could not be made: the kind that they were of (all, where there is none),
    /// and why.
    pub gaps: BTreeSet<(Option<SlotKind>, String)>,
    /// Slots that were compared after an update and are equal, but also equal to the old bytes:
    /// their equality proves nothing. By (slot), until an arm shows a change.
    pub unchanged: BTreeMap<String, bool>,
    /// Slots of a live engine that no cold load registers: there is nothing to compare them with.
    pub unmatched: BTreeSet<String>,
    /// What parameters hold, by (arm, phase, rank).
    pub tallies: BTreeMap<(usize, usize, Rank), Tally>,
    equal: BTreeMap<SlotKind, Equal>,
}

impl<'r> Comparison<'r> {
    /// Compares every read-back of every arm with what it must equal.
    #[must_use]
    pub fn of(view: &View<'r>) -> Self {
        let mut comparison = Self::default();
        let arms = view.arms.iter().enumerate();
        let read = |arm: &ArmView<'_>| arm.phases.iter().any(|phase| !phase.read_backs.is_empty());
        for (index, arm) in arms.filter(|(_, arm)| arm.updates() || read(arm)) {
            let mut cold = false;
            for phase in 0..arm.phases.len() {
                cold |= comparison.phase(view, (index, arm), phase);
            }
            let updated = arm.phases.iter().any(|phase| phase.from.is_some());
            if updated && arm.header.against.is_some() && !cold {
                let text = format!("arm `{}` was compared with no cold load", arm.header.arm);
                comparison.gaps.insert((None, text));
            }
        }
        comparison
    }

    /// Comparisons of these kinds that found equality after an update.
    #[must_use]
    pub fn equal_of(&self, kinds: &[SlotKind]) -> u64 {
        let of = |kind: &SlotKind| self.equal.get(kind).map(|equal| equal.cold + equal.earlier);
        kinds.iter().filter_map(of).sum()
    }

    /// Those of them that were made with an independent cold load.
    #[must_use]
    pub fn equal_to_cold(&self, kinds: &[SlotKind]) -> u64 {
        kinds.iter().filter_map(|kind| self.equal.get(kind)).map(|equal| equal.cold).sum()
    }

    /// Whether any update gave a parameter other bytes than it had, right or not: where none did,
    /// equality shows nothing.
    #[must_use]
    pub fn renewed(&self) -> bool {
        self.tallies.values().any(|tally| tally.renewed + tally.neither > 0)
    }

    /// The difference of this slot in the same phase and on the same rank.
    #[must_use]
    pub fn beside(&self, near: &Difference<'_>, slot: &SlotName) -> Option<&Difference<'r>> {
        self.differences.iter().find(|other| {
            other.arm == near.arm
                && other.phase_index == near.phase_index
                && other.rank == near.rank
                && other.slot.slot == *slot
        })
    }

    /// Compares one phase; whether it was compared with a cold load.
    fn phase(&mut self, view: &View<'r>, of: (usize, &ArmView<'r>), index: usize) -> bool {
        let arm = of.1;
        let Some(phase) = arm.phases.get(index).filter(|phase| phase.from.is_some()) else {
            return false;
        };
        // The routing lane reads sentinels, which their decoded origins show.
        if phase.read_backs.is_empty() && arm.header.lane != LaneName::Routing {
            let text =
                format!("arm `{}` was not read back after `{}`", arm.header.arm, phase.phase);
            self.gaps.insert((None, text));
        }
        let Some(reference) = reference(view, arm, index) else { return false };
        self.presence(of, index, phase, &reference);
        let old = arm.earlier(index, phase.from).map(|old| &old.read_backs);
        let mut places = None;
        for (key, read) in &phase.read_backs {
            let Some(wanted) = reference.phase.read_backs.get(key) else { continue };
            // What moved is compared by source.
            if phase.has_moved(key.1.owner(), reference.phase) {
                continue;
            }
            let Some(slot) = slot_at(arm, index, *key) else {
                let text = format!("`{}` was read back and is not registered", key.1);
                self.gaps.insert((None, text));
                continue;
            };
            let old = old.and_then(|old| old.get(key)).map(|old| old.fact);
            let holds = holds(read.fact, old);
            let parameter = slot.slot_kind == SlotKind::Parameter;
            let tally = parameter.then(|| self.tallies.entry((of.0, index, key.0)).or_default());
            if equal(read.fact, wanted.fact) {
                let equal = self.equal.entry(slot.slot_kind).or_default();
                *(if reference.cold { &mut equal.cold } else { &mut equal.earlier }) += 1;
                let same = holds == Holds::Old;
                let entry = self.unchanged.entry(slot.slot.0.clone()).or_insert(true);
                *entry &= same;
                tally.into_iter().for_each(|tally| tally.renewed += u64::from(!same));
                continue;
            }
            tally.into_iter().for_each(|tally| match holds {
                Holds::Old => tally.old += 1,
                Holds::Neither | Holds::Unreadable => tally.neither += 1,
            });
            let places = places.get_or_insert_with(|| places_of(reference.phase));
            let content = read.fact.content;
            self.differences.push(Difference {
                arm: &arm.header.arm,
                phase: phase.phase,
                phase_index: index,
                rank: key.0,
                slot,
                read: **read,
                reference: wanted.fact,
                against: reference.name.clone(),
                holds,
                right_on: content.and_then(|content| places.get(&(key.1, content)).copied()),
                pieces: pieces(read.fact, wanted.fact, old),
            });
        }
        reference.cold && !phase.read_backs.is_empty()
    }

    /// Compares which slots there are, before what they hold.
    fn presence(
        &mut self,
        (arm, view): (usize, &ArmView<'r>),
        phase_index: usize,
        phase: &PhaseView<'r>,
        reference: &Reference<'_, 'r>,
    ) {
        for (key, slot) in &reference.phase.slots {
            let (rank, slot) = (key.0, slot.fact);
            let now = phase.slots.get(key);
            let gone = !phase.slots.is_empty() && now.is_none();
            let unbound = now.is_some_and(|now| now.fact.fingerprint.is_none());
            if gone || (unbound && slot.fingerprint.is_some()) {
                let registered = !gone;
                self.absences.push(Absence { arm, phase_index, rank, slot, registered });
                continue;
            }
            let wanted = reference.phase.read_backs.contains_key(key);
            let read = phase.read_backs.contains_key(key);
            if wanted != read && !phase.read_backs.is_empty() {
                let name = if wanted { &view.header.arm } else { &reference.name };
                let text = format!("`{}` of `{name}` was not read back", slot.slot);
                self.gaps.insert((Some(slot.slot_kind), text));
            }
        }
        let extra = phase.slots.keys().filter(|key| !reference.phase.slots.contains_key(*key));
        if reference.cold && !reference.phase.slots.is_empty() {
            self.unmatched.extend(extra.map(|(_, name)| name.0.clone()));
        }
    }
}

fn slot_at<'r>(arm: &ArmView<'r>, index: usize, key: SlotKey<'r>) -> Option<&'r SlotFact> {
    let phases = arm.phases.get(..=index)?;
    phases.iter().rev().find_map(|phase| phase.slots.get(&key)).map(|slot| slot.fact)
}

/// What a phase must equal.
struct Reference<'v, 'r> {
    phase: &'v PhaseView<'r>,
    /// The cold arm, or the earlier phase, in words.
    name: String,
    cold: bool,
}

/// The cold arm where it serves the same checkpoint, else an earlier phase that did.
fn reference<'v, 'r>(
    view: &'v View<'r>,
    arm: &'v ArmView<'r>,
    index: usize,
) -> Option<Reference<'v, 'r>> {
    let phase: &PhaseView<'r> = arm.phases.get(index)?;
    if let Some(cold) = view.against(arm).filter(|cold| cold.header.topology == arm.header.topology)
    {
        let at = view.content(phase.at);
        let same = cold.phases.iter().rev().find(|cold| cold.at == at);
        if let Some(phase) = same.filter(|found| !found.read_backs.is_empty()) {
            return Some(Reference { phase, name: cold.header.arm.clone(), cold: true });
        }
    }
    let phase = arm.earlier(index, phase.at)?;
    let name = format!("phase `{}` of the same arm", phase.phase);
    Some(Reference { phase, name, cold: false })
}

/// The first rank that holds each content of each slot.
fn places_of<'r>(phase: &PhaseView<'r>) -> BTreeMap<(&'r SlotName, Hex128), Rank> {
    let held = phase.read_backs.iter().rev();
    held.filter_map(|((rank, slot), read)| Some(((*slot, read.fact.content?), *rank))).collect()
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
