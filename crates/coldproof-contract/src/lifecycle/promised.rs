//! One promised piece: where its elements lie on both sides, and what has been applied of it.

use super::cover::{Collision, Cover};
use super::rules::ApplicationIdentity;
use crate::routing::Piece;
use crate::words::{Fragment, Span};

/// Spans that a piece holds within itself: a matrix on both sides, or one behind an expert axis.
const NEAR: usize = 5;

/// Spans of the source, then of the slot.
#[derive(Clone, Debug)]
enum Spans {
    Near([Span; NEAR]),
    Far(Box<[Span]>),
}

/// A promised piece. Two cache lines, so that a ledger of a million fetches one place a write.
///
/// Source and slot share their trailing axes; what one side has more are leading axes one index
/// long. Parts of the piece are given along the shared axes, in indices of the source.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Promised {
    cover: Cover,
    spans: Spans,
    pub(super) slot: u32,
    /// Pieces of the same source from this one on.
    pub(super) run: u32,
    source_axes: u8,
    slot_axes: u8,
}

impl Promised {
    /// Nothing applied yet. The manifest has checked the piece: few axes, and aligned.
    pub(super) fn new(piece: &ApplicationIdentity, slot: u32, run: u32) -> Self {
        let (source, target) = (&piece.source_fragment.0, &piece.slot_fragment.0);
        let all: Vec<Span> = source.iter().chain(target).copied().collect();
        let mut near = [Span::new(0, 0); NEAR];
        let spans = match near.get_mut(..all.len()) {
            Some(places) => {
                places.copy_from_slice(&all);
                Spans::Near(near)
            }
            None => Spans::Far(all.into()),
        };
        let axes = |fragment: &[Span]| u8::try_from(fragment.len()).unwrap_or(u8::MAX);
        let (source_axes, slot_axes) = (axes(source), axes(target));
        Self { cover: Cover::default(), spans, slot, run, source_axes, slot_axes }
    }

    fn sides(&self) -> (&[Span], &[Span]) {
        sides(&self.spans, self.source_axes, self.slot_axes)
    }

    /// The piece along the axes that both sides share.
    fn whole(&self) -> &[Span] {
        let (source, slot) = self.sides();
        shared(source, slot).0
    }

    /// Records an application that is the whole piece, of which nothing was applied before. Nothing
    /// changes where it is not. The common case, in so few instructions that a processor begins the
    /// next application while it waits for the memory of this one.
    #[inline]
    fn apply_whole(&mut self, slot: u32, from: &[Span], to: &[Span]) -> bool {
        let (Spans::Near(near), Cover::Nothing) = (&self.spans, &self.cover) else { return false };
        let axes = (usize::from(self.source_axes), usize::from(self.slot_axes));
        let same = |(part, whole): (&Span, &Span)| part == whole && part.start < part.end;
        let is_whole = self.slot == slot
            && axes == (from.len(), to.len())
            && from.iter().chain(to).zip(near).all(same);
        if is_whole {
            self.cover = Cover::Whole;
        }
        is_whole
    }

    /// Records an application that lies inside the piece and moves elements as the piece does.
    /// Nothing where it does not, or belongs to another slot.
    #[inline]
    pub(super) fn apply(
        &mut self,
        slot: u32,
        from: &[Span],
        to: &[Span],
    ) -> Option<Result<(), Collision>> {
        if self.apply_whole(slot, from, to) {
            return Some(Ok(()));
        }
        let Self { cover, spans, source_axes, slot_axes, .. } = self;
        let (source, target) = sides(spans, *source_axes, *slot_axes);
        let fits = self.slot == slot && is_inside(from, source);
        if !fits || !is_image(source, target, from, to) {
            return None;
        }
        Some(cover.add(shared(from, to).0, shared(source, target).0))
    }

    /// The part of an application that lies inside the piece; nothing where there is none, or it
    /// moves elements otherwise.
    pub(super) fn part(&self, from: &[Span], to: &[Span]) -> Option<Vec<Span>> {
        let (source, slot) = self.sides();
        if !is_image(source, slot, from, to) {
            return None;
        }
        let both = shared(from, to).0.iter().zip(self.whole());
        let part: Vec<Span> = both.map(|(part, whole)| part.intersect(*whole)).collect();
        part.iter().all(|span| !span.is_empty()).then_some(part)
    }

    /// Records a part.
    pub(super) fn add(&mut self, part: &[Span]) -> Result<(), Collision> {
        let (source, slot) = sides(&self.spans, self.source_axes, self.slot_axes);
        self.cover.add(part, shared(source, slot).0)
    }

    /// What stands against recording a part.
    pub(super) fn collision(&self, part: &[Span]) -> Option<Collision> {
        self.cover.collision(part, self.whole())
    }

    /// What has not been applied.
    pub(super) fn missing(&self) -> Vec<Piece> {
        let parts = self.cover.missing(self.whole());
        parts.iter().map(|part| self.piece_of(part)).collect()
    }

    /// Whether everything has been applied.
    pub(super) fn is_complete(&self) -> bool {
        self.cover.missing(self.whole()).is_empty()
    }

