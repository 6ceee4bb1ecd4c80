//! Which elements of a source belong on this rank, and where in its slot.

use coldproof_contract::words::{Fragment, Rank, Span, Topology};

use super::{Half, HeadPart, Target};

/// Rows of a vocabulary are padded to a multiple of this for every rank.
const VOCABULARY_MULTIPLE: u64 = 64;

/// What a layer tells its loader about the ranks it is cut over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// This rank.
    pub(crate) rank: u64,
    /// Ranks.
    pub(crate) ranks: u64,
}

impl Shard {
    /// What a replicated layer tells: rank 0 of 1.
    pub(crate) const WHOLE: Self = Self { rank: 0, ranks: 1 };

    /// This rank's part of `extent`, which the ranks cut into equal parts.
    pub(crate) const fn part(self, extent: u64) -> Span {
        let length = extent / self.ranks;
        Span::new(self.rank * length, (self.rank + 1) * length)
    }

    /// Heads of a kind on this rank: the first one and how many. With fewer heads than ranks, a
    /// head is replicated on consecutive ranks.
    pub(crate) const fn heads(self, heads: u64) -> (u64, u64) {
        if heads >= self.ranks {
            let count = heads / self.ranks;
            (self.rank * count, count)
        } else {
            (self.rank / (self.ranks / heads), 1)
        }
    }

    /// Whether it is the first.
    pub(crate) const fn is_first(self) -> bool {
        self.rank == 0
    }

    /// Whether it is the last.
    pub(crate) const fn is_last(self) -> bool {
        self.rank + 1 == self.ranks
    }

    /// Layers of a pipeline stage: equal parts, of which those before the last get one more each
    /// where they are not equal.
    pub(crate) const fn layers(self, layers: u64) -> Span {
        let (each, rest) = (layers / self.ranks, layers % self.ranks);
        let longer = self.ranks - 1 - rest;
        let extra = self.rank.saturating_sub(longer);
        let extra = if extra < rest { extra } else { rest };
        let start = self.rank * each + extra;
        let more = self.rank >= longer && !self.is_last();
        Span::new(start, start + each + more as u64)
    }

    /// Rows of the padded vocabulary on this rank.
    pub(crate) const fn vocabulary_rows(self, vocabulary: u64) -> u64 {
        vocabulary.div_ceil(VOCABULARY_MULTIPLE * self.ranks) * VOCABULARY_MULTIPLE
    }
}

/// What a rank holds of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its part of every layer.
    pub(crate) shard: Shard,
    /// Its part of the experts of every layer.
    pub(crate) experts: Shard,
    /// Its part of the layers.
    pub(crate) stage: Shard,
}

impl Place {
    /// The place of a rank.
    pub(crate) fn of(topology: Topology, rank: Rank) -> Self {
        let shard = |rank: u32, ranks: u32| Shard { rank: rank.into(), ranks: ranks.into() };
        Self {
            shard: shard(rank.tp, topology.tp),
            experts: shard(rank.ep, topology.ep),
            stage: shard(rank.pp, topology.pp),
        }
    }

    /// The same rank of a model that is cut by its layers' widths alone.
    pub(crate) const fn of_all(self) -> Self {
        Self { shard: self.shard, experts: Shard::WHOLE, stage: Shard::WHOLE }
    }
}

/// These elements of the source are those logical elements of the slot, both in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    /// Elements of the source.
    pub(crate) source: Fragment,
    /// Logical elements of the slot.
    pub(crate) slot: Fragment,
}

/// Rows of one part of a projection, and the parts of it that are never cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectionRows {
    /// Rows of the model.
    pub(crate) rows: u64,
    /// Heads, or groups; one alone is on every rank.
    pub(crate) units: u64,
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    /// Query heads of the model.
    pub(crate) query: u64,
    /// Key-value heads of the model.
    pub(crate) key_value: u64,
    /// Rows of a head.
    pub(crate) dim: u64,
}

