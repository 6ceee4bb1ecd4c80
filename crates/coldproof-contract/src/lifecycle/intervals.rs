//! A set of disjoint intervals that remembers each interval as it was added.

use std::collections::BTreeMap;

use super::bits::Bits;
use crate::words::Span;

/// From this many intervals on, moving the tail of a list costs more than a search.
const LIST_MAX: usize = 64;

/// Bits are used where they take at most this many places an interval: 64 bytes, about twice what
/// a tree takes, for a tenth of its time.
const PLACES_MAX: u64 = 256;

/// Why an interval cannot be added: it is there already, or it meets another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clash {
    /// The same interval.
    Same,
    /// Another interval that shares indices with it.
    Meets(Span),
}

impl Clash {
    fn of(known: Span, span: Span) -> Self {
        if known == span { Self::Same } else { Self::Meets(known) }
    }
}

/// Disjoint, non-empty intervals. They are not merged: whether the very same interval comes again
/// is part of the question.
#[derive(Clone, Debug)]
pub(super) struct Intervals {
    whole: Span,
    kept: Kept,
}

#[derive(Clone, Debug)]
enum Kept {
    /// Few, sorted.
    List(Vec<Span>),
    /// Many, far apart: start to end.
    Tree(BTreeMap<u64, u64>),
    /// Many, close together.
    Bits(Bits),
}

impl Intervals {
    /// None yet, of those inside `whole`.
    pub(super) const fn inside(whole: Span) -> Self {
        Self { whole, kept: Kept::List(Vec::new()) }
    }

    /// The first interval that shares indices with a non-empty `span` inside the whole.
    pub(super) fn clash(&self, span: Span) -> Option<Clash> {
        let known = match &self.kept {
            Kept::List(list) => {
                let at = list.partition_point(|known| known.end <= span.start);
                list.get(at).copied().filter(|known| known.start < span.end)
            }
            Kept::Tree(tree) => {
                let before = tree.range(..=span.start).next_back();
                let within = before.filter(|&(_, &end)| end > span.start);
                let first = within.or_else(|| tree.range(span.start..span.end).next());
                first.map(|(&start, &end)| Span::new(start, end))
            }
            Kept::Bits(bits) => return bits.clash(span),
        };
        known.map(|known| Clash::of(known, span))
    }

    /// Adds a non-empty interval inside the whole.
    pub(super) fn add(&mut self, span: Span) -> Result<(), Clash> {
        match &mut self.kept {
            Kept::Bits(bits) => return bits.add(span),
            Kept::List(list) => {
                let at = list.partition_point(|known| known.end <= span.start);
                if let Some(known) = list.get(at).filter(|known| known.start < span.end) {
                    return Err(Clash::of(*known, span));
                }
                list.insert(at, span);
            }
            Kept::Tree(tree) => {
                let last = tree.range(..span.end).next_back();
                if last.is_some_and(|(_, &end)| end > span.start) {
                    return self.clash(span).map_or(Ok(()), Err);
                }
                tree.insert(span.start, span.end);
            }
        }
        self.rearrange();
        Ok(())
    }

    /// Changes what the intervals are kept in, where there are enough of them now.
    fn rearrange(&mut self) {
        let (count, is_list) = match &self.kept {
            Kept::List(list) => (list.len(), true),
            Kept::Tree(tree) => (tree.len(), false),
            Kept::Bits(_) => return,
        };
        if count <= LIST_MAX {
            return;
        }
        if self.whole.len() / PLACES_MAX <= count as u64 {
            let mut bits = Bits::new(self.whole);
            for span in self.iter() {
                // They are disjoint already.
                let added = bits.add(span);
                debug_assert_eq!(added, Ok(()));
            }
            self.kept = Kept::Bits(bits);
        } else if is_list {
            self.kept = Kept::Tree(self.iter().map(|span| (span.start, span.end)).collect());
        }
    }

