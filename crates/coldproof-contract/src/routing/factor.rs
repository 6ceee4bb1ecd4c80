//! Where the factors of an adapter belong: as the weight that they are added to is cut.

use super::rules::{Cut, Placed};
use super::{Piece, Sharding, SourceRule};
use crate::words::{Factor, Fragment, Span};

/// Places one factor of a module whose weight has this shape and is cut as `of` says.
pub(super) fn place(cut: &Cut<'_>, factor: Factor, weight: [u64; 2], of: &Sharding) -> Placed {
    cut.axes(2)?;
    let (own, other) = match factor {
        Factor::A => (1, 0),
        Factor::B => (0, 1),
    };
    let rank = cut.extent(other)?;
    if cut.extent(own)? != weight[own] {
        return Err(cut.misfit(format!("the module's weight is {weight:?}")));
    }
    let rule = SourceRule { shape: weight.to_vec(), sharding: of.clone(), ..cut.rule.clone() };
    cut.check_size(&rule.shape)?;
    let here = Cut { rule: &rule, ..*cut };
    // A rank without the expert has room for as much of it as one that has it.
    let anywhere = Cut { expert_parts: 1, expert_part: 0, placed: None, ..here };
    let ((pieces, shape), (everywhere, _)) = (here.place()?, anywhere.place()?);
    let mut held: Vec<Span> = Vec::new();
    for span in everywhere.iter().filter_map(|piece| piece.source_fragment.0.get(own)) {
        if !held.contains(span) {
            held.push(*span);
        }
    }
    let extent = held.iter().map(|span| span.len()).sum();
    let factored = |along: Span, across: Span| match factor {
        Factor::A => vec![across, along],
        Factor::B => vec![along, across],
    };
    let stack = if shape.len() > 2 { shape.first().copied() } else { None };
    let expert = pieces.first().and_then(|piece| piece.slot_fragment.0.first().copied());
    let expert = expert.filter(|_| stack.is_some());
    let across = Span::new(0, rank);
    let whole = factored(Span::new(0, extent), across);
    let slot = stack.into_iter().chain(whole.iter().map(|span| span.len())).collect();
    if pieces.is_empty() {
        return Ok((Vec::new(), slot));
    }
    let mut first = 0;
    let placed = held.into_iter().map(|span| {
        let target = Span::new(first, first + span.len());
        first = target.end;
        let behind = expert.into_iter().chain(factored(target, across));
        Piece {
            source_fragment: Fragment(factored(span, across)),
            slot_fragment: Fragment(behind.collect()),
        }
    });
    Ok((placed.collect(), slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{Half, HeadRole, Placement, Stage};
    use crate::words::{Dtype, Rank, Topology};

    /// A rank-2 factor of a module of eight outputs and twelve inputs.
    fn rule(factor: Factor, slot: &str, of: Sharding) -> SourceRule {
        let weight = [8, 12];
        let shape = match factor {
            Factor::A => vec![2, 12],
            Factor::B => vec![8, 2],
        };
        SourceRule {
            source: format!("{slot} {factor:?} {of:?}"),
            dtype: Dtype::Bf16,
            shape,
            slot: slot.into(),
            sharding: Sharding::Factor { factor, weight, of: Box::new(of) },
            stage: Stage::Everywhere,
        }
    }

    fn spans(fragment: &Fragment) -> Vec<(u64, u64)> {
        fragment.0.iter().map(|span| (span.start, span.end)).collect()
    }

    type Spans = Vec<(u64, u64)>;

    /// What the second of two ranks holds: of the source, of the slot, and the slot's shape.
    fn second(factor: Factor, of: Sharding) -> (Spans, Spans, Vec<u64>) {
        let (topology, rank) = (Topology::tensor(2), Rank::tensor(1));
        let (pieces, shape) = rule(factor, "slot", of).pieces(topology, rank).unwrap();
        let [piece] = pieces.as_slice() else { panic!("{pieces:?}") };
        (spans(&piece.source_fragment), spans(&piece.slot_fragment), shape)
    }

    #[test]
    fn columns_of_the_weight_cut_a_and_rows_cut_b() {
        let (row, column) = (Sharding::Row, Sharding::Column);
        let cut = (vec![(0, 2), (6, 12)], vec![(0, 2), (0, 6)], vec![2, 6]);
        assert_eq!(second(Factor::A, row.clone()), cut);
        let whole = (vec![(0, 8), (0, 2)], vec![(0, 8), (0, 2)], vec![8, 2]);
        assert_eq!(second(Factor::B, row), whole);
        let whole = (vec![(0, 2), (0, 12)], vec![(0, 2), (0, 12)], vec![2, 12]);
        assert_eq!(second(Factor::A, column.clone()), whole);
        let cut = (vec![(4, 8), (0, 2)], vec![(0, 4), (0, 2)], vec![4, 2]);
        assert_eq!(second(Factor::B, column), cut);
    }

    #[test]
    fn a_slice_of_a_fused_weight_begins_at_its_own_first_row() {
        // Two key heads of four rows behind four query heads.
        let heads = Sharding::Heads { role: HeadRole::K, heads: 4, kv_heads: 2, head_dim: 4 };
        let cut = (vec![(4, 8), (0, 2)], vec![(0, 4), (0, 2)], vec![4, 2]);
        assert_eq!(second(Factor::B, heads), cut);
        assert_eq!(second(Factor::B, Sharding::GateUp { half: Half::Up }), cut);
    }

    #[test]
    fn an_expert_is_in_its_place_and_what_no_factor_fills_is_declared_zero() {
        let of = |expert| Sharding::ExpertGateUp { expert, experts: 4, half: Half::Up };
        let rules = [1, 2].map(|expert| rule(Factor::B, "stack", of(expert)));
        let topology = Topology { ep: 2, ..Topology::tensor(2) };
        let placement = Placement::of(&rules, topology).unwrap();
        for (ep, place) in [(0, 1), (1, 0)] {
            let rank = Rank { ep, ..Rank::tensor(1) };
            let slot = placement.slot(rank, &"stack".into()).unwrap();
            assert_eq!(slot.shape, [2, 4, 2]);
            let [piece] = slot.pieces.as_slice() else { panic!("{:?}", slot.pieces) };
            assert_eq!(spans(&piece.piece.source_fragment), [(4, 8), (0, 2)]);
            assert_eq!(spans(&piece.piece.slot_fragment), [(place, place + 1), (0, 4), (0, 2)]);
            assert_eq!(slot.padding.len(), 1);
        }
    }

    #[test]
    fn a_factor_of_another_module_is_refused() {
        let mut wrong = rule(Factor::A, "slot", Sharding::Row);
        wrong.shape = vec![2, 8];
        let error = wrong.pieces(Topology::SINGLE, Rank::default()).unwrap_err();
        assert!(error.to_string().contains("weight is [8, 12]"), "{error}");
    }
}
