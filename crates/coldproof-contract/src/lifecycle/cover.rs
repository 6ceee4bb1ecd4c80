//! Which elements of one promised piece have been applied so far.

use super::intervals::{Clash, Intervals};
use crate::routing::uncovered;
use crate::words::{Fragment, Span};

/// Applied boxes of one piece, pairwise disjoint. The common histories (the whole piece at once,
/// chunks along one axis) need no box and at most one allocation a piece.
#[derive(Clone, Debug, Default)]
pub(super) enum Cover {
    /// Nothing.
    #[default]
    Nothing,
    /// The whole piece, at once.
    Whole,
    /// One chunk, along `axis`.
    Chunk {
        /// The only axis along which it is less than the piece.
        axis: u8,
        /// Its indices there.
        span: Span,
    },
    /// Several chunks, all along `axis`.
    Chunks(Box<Chunks>),
    /// Chunks along several axes.
    Boxes(Box<Boxes>),
}

/// Chunks along one axis.
#[derive(Clone, Debug)]
pub(super) struct Chunks {
    axis: u8,
    intervals: Intervals,
}

/// Disjoint boxes, sorted by where they begin along the first axis.
#[derive(Clone, Debug, Default)]
pub(super) struct Boxes {
    sorted: Vec<Fragment>,
    /// The longest extent along the first axis: how far back a box may reach.
    reach: u64,
}

/// Why a box cannot be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Collision {
    /// The same box was added before.
    Same,
    /// This box, added before, shares elements with it.
    Meets(Fragment),
}

/// How a box lies in its piece.
enum Extent {
    Whole,
    Along(u8, Span),
    Box,
}

fn extent(part: &[Span], piece: &[Span]) -> Extent {
    let mut found = Extent::Whole;
    for (axis, (span, whole)) in part.iter().zip(piece).enumerate() {
        if span != whole {
            found = match (found, u8::try_from(axis)) {
                (Extent::Whole, Ok(axis)) => Extent::Along(axis, *span),
                _ => return Extent::Box,
            };
        }
    }
    found
}

impl Cover {
    /// Adds a non-empty box inside `piece`; nothing changes where it cannot be added.
    pub(super) fn add(&mut self, part: &[Span], piece: &[Span]) -> Result<(), Collision> {
        match (&mut *self, extent(part, piece)) {
            (Self::Nothing, Extent::Whole) => *self = Self::Whole,
            (Self::Nothing, Extent::Along(axis, span)) => *self = Self::Chunk { axis, span },
            (Self::Chunk { axis, span }, Extent::Along(along, new)) if *axis == along => {
                let whole = piece.get(usize::from(along)).copied().unwrap_or(new);
                let mut intervals = Intervals::inside(whole);
                intervals.add(*span).map_err(|clash| named(clash, along, piece))?;
                intervals.add(new).map_err(|clash| named(clash, along, piece))?;
                *self = Self::Chunks(Box::new(Chunks { axis: along, intervals }));
            }
            (Self::Chunks(chunks), Extent::Along(along, new)) if chunks.axis == along => {
                chunks.intervals.add(new).map_err(|clash| named(clash, along, piece))?;
            }
            _ => {
                if let Some(collision) = self.collision(part, piece) {
                    return Err(collision);
                }
                self.boxes(piece).add(Fragment(part.to_vec()));
            }
        }
        Ok(())
    }

    /// What stands against adding a non-empty box inside `piece`.
    pub(super) fn collision(&self, part: &[Span], piece: &[Span]) -> Option<Collision> {
        match (self, extent(part, piece)) {
            (Self::Nothing, _) => None,
            (Self::Chunks(chunks), Extent::Along(axis, span)) if chunks.axis == axis => {
                chunks.intervals.clash(span).map(|clash| named(clash, axis, piece))
            }
            (Self::Chunks(chunks), _) => {
                let along = *part.get(usize::from(chunks.axis))?;
                let met = chunks.intervals.clash(along)?;
                // A part that differs along another axis is never the very same box.
                let span = if let Clash::Meets(span) = met { span } else { along };
                Some(Collision::Meets(chunk(piece, chunks.axis, span)))
            }
            (Self::Boxes(boxes), _) => boxes.collision(part),
            (Self::Whole, _) => against(Fragment(piece.to_vec()), part),
            (Self::Chunk { axis, span }, _) => against(chunk(piece, *axis, *span), part),
        }
    }

    /// What is missing of `piece`, as disjoint boxes, sorted.
    pub(super) fn missing(&self, piece: &[Span]) -> Vec<Fragment> {
        let whole = Fragment(piece.to_vec());
        match self {
            Self::Whole => Vec::new(),
            Self::Nothing => uncovered(&whole, std::iter::empty()),
            Self::Chunk { axis, span } => {
                uncovered(&whole, std::iter::once(&chunk(piece, *axis, *span)))
            }
            Self::Chunks(chunks) => {
                let gaps = chunks.intervals.gaps();
                gaps.into_iter().map(|gap| chunk(piece, chunks.axis, gap)).collect()
            }
            // Disjoint boxes that add up to the volume cover it: no need to subtract them.
            Self::Boxes(boxes) if boxes.volume() == whole.volume() => Vec::new(),
            Self::Boxes(boxes) => uncovered(&whole, boxes.sorted.iter()),
        }
    }