/// The moves of a source of this `shape` into `target` on one rank.
///
/// The shape is that of the catalogue and the ranks divide it: both were checked before.
pub(crate) fn moves(target: &Target, shape: &[u64], shard: Shard) -> Vec<Move> {
    let whole = Fragment::whole(shape);
    let axis = shape.len().saturating_sub(1);
    match target {
        Target::Replicated => vec![Move { source: whole.clone(), slot: whole }],
        Target::Stacked { first } => {
            let rows = Span::new(*first, first + shape[0]);
            vec![Move { slot: whole.clone().with(0, rows), source: whole }]
        }
        Target::Vocabulary => vocabulary(whole, shape, shard),
        Target::Column => vec![along(whole, 0, shape, shard)],
        Target::Row | Target::FusedExpertsRow => vec![along(whole, axis, shape, shard)],
        Target::FusedExpertsInputs => vec![along(whole, 1, shape, shard)],
        Target::Heads(part, heads) => vec![head_rows(*part, whole, *heads, shard)],
        Target::GateUp(half) => {
            let part = shard.part(shape[0]);
            let slot = whole.clone().with(0, half_rows(*half, part.len()));
            vec![Move { source: whole.with(0, part), slot }]
        }
        Target::Fused { part: index } => {
            let part = shard.part(shape[0]);
            let first = index * part.len();
            let slot = whole.clone().with(0, Span::new(first, first + part.len()));
            vec![Move { source: whole.with(0, part), slot }]
        }
        Target::ExpertGateUp { expert, half } => {
            let part = shard.part(shape[0]);
            let rows = half_rows(*half, part.len());
            vec![Move {
                source: whole.clone().with(0, part),
                slot: stacked(*expert, &whole.with(0, rows)),
            }]
        }
        Target::ExpertRow { expert } => {
            let part = shard.part(shape[axis]);
            let columns = Span::new(0, part.len());
            vec![Move {
                source: whole.clone().with(axis, part),
                slot: stacked(*expert, &whole.with(axis, columns)),
            }]
        }
        Target::FusedExpertsGateUp => fused_gate_up(&whole, shape, shard),
        Target::Sections(sections) => section_rows(&whole, sections, shard),
        Target::FusedExperts => vec![Move { source: whole.clone(), slot: whole }],
    }
}

impl Move {
    /// The part of a move of all experts that is of these, from this place of a rank's stack on.
    pub(crate) fn of_experts(self, experts: Span, first: u64) -> Self {
        let slot = self.slot.with(0, Span::new(first, first + experts.len()));
        Self { source: self.source.with(0, experts), slot }
    }
}

/// The rank's rows of every section, one section behind the other.
fn section_rows(whole: &Fragment, sections: &[SectionRows], shard: Shard) -> Vec<Move> {
    let (mut before, mut filled) = (0, 0);
    let one = |section: &SectionRows| {
        let shard = if section.units == 1 { Shard::WHOLE } else { shard };
        let own = shard.part(section.rows);
        let source = Span::new(before + own.start, before + own.end);
        let slot = Span::new(filled, filled + own.len());
        before += section.rows;
        filled = slot.end;
        Move { source: whole.clone().with(0, source), slot: whole.clone().with(0, slot) }
    };
    sections.iter().map(one).collect()
}

/// One axis in equal parts.
fn along(whole: Fragment, axis: usize, shape: &[u64], shard: Shard) -> Move {
    let part = shard.part(shape[axis]);
    let slot = whole.clone().with(axis, Span::new(0, part.len()));
    Move { source: whole.with(axis, part), slot }
}

fn vocabulary(whole: Fragment, shape: &[u64], shard: Shard) -> Vec<Move> {
    let rows = shard.vocabulary_rows(shape[0]);
    let start = (shard.rank * rows).min(shape[0]);
    let end = ((shard.rank + 1) * rows).min(shape[0]);
    if start == end {
        return Vec::new();
    }
    let slot = whole.clone().with(0, Span::new(0, end - start));
    vec![Move { source: whole.with(0, Span::new(start, end)), slot }]
}

fn head_rows(part: HeadPart, whole: Fragment, heads: Heads, shard: Shard) -> Move {
    let (_, local_query) = shard.heads(heads.query);
    let (_, local_kv) = shard.heads(heads.key_value);
    let (model_heads, before) = match part {
        HeadPart::Query => (heads.query, 0),
        HeadPart::Key => (heads.key_value, local_query),
        HeadPart::Value => (heads.key_value, local_query + local_kv),
    };
    let (first, count) = shard.heads(model_heads);
    let source = Span::new(first * heads.dim, (first + count) * heads.dim);
    let slot = Span::new(before * heads.dim, (before + count) * heads.dim);
    Move { source: whole.clone().with(0, source), slot: whole.with(0, slot) }
}

const fn half_rows(half: Half, rows: u64) -> Span {
    match half {
        Half::Gate => Span::new(0, rows),
        Half::Up => Span::new(rows, 2 * rows),
    }
}

/// The same box one axis deeper, at one expert.
fn stacked(expert: u64, matrix: &Fragment) -> Fragment {
    let mut spans = vec![Span::new(expert, expert + 1)];
    spans.extend_from_slice(&matrix.0);
    Fragment(spans)
}