    /// Both fragments of a part.
    pub(super) fn piece_of(&self, part: &Fragment) -> Piece {
        let (source, slot) = self.sides();
        let (shared_source, shared_slot) = shared(source, slot);
        let lead = |side: &[Span]| side.len().saturating_sub(part.0.len());
        let moved = part.0.iter().zip(shared_source.iter().zip(shared_slot));
        let moved = moved.map(|(part, (source, slot))| {
            let offset = slot.start.wrapping_sub(source.start);
            Span::new(part.start.wrapping_add(offset), part.end.wrapping_add(offset))
        });
        let source_lead = source.iter().take(lead(source)).copied();
        let slot_lead = slot.iter().take(lead(slot)).copied();
        Piece {
            source_fragment: Fragment(source_lead.chain(part.0.iter().copied()).collect()),
            slot_fragment: Fragment(slot_lead.chain(moved).collect()),
        }
    }

    /// Where elements of the source lie in the slot, if they are all inside the piece.
    pub(super) fn image(&self, from: &[Span]) -> Option<Fragment> {
        let (source, slot) = self.sides();
        let part = from.get(source.len().saturating_sub(slot.len())..)?;
        is_inside(from, source).then(|| self.piece_of(&Fragment(part.to_vec())).slot_fragment)
    }
}

fn sides(spans: &Spans, source_axes: u8, slot_axes: u8) -> (&[Span], &[Span]) {
    let all: &[Span] = match spans {
        Spans::Near(near) => near,
        Spans::Far(far) => far,
    };
    let middle = usize::from(source_axes);
    let end = middle + usize::from(slot_axes);
    (all.get(..middle).unwrap_or(&[]), all.get(middle..end).unwrap_or(&[]))
}

/// The trailing axes that two sides share.
fn shared<'a>(source: &'a [Span], slot: &'a [Span]) -> (&'a [Span], &'a [Span]) {
    let axes = source.len().min(slot.len());
    (trailing(source, axes).1, trailing(slot, axes).1)
}

fn trailing(spans: &[Span], axes: usize) -> (&[Span], &[Span]) {
    spans.split_at(spans.len().saturating_sub(axes))
}

/// Whether an application moves elements as a piece does: the same axes, and the same offset along
/// each. It may reach beyond the piece.
fn is_image(source: &[Span], slot: &[Span], from: &[Span], to: &[Span]) -> bool {
    if from.len() != source.len() || to.len() != slot.len() {
        return false;
    }
    let axes = source.len().min(slot.len());
    let ((from_lead, from), (to_lead, to)) = (trailing(from, axes), trailing(to, axes));
    let ((source_lead, source), (slot_lead, slot)) = (trailing(source, axes), trailing(slot, axes));
    let moves = |((from, to), (source, slot)): ((&Span, &Span), (&Span, &Span))| {
        let offset = slot.start.wrapping_sub(source.start);
        from.start.wrapping_add(offset) == to.start && from.end.wrapping_add(offset) == to.end
    };
    from_lead == source_lead
        && to_lead == slot_lead
        && from.iter().zip(to).zip(source.iter().zip(slot)).all(moves)
}

/// Whether a box that is not empty lies inside another.
fn is_inside(part: &[Span], whole: &[Span]) -> bool {
    part.len() == whole.len()
        && part
            .iter()
            .zip(whole)
            .all(|(p, w)| w.start <= p.start && p.start < p.end && p.end <= w.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(spans: &[(u64, u64)]) -> Vec<Span> {
        spans.iter().map(|&span| span.into()).collect()
    }

    fn promised(from: &[(u64, u64)], to: &[(u64, u64)]) -> Promised {
        let identity = ApplicationIdentity {
            source: "w".to_owned(),
            source_fragment: Fragment(spans(from)),
            slot: "w".into(),
            slot_fragment: Fragment(spans(to)),
        };
        Promised::new(&identity, 0, 1)
    }

    #[test]
    fn a_piece_takes_two_cache_lines() {
        assert_eq!(size_of::<Promised>(), 128);
    }

    #[test]
    fn few_and_many_axes_behave_alike() {
        for extra in [0, 3] {
            let with = |own: &[(u64, u64)]| [vec![(0, 2); extra], own.to_vec()].concat();
            let mut piece = promised(&with(&[(4, 6)]), &with(&[(0, 2)]));
            let (from, to) = (spans(&with(&[(4, 5)])), spans(&with(&[(0, 1)])));
            assert_eq!(piece.apply(0, &from, &to), Some(Ok(())));
            assert_eq!(piece.apply(0, &from, &to), Some(Err(Collision::Same)));
            assert_eq!(piece.apply(1, &from, &to), None);
            assert_eq!(piece.apply(0, &from, &spans(&with(&[(1, 2)]))), None);
            let rest = piece.missing();
            assert_eq!(rest[0].source_fragment, Fragment(spans(&with(&[(5, 6)]))));
            assert_eq!(rest[0].slot_fragment, Fragment(spans(&with(&[(1, 2)]))));
        }
    }

    #[test]
    fn either_side_may_have_the_leading_axis() {
        let stacked = promised(&[(0, 2)], &[(3, 4), (5, 7)]);
        let image = stacked.image(&spans(&[(1, 2)]));
        assert_eq!(image, Some(Fragment(spans(&[(3, 4), (6, 7)]))));
        let taken = promised(&[(3, 4), (5, 7)], &[(0, 2)]);
        let image = taken.image(&spans(&[(3, 4), (6, 7)]));
        assert_eq!(image, Some(Fragment(spans(&[(1, 2)]))));
        assert_eq!(taken.image(&spans(&[(2, 3), (6, 7)])), None);
    }
}
