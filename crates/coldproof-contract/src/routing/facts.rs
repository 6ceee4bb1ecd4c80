//! What the routing check reads: where a slot's elements came from, and where they should have.

use std::collections::{BTreeMap, BTreeSet};

use super::{PlacedPiece, SlotPlacement};
use crate::evidence::OriginsFact;
use crate::words::Fragment;

/// Consecutive elements of a slot that come from consecutive elements of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run<'r> {
    /// First logical element of the slot.
    pub slot: u64,
    /// Elements.
    pub length: u64,
    /// The source; absent where the elements came from none.
    pub source: Option<&'r str>,
    /// First element of the source.
    pub element: u64,
}

/// The runs that a placement expects, in slot order; nothing where there may be more than
/// [`RUNS_MAX`].
#[must_use]
pub(super) fn expected<'p>(
    placement: &'p SlotPlacement,
    shape_of: &BTreeMap<&str, &[u64]>,
) -> Option<Vec<Run<'p>>> {
    let rows = |fragment: &Fragment| match fragment.0.last() {
        Some(inner) if !inner.is_empty() => fragment.volume() / inner.len(),
        _ => 1,
    };
    let pieces = placement.pieces.iter().map(|placed| &placed.piece);
    let most = pieces.map(|piece| rows(&piece.source_fragment) + rows(&piece.slot_fragment));
    if most.fold(0, u64::saturating_add) > RUNS_MAX {
        return None;
    }
    let mut runs = Vec::new();
    for placed in &placement.pieces {
        piece_runs(placed, &placement.shape, shape_of, &mut runs);
    }
    runs.sort_unstable();
    Some(runs)
}

fn piece_runs<'p>(
    placed: &'p PlacedPiece,
    slot_shape: &[u64],
    shape_of: &BTreeMap<&str, &[u64]>,
    runs: &mut Vec<Run<'p>>,
) {
    let Some(source_shape) = shape_of.get(placed.source.as_str()) else { return };
    let of_piece = placed.piece.runs(source_shape, slot_shape);
    runs.extend(of_piece.into_iter().map(|(element, slot, length)| Run {
        slot,
        length,
        source: Some(&placed.source),
        element,
    }));
}

/// The runs that were decoded, in slot order, one by one.
///
/// Nothing where they are malformed: beyond the slot's `elements`, without an end, or of a source
/// that is not named.
#[must_use]
pub(super) fn decoded(fact: &OriginsFact, elements: u64) -> Option<Vec<Run<'_>>> {
    let mut runs = Vec::new();
    let mut left = elements;
    for run in &fact.runs {
        let source = match run.source {
            Some(index) => Some(fact.sources.get(usize::try_from(index).ok()?)?.as_str()),
            None => None,
        };
        if run.length == 0 || run.count > RUNS_MAX - runs.len() as u64 {
            return None;
        }
        for step in 0..run.count {
            left = left.checked_sub(run.length)?;
            let slot = run.slot_step.checked_mul(step).and_then(|by| run.slot.checked_add(by))?;
            let by = run.source_step.checked_mul(i64::try_from(step).ok()?)?;
            let element = run.element.checked_add_signed(by)?;
            slot.checked_add(run.length).filter(|end| *end <= elements)?;
            element.checked_add(run.length)?;
            runs.push(Run { slot, length: run.length, source, element });
        }
    }
    runs.sort_unstable();
    Some(runs)
}

/// The most runs of one slot that are taken apart.
const RUNS_MAX: u64 = 1 << 24;

/// How one slot's origins differ from those expected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// Elements that are where they belong.
    pub right: u64,
    /// Elements of this rank's share of the slot that stand in another place of it.
    pub reordered: u64,
    /// Elements that belong to another rank, or to another slot.
    pub foreign: u64,
    /// Elements that came from no source, by the source that they should have come from.
    pub unloaded: BTreeMap<String, u64>,
    /// Sources in whose place something else stands.
    pub misplaced: BTreeSet<String>,
    /// The first wrong element: (slot element, expected, found).
    pub first: Option<(u64, String, String)>,
}