fn fused_gate_up(whole: &Fragment, shape: &[u64], shard: Shard) -> Vec<Move> {
    let rows = shape[1] / 2;
    let part = shard.part(rows);
    [Half::Gate, Half::Up]
        .into_iter()
        .map(|half| {
            let first = half_rows(half, rows).start;
            let source = Span::new(first + part.start, first + part.end);
            Move {
                source: whole.clone().with(1, source),
                slot: whole.clone().with(1, half_rows(half, part.len())),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { query: 4, key_value: 2, dim: 3 };

    fn rows(moves: &[Move], axis: usize) -> Vec<((u64, u64), (u64, u64))> {
        let pair = |fragment: &Fragment| (fragment.0[axis].start, fragment.0[axis].end);
        moves.iter().map(|step| (pair(&step.source), pair(&step.slot))).collect()
    }

    #[test]
    fn a_kv_head_is_replicated_where_ranks_outnumber_heads() {
        for (rank, source) in [(0, (0, 3)), (1, (0, 3)), (2, (3, 6)), (3, (3, 6))] {
            let shard = Shard { rank, ranks: 4 };
            let value = moves(&Target::Heads(HeadPart::Value, HEADS), &[6, 5], shard);
            assert_eq!(rows(&value, 0), [(source, (6, 9))], "rank {rank}");
        }
    }

    #[test]
    fn query_rows_come_before_key_rows_before_value_rows() {
        let shard = Shard { rank: 1, ranks: 2 };
        let query = moves(&Target::Heads(HeadPart::Query, HEADS), &[12, 5], shard);
        assert_eq!(rows(&query, 0), [((6, 12), (0, 6))]);
        let key = moves(&Target::Heads(HeadPart::Key, HEADS), &[6, 5], shard);
        assert_eq!(rows(&key, 0), [((3, 6), (6, 9))]);
    }

    #[test]
    fn the_last_ranks_of_a_vocabulary_may_hold_padding_alone() {
        let last = Shard { rank: 3, ranks: 4 };
        assert_eq!(moves(&Target::Vocabulary, &[331, 5], last), []);
        let third = Shard { rank: 2, ranks: 4 };
        let found = moves(&Target::Vocabulary, &[331, 5], third);
        assert_eq!(rows(&found, 0), [((256, 331), (0, 75))]);
    }

    #[test]
    fn both_spellings_of_an_expert_land_in_the_same_place() {
        let shard = Shard { rank: 1, ranks: 2 };
        let fused = moves(&Target::FusedExpertsGateUp, &[3, 8, 5], shard);
        assert_eq!(rows(&fused, 1), [((2, 4), (0, 2)), ((6, 8), (2, 4))]);
        let up = Target::ExpertGateUp { expert: 2, half: Half::Up };
        let single = moves(&up, &[4, 5], shard);
        assert_eq!(single[0].source.0[0], Span::new(2, 4));
        assert_eq!(single[0].slot.0, [Span::new(2, 3), Span::new(2, 4), Span::new(0, 5)]);
    }

    #[test]
    fn layers_that_do_not_divide_go_before_the_last_stage() {
        let cut = |ranks: u64, layers: u64| -> Vec<(u64, u64)> {
            let of = |rank| Shard { rank, ranks }.layers(layers);
            (0..ranks).map(of).map(|span| (span.start, span.end)).collect()
        };
        assert_eq!(cut(1, 3), [(0, 3)]);
        assert_eq!(cut(2, 3), [(0, 2), (2, 3)]);
        assert_eq!(cut(4, 2), [(0, 0), (0, 1), (1, 2), (2, 2)]);
        assert_eq!(cut(3, 10), [(0, 3), (3, 7), (7, 10)]);
    }

    #[test]
    fn a_rank_takes_its_experts_of_a_fused_source() {
        let shard = Shard { rank: 1, ranks: 2 };
        let all = moves(&Target::FusedExpertsRow, &[4, 3, 8], shard);
        let own = all[0].clone().of_experts(Span::new(2, 4), 0);
        assert_eq!(own.source.0, [Span::new(2, 4), Span::new(0, 3), Span::new(4, 8)]);
        assert_eq!(own.slot.0, [Span::new(0, 2), Span::new(0, 3), Span::new(0, 4)]);
    }

    #[test]
    fn stacked_sources_are_whole_on_every_rank() {
        let last = Shard { rank: 3, ranks: 4 };
        let found = moves(&Target::Stacked { first: 6 }, &[5, 2], last);
        assert_eq!(rows(&found, 0), [((0, 5), (6, 11))]);
    }

    #[test]
    fn an_axis_is_cut_in_equal_parts() {
        let shard = Shard { rank: 1, ranks: 2 };
        let inputs = moves(&Target::FusedExpertsInputs, &[3, 8, 5], shard);
        assert_eq!(rows(&inputs, 1), [((4, 8), (0, 4))]);
        let column = moves(&Target::Column, &[6], shard);
        assert_eq!(rows(&column, 0), [((3, 6), (0, 3))]);
    }

    #[test]
    fn each_section_is_cut_by_itself_and_one_unit_is_on_every_rank() {
        let sections = [(4, 2), (3, 1), (2, 2)].map(|(rows, units)| SectionRows { rows, units });
        let shard = Shard { rank: 1, ranks: 2 };
        let found = moves(&Target::Sections(sections.to_vec()), &[9, 5], shard);
        assert_eq!(rows(&found, 0), [((2, 4), (0, 2)), ((4, 7), (2, 5)), ((8, 9), (5, 6))]);
    }

    #[test]
    fn a_row_parallel_source_is_cut_along_its_columns() {
        let shard = Shard { rank: 1, ranks: 2 };
        let found = moves(&Target::Row, &[6, 8], shard);
        assert_eq!(rows(&found, 1), [((4, 8), (0, 4))]);
    }
}