    /// All intervals, ascending.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = Span> + '_> {
        match &self.kept {
            Kept::List(list) => Box::new(list.iter().copied()),
            Kept::Tree(tree) => Box::new(tree.iter().map(|(&start, &end)| Span::new(start, end))),
            Kept::Bits(bits) => Box::new(bits.iter()),
        }
    }

    /// What is missing of the whole, ascending.
    pub(super) fn gaps(&self) -> Vec<Span> {
        let whole = self.whole;
        let mut gaps = Vec::new();
        let mut next = whole.start;
        for span in self.iter() {
            if span.start > next {
                gaps.push(Span::new(next, span.start));
            }
            next = span.end;
        }
        if next < whole.end {
            gaps.push(Span::new(next, whole.end));
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rangemap::RangeMap;

    use super::*;

    fn filled(whole: u64, intervals: impl IntoIterator<Item = (u64, u64)>) -> Intervals {
        let mut set = Intervals::inside(Span::new(0, whole));
        for (start, end) in intervals {
            set.add(Span::new(start, end)).unwrap();
        }
        set
    }

    #[test]
    fn neighbours_are_disjoint_and_a_shared_index_is_not() {
        let mut set = filled(12, [(4, 8), (0, 4)]);
        assert_eq!(set.add(Span::new(8, 9)), Ok(()));
        assert_eq!(set.add(Span::new(7, 12)), Err(Clash::Meets(Span::new(4, 8))));
    }

    #[test]
    fn the_same_interval_is_told_from_a_part_of_it() {
        let mut set = filled(9, [(0, 4), (4, 8)]);
        assert_eq!(set.add(Span::new(0, 4)), Err(Clash::Same));
        assert_eq!(set.add(Span::new(0, 3)), Err(Clash::Meets(Span::new(0, 4))));
    }

    #[test]
    fn gaps_are_what_no_interval_holds() {
        let set = filled(9, [(2, 3), (5, 7)]);
        assert_eq!(set.gaps(), [Span::new(0, 2), Span::new(3, 5), Span::new(7, 9)]);
        assert_eq!(filled(9, [(0, 9)]).gaps(), []);
    }

    #[test]
    fn many_intervals_are_kept_in_bits_or_in_a_tree() {
        let apart = |step: u64| (0..100).map(move |at| (at * step, at * step + 1));
        assert!(matches!(filled(1_000, apart(10)).kept, Kept::Bits(_)));
        assert!(matches!(filled(10_000_000, apart(100_000)).kept, Kept::Tree(_)));
        assert!(matches!(filled(100, apart(1).take(64)).kept, Kept::List(_)));
    }

    /// Intervals drawn at random, against a map of ranges from intervals to their serial.
    fn agrees(origin: u64, stretch: u64, drawn: &[(u64, u64)]) {
        let whole = Span::new(origin, origin + 700 * stretch);
        let mut set = Intervals::inside(whole);
        let mut map: RangeMap<u64, usize> = RangeMap::new();
        for (serial, &(start, length)) in drawn.iter().enumerate() {
            let start = origin + start * stretch;
            let span = Span::new(start, (start + length * stretch).min(whole.end));
            let met = map.overlapping(span.start..span.end).next();
            let met = met.map(|(range, _)| Clash::of(Span::new(range.start, range.end), span));
            assert_eq!(set.clash(span), met);
            assert_eq!(set.add(span), met.map_or(Ok(()), Err));
            if met.is_none() {
                map.insert(span.start..span.end, serial);
            }
        }
        let gaps: Vec<Span> =
            map.gaps(&(whole.start..whole.end)).map(|gap| Span::new(gap.start, gap.end)).collect();
        assert_eq!(set.gaps(), gaps);
        let kept: Vec<Span> =
            map.iter().map(|(range, _)| (range.start, range.end).into()).collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), kept);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(300)
        })]

        #[test]
        fn lists_bits_and_trees_agree_with_a_map_of_ranges(
            origin in 0_u64..200,
            drawn in proptest::collection::vec((0_u64..700, 1_u64..4), 0..400),
            long in proptest::collection::vec((0_u64..700, 60_u64..200), 0..4),
        ) {
            let drawn: Vec<_> = long.into_iter().chain(drawn).collect();
            agrees(origin, 1, &drawn);
            agrees(origin, 1_000, &drawn);
        }
    }
}