impl Mismatch {
    /// Compares run by run.
    #[must_use]
    pub(super) fn of(expected: &[Run<'_>], found: &[Run<'_>]) -> Self {
        let mut mismatch = Self::default();
        let share = share(expected);
        let mut index = 0;
        for want in expected {
            let end = want.slot + want.length;
            let mut at = want.slot;
            while at < end {
                while found.get(index).is_some_and(|run| run.slot + run.length <= at) {
                    index += 1;
                }
                let (upto, source, element) = match found.get(index) {
                    Some(run) if run.slot <= at => (
                        (run.slot + run.length).min(end),
                        run.source,
                        run.element + (at - run.slot),
                    ),
                    Some(run) => (run.slot.min(end), None, 0),
                    None => (end, None, 0),
                };
                let wanted = want.element + (at - want.slot);
                mismatch.count(want, wanted, source, element, (at, upto - at), &share);
                at = upto;
            }
        }
        mismatch
    }

    fn count(
        &mut self,
        want: &Run<'_>,
        wanted: u64,
        source: Option<&str>,
        element: u64,
        (at, length): (u64, u64),
        share: &Share<'_>,
    ) {
        let expected = want.source.unwrap_or_default();
        if source == want.source && element == wanted {
            self.right += length;
            return;
        }
        let found = match source {
            None => {
                *self.unloaded.entry(expected.to_owned()).or_default() += length;
                "no source".to_owned()
            }
            Some(source) => {
                self.misplaced.insert(expected.to_owned());
                if holds(share, source, element) {
                    self.reordered += length;
                } else {
                    self.foreign += length;
                }
                format!("{source}[{element}]")
            }
        };
        self.first.get_or_insert((at, format!("{expected}[{wanted}]"), found));
    }

    /// Whether every element is where it belongs.
    #[must_use]
    pub(super) fn is_clean(&self) -> bool {
        self.reordered == 0 && self.foreign == 0 && self.unloaded.is_empty()
    }
}

/// Elements of each source that belong into the slot, as sorted (first, one past last).
type Share<'r> = BTreeMap<&'r str, Vec<(u64, u64)>>;

fn share<'r>(expected: &[Run<'r>]) -> Share<'r> {
    let mut share: Share<'r> = BTreeMap::new();
    for run in expected {
        let source = run.source.unwrap_or_default();
        share.entry(source).or_default().push((run.element, run.element + run.length));
    }
    for spans in share.values_mut() {
        spans.sort_unstable();
    }
    share
}

fn holds(share: &Share<'_>, source: &str, element: u64) -> bool {
    let Some(spans) = share.get(source) else { return false };
    let after = spans.partition_point(|(start, _)| *start <= element);
    after.checked_sub(1).and_then(|i| spans.get(i)).is_some_and(|(_, end)| element < *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(slot: u64, length: u64, source: &str, element: u64) -> Run<'_> {
        let source = (!source.is_empty()).then_some(source);
        Run { slot, length, source, element }
    }

    #[test]
    fn right_elements_in_other_runs_are_right() {
        let expected = [run(0, 4, "w", 8), run(4, 4, "w", 12)];
        let found = [run(0, 3, "w", 8), run(3, 5, "w", 11)];
        assert!(Mismatch::of(&expected, &found).is_clean());
    }

    #[test]
    fn another_ranks_elements_are_foreign_and_own_ones_are_reordered() {
        let expected = [run(0, 4, "w", 4)];
        let foreign = Mismatch::of(&expected, &[run(0, 4, "w", 0)]);
        assert_eq!((foreign.foreign, foreign.reordered), (4, 0));
        let swapped = Mismatch::of(&expected, &[run(0, 2, "w", 6), run(2, 2, "w", 4)]);
        assert_eq!((swapped.foreign, swapped.reordered), (0, 4));
    }

    #[test]
    fn elements_of_no_source_are_counted_under_the_source_that_went_nowhere() {
        let found = [run(0, 2, "w", 0), run(2, 2, "", 0)];
        let mismatch = Mismatch::of(&[run(0, 2, "w", 0), run(2, 4, "v", 0)], &found);
        assert_eq!(mismatch.unloaded.get("v"), Some(&4));
        assert_eq!(mismatch.right, 2);
    }
}
