//! Which experts of a layer are on a rank, and at which place of its stack.

use coldproof_contract::words::{ExpertPlace, Span};

use super::Shard;
use crate::kernels::ELSEWHERE;

/// The experts of one layer on one rank: which of the model's is at each place of the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldExperts(Vec<u64>);

impl HeldExperts {
    /// Consecutive experts, as many on each rank.
    pub(crate) fn consecutive(shard: Shard, experts: u64) -> Self {
        let own = shard.part(experts);
        Self((own.start..own.end).collect())
    }

    /// Those that were placed on the rank. That they are a permutation was checked before.
    pub(crate) fn placed(shard: Shard, places: &[ExpertPlace]) -> Self {
        let own = (0..).zip(places).filter(|(_, at)| u64::from(at.ep) == shard.rank);
        Self::in_order(own.map(|(expert, at)| (at.place, expert)))
    }

    /// Those that a map of the model's experts has a place for.
    pub(crate) fn mapped(map: &[i32]) -> Self {
        let own = (0..).zip(map).filter(|(_, place)| **place != ELSEWHERE);
        Self::in_order(own.map(|(expert, place)| (*place, expert)))
    }

    fn in_order<P: Ord>(own: impl Iterator<Item = (P, u64)>) -> Self {
        let mut own: Vec<(P, u64)> = own.collect();
        own.sort_unstable();
        Self(own.into_iter().map(|(_, expert)| expert).collect())
    }

    /// Places of the stack.
    pub(crate) const fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The expert at each place.
    pub(crate) fn experts(&self) -> &[u64] {
        &self.0
    }

    /// The place of an expert of the model, if it is here.
    pub(crate) fn place_of(&self, expert: u64) -> Option<u64> {
        self.0.iter().position(|own| *own == expert).map(|place| place as u64)
    }

    /// The place of each of the model's experts, as the forward reads it.
    pub(crate) fn map(&self, experts: u64) -> Vec<i32> {
        let place = |expert| self.place_of(expert).map_or(ELSEWHERE, |place| place as i32);
        (0..experts).map(place).collect()
    }

    /// Experts that follow one another here as in the model, each time with their first place.
    pub(crate) fn runs(&self) -> Vec<(Span, u64)> {
        let mut runs: Vec<(Span, u64)> = Vec::new();
        for (place, expert) in (0..).zip(&self.0) {
            match runs.last_mut() {
                Some((span, _)) if span.end == *expert => span.end += 1,
                _ => runs.push((Span::new(*expert, expert + 1), place)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placed_experts_are_in_the_order_of_their_places() {
        let second = Shard { rank: 1, ranks: 2 };
        let consecutive = HeldExperts::consecutive(second, 6);
        assert_eq!(consecutive.experts(), [3, 4, 5]);
        assert_eq!(consecutive.runs(), [(Span::new(3, 6), 0)]);
        assert_eq!(consecutive.map(6), [-1, -1, -1, 0, 1, 2]);
        let places = [(1, 2), (0, 0), (1, 0), (1, 1), (0, 2), (0, 1)].map(ExpertPlace::from);
        let placed = HeldExperts::placed(second, &places);
        assert_eq!(placed.experts(), [2, 3, 0]);
        assert_eq!(placed.runs(), [(Span::new(2, 4), 0), (Span::new(0, 1), 2)]);
        assert_eq!(HeldExperts::mapped(&placed.map(6)), placed);
        assert_eq!((placed.place_of(0), placed.place_of(1)), (Some(2), None));
    }
}
