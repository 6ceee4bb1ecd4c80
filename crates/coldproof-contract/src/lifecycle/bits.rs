//! Disjoint intervals as bits: two a place, whether it is covered and whether an interval begins.

use super::intervals::Clash;
use crate::words::Span;

/// 64 places.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    covered: u64,
    begins: u64,
}

/// Disjoint, non-empty intervals inside `whole`.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    whole: Span,
    words: Vec<Word>,
}

impl Bits {
    pub(super) fn new(whole: Span) -> Self {
        let words = usize::try_from(whole.len().div_ceil(64)).unwrap_or(usize::MAX);
        Self { whole, words: vec![Word::default(); words] }
    }

    /// The words that a span inside `whole` touches, each with the bits of the span in it.
    fn masks(&self, span: Span) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (start, end) = (span.start - self.whole.start, span.end - self.whole.start);
        (start / 64..end.div_ceil(64)).map(move |word| {
            let low = start.saturating_sub(word * 64);
            let high = (end - word * 64).min(64);
            // `high` is at least 1: the last word holds the last place of the span.
            (word as usize, (u64::MAX >> (64 - high)) & (u64::MAX << low))
        })
    }

    /// The first interval that shares places with a non-empty span inside `whole`.
    pub(super) fn clash(&self, span: Span) -> Option<Clash> {
        let met = self.masks(span).find_map(|(at, mask)| {
            let common = self.words.get(at)?.covered & mask;
            (common != 0).then(|| at as u64 * 64 + u64::from(common.trailing_zeros()))
        })?;
        let known = self.around(met);
        Some(if known == span { Clash::Same } else { Clash::Meets(known) })
    }

    /// Adds a non-empty span inside `whole`.
    #[inline]
    pub(super) fn add(&mut self, span: Span) -> Result<(), Clash> {
        let word = |at: usize| self.words.get(at).map_or(0, |word| word.covered);
        if self.masks(span).any(|(at, mask)| word(at) & mask != 0) {
            return self.clash(span).map_or(Ok(()), Err);
        }
        let first = span.start - self.whole.start;
        for (at, mask) in self.masks(span) {
            if let Some(word) = self.words.get_mut(at) {
                word.covered |= mask;
            }
        }
        if let Some(word) = self.words.get_mut((first / 64) as usize) {
            word.begins |= 1 << (first % 64);
        }
        Ok(())
    }

    fn is(&self, place: u64, bits: impl Fn(&Word) -> u64) -> bool {
        self.words
            .get((place / 64) as usize)
            .is_some_and(|word| bits(word) >> (place % 64) & 1 == 1)
    }

    /// The interval that covers a place.
    fn around(&self, place: u64) -> Span {
        let begins = |at: u64| self.is(at, |word| word.begins);
        let covers = |at: u64| self.is(at, |word| word.covered);
        let start = (0..=place).rev().find(|&at| begins(at)).unwrap_or(0);
        let end = (place + 1..self.whole.len()).find(|&at| begins(at) || !covers(at));
        let end = end.unwrap_or(self.whole.len());
        Span::new(self.whole.start + start, self.whole.start + end)
    }

    /// All intervals, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        let begins = self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut left = word.begins;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| u64::from(left.trailing_zeros()))?;
                left &= left - 1;
                Some(at as u64 * 64 + bit)
            })
        });
        begins.map(|start| self.around(start))
    }
}
