//! A set of disjoint intervals that remembers each interval as it was added.

use std::collections::BTreeMap;

use crate::words::Span;

/// From this many intervals on, a tree is cheaper than moving the tail of a list.
const LIST_MAX: usize = 64;

/// Why an interval cannot be added: it is there already, or it meets another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clash {
    /// The same interval.
    Same,
    /// Another interval that shares indices with it.
    Meets(Span),
}

/// Disjoint, non-empty intervals. They are not merged: whether the very same interval comes again
/// is part of the question.
#[derive(Clone, Debug)]
pub(super) enum Intervals {
    /// Few, sorted.
    List(Vec<Span>),
    /// Many: start to end.
    Tree(BTreeMap<u64, u64>),
}

impl Intervals {
    pub(super) fn one(span: Span) -> Self {
        Self::List(vec![span])
    }

    /// The first interval that shares indices with `span`.
    pub(super) fn clash(&self, span: Span) -> Option<Clash> {
        let earlier = match self {
            Self::List(list) => {
                let at = list.partition_point(|known| known.end <= span.start);
                list.get(at).copied().filter(|known| known.start < span.end)
            }
            Self::Tree(tree) => {
                let before = tree.range(..span.end).next_back();
                before.map(|(&start, &end)| Span::new(start, end)).filter(|b| b.end > span.start)
            }
        };
        earlier.map(|known| if known == span { Clash::Same } else { Clash::Meets(known) })
    }

    /// Adds a non-empty interval.
    pub(super) fn add(&mut self, span: Span) -> Result<(), Clash> {
        match self {
            Self::List(list) => {
                let at = list.partition_point(|known| known.end <= span.start);
                if let Some(known) = list.get(at).filter(|known| known.start < span.end) {
                    return Err(if *known == span { Clash::Same } else { Clash::Meets(*known) });
                }
                list.insert(at, span);
                if list.len() > LIST_MAX {
                    *self = Self::Tree(list.iter().map(|span| (span.start, span.end)).collect());
                }
                Ok(())
            }
            Self::Tree(tree) => {
                let before = tree.range(..span.end).next_back();
                if let Some((&start, &end)) = before.filter(|&(_, &end)| end > span.start) {
                    let known = Span::new(start, end);
                    return Err(if known == span { Clash::Same } else { Clash::Meets(known) });
                }
                tree.insert(span.start, span.end);
                Ok(())
            }
        }
    }

    /// All intervals, ascending.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = Span> + '_> {
        match self {
            Self::List(list) => Box::new(list.iter().copied()),
            Self::Tree(tree) => Box::new(tree.iter().map(|(&start, &end)| Span::new(start, end))),
        }
    }

    /// What is missing of `whole`, which holds all intervals, ascending.
    pub(super) fn gaps(&self, whole: Span) -> Vec<Span> {
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
    use super::*;

    fn filled(intervals: impl IntoIterator<Item = (u64, u64)>) -> Intervals {
        let mut set = Intervals::List(Vec::new());
        for (start, end) in intervals {
            set.add(Span::new(start, end)).unwrap();
        }
        set
    }

    #[test]
    fn neighbours_are_disjoint_and_a_shared_index_is_not() {
        let mut set = filled([(4, 8), (0, 4)]);
        assert_eq!(set.add(Span::new(8, 9)), Ok(()));
        assert_eq!(set.add(Span::new(7, 12)), Err(Clash::Meets(Span::new(4, 8))));
    }

    #[test]
    fn the_same_interval_is_told_from_a_part_of_it() {
        let mut set = filled([(0, 4), (4, 8)]);
        assert_eq!(set.add(Span::new(0, 4)), Err(Clash::Same));
        assert_eq!(set.add(Span::new(0, 3)), Err(Clash::Meets(Span::new(0, 4))));
        assert_eq!(set.clash(Span::new(2, 9)), set.add(Span::new(2, 9)).err());
    }

    #[test]
    fn many_intervals_behave_as_few_do() {
        // 7 is coprime to 101, so this visits 0..101 in a shuffled order.
        let mut set = filled((0..101).map(|i| (i * 7) % 101).map(|i| (2 * i, 2 * i + 1)));
        assert!(matches!(set, Intervals::Tree(_)));
        assert_eq!(set.add(Span::new(20, 21)), Err(Clash::Same));
        assert_eq!(set.add(Span::new(19, 21)), Err(Clash::Meets(Span::new(20, 21))));
        assert_eq!(set.add(Span::new(19, 20)), Ok(()));
        let odd = (1..200).step_by(2).map(|start| Span::new(start, start + 1));
        let left: Vec<Span> = odd.filter(|span| span.start != 19).collect();
        assert_eq!(set.gaps(Span::new(0, 201)), left);
    }

    #[test]
    fn gaps_are_what_no_interval_holds() {
        let set = filled([(2, 3), (5, 7)]);
        let gaps = [Span::new(0, 2), Span::new(3, 5), Span::new(7, 9)];
        assert_eq!(set.gaps(Span::new(0, 9)), gaps);
        assert_eq!(filled([(0, 9)]).gaps(Span::new(0, 9)), []);
    }
}