    /// Turns whatever is there into boxes.
    fn boxes(&mut self, piece: &[Span]) -> &mut Boxes {
        if !matches!(self, Self::Boxes(_)) {
            let mut boxes = Boxes::default();
            match self {
                Self::Nothing | Self::Boxes(_) => {}
                Self::Whole => boxes.add(Fragment(piece.to_vec())),
                Self::Chunk { axis, span } => boxes.add(chunk(piece, *axis, *span)),
                Self::Chunks(chunks) => {
                    for span in chunks.intervals.iter() {
                        boxes.add(chunk(piece, chunks.axis, span));
                    }
                }
            }
            *self = Self::Boxes(Box::new(boxes));
        }
        match self {
            Self::Boxes(boxes) => boxes,
            _ => unreachable!("it was made boxes above"),
        }
    }
}

fn chunk(piece: &[Span], axis: u8, span: Span) -> Fragment {
    let along = |(at, whole): (usize, &Span)| if at == usize::from(axis) { span } else { *whole };
    Fragment(piece.iter().enumerate().map(along).collect())
}

fn named(clash: Clash, axis: u8, piece: &[Span]) -> Collision {
    match clash {
        Clash::Same => Collision::Same,
        Clash::Meets(span) => Collision::Meets(chunk(piece, axis, span)),
    }
}

fn against(known: Fragment, part: &[Span]) -> Option<Collision> {
    if known.0 == part {
        return Some(Collision::Same);
    }
    let meets = known.0.iter().zip(part).all(|(a, b)| !a.intersect(*b).is_empty());
    meets.then_some(Collision::Meets(known))
}

impl Boxes {
    fn start(fragment: &[Span]) -> u64 {
        fragment.first().map_or(0, |span| span.start)
    }

    fn collision(&self, part: &[Span]) -> Option<Collision> {
        let first = part.first().copied().unwrap_or(Span::new(0, 1));
        let from = first.start.saturating_sub(self.reach);
        let begin = self.sorted.partition_point(|known| Self::start(&known.0) < from);
        let near = self.sorted.iter().skip(begin);
        near.take_while(|known| Self::start(&known.0) < first.end)
            .find_map(|known| against(known.clone(), part))
    }

    fn add(&mut self, fragment: Fragment) {
        self.reach = self.reach.max(fragment.0.first().map_or(1, |span| span.len()));
        let at = self.sorted.partition_point(|known| *known < fragment);
        self.sorted.insert(at, fragment);
    }

    fn volume(&self) -> u64 {
        self.sorted.iter().map(Fragment::volume).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: [Span; 2] = [Span::new(10, 14), Span::new(0, 6)];

    fn part(rows: (u64, u64), columns: (u64, u64)) -> [Span; 2] {
        [rows.into(), columns.into()]
    }

    #[test]
    fn chunks_along_one_axis_need_no_boxes() {
        let mut cover = Cover::default();
        for rows in [(12, 14), (10, 11), (11, 12)] {
            cover.add(&part(rows, (0, 6)), &PIECE).unwrap();
        }
        assert!(matches!(cover, Cover::Chunks(_)));
        assert_eq!(cover.missing(&PIECE), []);
    }

    #[test]
    fn chunks_along_two_axes_cover_exactly() {
        let mut cover = Cover::default();
        let quarters = [((10, 12), (0, 3)), ((12, 14), (3, 6)), ((10, 12), (3, 6))];
        for (rows, columns) in quarters {
            cover.add(&part(rows, columns), &PIECE).unwrap();
        }
        assert_eq!(cover.missing(&PIECE), [Fragment(part((12, 14), (0, 3)).to_vec())]);
        cover.add(&part((12, 14), (0, 3)), &PIECE).unwrap();
        assert_eq!(cover.missing(&PIECE), []);
    }

    #[test]
    fn a_change_of_axis_still_sees_what_came_before() {
        let mut cover = Cover::default();
        cover.add(&part((10, 12), (0, 6)), &PIECE).unwrap();
        let meets = Collision::Meets(Fragment(part((10, 12), (0, 6)).to_vec()));
        assert_eq!(cover.add(&part((10, 14), (2, 3)), &PIECE), Err(meets));
        assert_eq!(cover.add(&part((12, 14), (2, 3)), &PIECE), Ok(()));
        assert_eq!(cover.add(&part((10, 12), (0, 6)), &PIECE), Err(Collision::Same));
        assert_eq!(cover.add(&part((12, 14), (2, 3)), &PIECE), Err(Collision::Same));
    }

    #[test]
    fn the_whole_piece_again_is_the_same_and_a_chunk_of_it_meets_it() {
        let mut cover = Cover::default();
        cover.add(&PIECE, &PIECE).unwrap();
        assert_eq!(cover.add(&PIECE, &PIECE), Err(Collision::Same));
        let meets = Collision::Meets(Fragment(PIECE.to_vec()));
        assert_eq!(cover.add(&part((10, 11), (0, 6)), &PIECE), Err(meets));
    }

    #[test]
    fn a_box_reaches_back_over_shorter_ones() {
        let mut cover = Cover::default();
        cover.add(&part((10, 14), (0, 1)), &PIECE).unwrap();
        cover.add(&part((11, 12), (1, 2)), &PIECE).unwrap();
        cover.add(&part((13, 14), (1, 2)), &PIECE).unwrap();
        let meets = Collision::Meets(Fragment(part((10, 14), (0, 1)).to_vec()));
        assert_eq!(cover.add(&part((13, 14), (0, 1)), &PIECE), Err(meets));
    }

    #[test]
    fn a_scalar_is_covered_by_one_application() {
        let mut cover = Cover::default();
        assert_eq!(cover.missing(&[]), [Fragment(vec![])]);
        cover.add(&[], &[]).unwrap();
        assert_eq!(cover.missing(&[]), []);
        assert_eq!(cover.add(&[], &[]), Err(Collision::Same));
    }
}
