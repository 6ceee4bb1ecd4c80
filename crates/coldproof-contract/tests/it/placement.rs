//! Placement against the hand-written tables.

use std::collections::BTreeMap;

use coldproof_contract::routing::{
    HeadRole, Placement, PlacementError, Section, Sharding, SourceRule, Stage,
};
use coldproof_contract::words::{Dtype, Rank, Span, Topology};

use crate::copier::{coordinates, flat, is_legal};
use crate::histories::moves;
use crate::layouts::{Layout, all, parse_element};

/// The placement of one slot, written as a table: `q7`, or `.` for padding.
fn as_table(layout: &Layout, placement: &Placement, rank: u32, slot: &str) -> Vec<String> {
    let placed = placement.slot(Rank::tensor(rank), &slot.into()).expect("the slot is placed");
    let mut tokens: BTreeMap<Vec<u64>, String> = BTreeMap::new();
    for piece in &placed.pieces {
        let rule = layout.rules.iter().find(|rule| rule.source == piece.source).expect("a rule");
        let from = coordinates(&piece.piece.source_fragment);
        let to = coordinates(&piece.piece.slot_fragment);
        assert_eq!(from.len(), to.len(), "{}: both sides have equal elements", layout.name);
        for (from, to) in from.iter().zip(to) {
            let element = flat(from, &rule.shape).expect("inside the source");
            let before = tokens.insert(to, format!("{}{element}", piece.source));
            assert_eq!(before, None, "{}: covered once", layout.name);
        }
    }
    for at in placed.padding.iter().flat_map(coordinates) {
        assert_eq!(tokens.insert(at, ".".to_owned()), None, "{}: covered once", layout.name);
    }
    tokens.into_values().collect()
}

#[test]
fn every_layout_is_placed_as_its_table_says() {
    for layout in all() {
        let placement = Placement::of(&layout.rules, Topology::tensor(layout.tp)).unwrap();
        for table in &layout.tables {
            let placed = as_table(&layout, &placement, table.rank, table.slot);
            let wanted: Vec<&str> = table.elements.split_whitespace().collect();
            assert_eq!(placed, wanted, "{} rank {}", layout.name, table.rank);
            let slot = placement.slot(Rank::tensor(table.rank), &table.slot.into()).unwrap();
            assert_eq!(slot.shape, table.shape, "{} rank {}", layout.name, table.rank);
        }
        let placed: usize =
            (0..layout.tp).map(|tp| placement.slots(Rank::tensor(tp)).count()).sum();
        assert_eq!(placed, layout.tables.len(), "{}: a table a slot", layout.name);
    }
}

#[test]
fn the_moves_of_each_layout_say_what_its_table_says() {
    for layout in all() {
        assert!(is_legal(&layout, &moves(&layout)), "{}", layout.name);
    }
}

#[test]
fn tables_use_every_element_of_every_source() {
    for layout in all() {
        for rule in &layout.rules {
            let mut used: Vec<u64> = (layout.tables.iter())
                .flat_map(|table| table.elements.split_whitespace())
                .filter_map(parse_element)
                .filter_map(|(source, element)| (source == rule.source).then_some(element))
                .collect();
            used.sort_unstable();
            used.dedup();
            let elements: u64 = rule.shape.iter().product();
            assert_eq!(used.len() as u64, elements, "{}: {}", layout.name, rule.source);
        }
    }
}

fn rule(source: &str, shape: &[u64], sharding: Sharding) -> SourceRule {
    SourceRule {
        source: source.to_owned(),
        dtype: Dtype::Bf16,
        shape: shape.to_vec(),
        slot: "slot".into(),
        sharding,
        stage: Stage::Everywhere,
    }
}

fn place(rules: &[SourceRule], tp: u32) -> Result<Placement, PlacementError> {
    Placement::of(rules, Topology::tensor(tp))
}

#[test]
fn what_cannot_be_cut_is_refused_with_the_axis() {
    let uneven = place(&[rule("w", &[5, 2], Sharding::Column)], 2);
    let (source_name, axis, extent, parts) = ("w".to_owned(), 0, 5, 2);
    assert_eq!(uneven, Err(PlacementError::Uneven { source_name, axis, extent, parts }));
    let uneven = place(&[rule("w", &[2, 5], Sharding::Row)], 2);
    assert!(matches!(uneven, Err(PlacementError::Uneven { axis: 1, .. })));
    let heads = Sharding::Heads { role: HeadRole::K, heads: 6, kv_heads: 2, head_dim: 1 };
    let uneven = place(&[rule("k", &[2, 2], heads)], 3);
    assert!(matches!(uneven, Err(PlacementError::Uneven { extent: 2, parts: 3, .. })));
    let sections = Sharding::Sections { sections: vec![Section { rows: 4, units: 2 }] };
    let uneven = place(&[rule("s", &[4, 2], sections)], 4);
    assert!(matches!(uneven, Err(PlacementError::Uneven { extent: 2, parts: 4, .. })));
}

#[test]
fn shapes_that_do_not_fit_their_rule_are_refused() {
    let heads = Sharding::Heads { role: HeadRole::Q, heads: 4, kv_heads: 2, head_dim: 2 };
    let sections = |rows, units| {
        let sections = vec![Section { rows: 2, units: 1 }, Section { rows, units }];
        Sharding::Sections { sections }
    };
    for (shape, sharding) in [
        (vec![9, 2], heads),
        (vec![9, 2], sections(6, 2)),
        (vec![8, 2], sections(6, 4)),
        (vec![8, 2], sections(6, 0)),
        (vec![], sections(6, 2)),
        (vec![8, 2], sections(u64::MAX, 2)),
        (vec![], Sharding::Row),
        (vec![2, 2], Sharding::Stacked { first: 2, rows: 3 }),
        (vec![2, 2], Sharding::Stacked { first: u64::MAX, rows: 3 }),
        (vec![4], Sharding::ExpertRow { expert: 0, experts: 2 }),
        (vec![4, 2], Sharding::ExpertRow { expert: 2, experts: 2 }),
        (vec![2, 3, 2], Sharding::FusedExpertsGateUp),
        (vec![4, 2], Sharding::FusedExpertsGateUp),
        (vec![4, 2], Sharding::Vocabulary { multiple: 0 }),
        (vec![4, 2], Sharding::Vocabulary { multiple: u64::MAX }),
        (vec![u64::MAX, u64::MAX], Sharding::Replicated),
    ] {
        let placed = place(&[rule("w", &shape, sharding.clone())], 1);
        assert!(matches!(placed, Err(PlacementError::Shape { .. })), "{shape:?} {sharding:?}");
    }
}

#[test]
fn sources_of_one_slot_must_agree_and_leave_no_gap() {
    use coldproof_contract::routing::Half::{Gate, Up};
    let half = |source, rows, half| rule(source, &[rows, 2], Sharding::GateUp { half });
    assert!(place(&[half("g", 4, Gate), half("u", 4, Up)], 2).is_ok());
    let layout = place(&[half("g", 4, Gate), half("u", 6, Up)], 2);
    assert!(matches!(layout, Err(PlacementError::Layout { .. })));
    let overlap = place(&[half("g", 4, Gate), half("u", 4, Gate)], 2);
    assert!(matches!(overlap, Err(PlacementError::Overlap { .. })));
    let gap = place(&[half("g", 4, Gate)], 2);
    assert!(matches!(gap, Err(PlacementError::Uncovered { .. })));
}

#[test]
fn a_rank_has_the_slots_of_its_pipeline_stage_alone() {
    let at = |source: &str, stage| SourceRule {
        slot: source.into(),
        stage,
        ..rule(source, &[4, 2], Sharding::Column)
    };
    let layer = |layer| Stage::Layer { layer, layers: 3 };
    let rules = [
        at("embed", Stage::Ends),
        at("0", layer(0)),
        at("1", layer(1)),
        at("2", layer(2)),
        at("norm", Stage::Last),
    ];
    let topology = Topology { tp: 2, pp: 2, ep: 1, dp: 1 };
    let placed = Placement::of(&rules, topology).unwrap();
    let slots = |pp, tp| -> Vec<&str> {
        placed.slots(Rank { dp: 0, pp, ep: 0, tp }).map(|(name, _)| name.0.as_str()).collect()
    };
    for tp in [0, 1] {
        assert_eq!(slots(0, tp), ["0", "1", "embed"]);
        assert_eq!(slots(1, tp), ["2", "embed", "norm"]);
    }
    let outside = rules[0].pieces(Topology::tensor(2), Rank::tensor(2));
    assert!(matches!(outside, Err(PlacementError::Rank { .. })));
}

#[test]
fn a_rank_has_its_experts_alone_in_either_spelling() {
    let topology = Topology { tp: 2, pp: 1, ep: 2, dp: 1 };
    let each: Vec<_> = (0..4)
        .map(|expert| {
            rule(&format!("{expert}"), &[3, 2], Sharding::ExpertRow { expert, experts: 4 })
        })
        .collect();
    let all = [rule("all", &[4, 3, 2], Sharding::FusedExpertsRow)];
    let (each, all) = (Placement::of(&each, topology), Placement::of(&all, topology));
    let (each, all) = (each.unwrap(), all.unwrap());
    for rank in topology.ranks() {
        let first = u64::from(rank.ep) * 2;
        let of_each = each.slot(rank, &"slot".into()).unwrap();
        assert_eq!(of_each.shape, [2, 3, 1]);
        let sources: Vec<_> = of_each.pieces.iter().map(|piece| piece.source.as_str()).collect();
        assert_eq!(sources, [first.to_string(), (first + 1).to_string()]);
        let of_all = all.slot(rank, &"slot".into()).unwrap();
        assert_eq!(of_all.shape, [2, 3, 1]);
        let source = &of_all.pieces[0].piece.source_fragment.0;
        assert_eq!(source[0], Span::new(first, first + 1));
        assert_eq!(of_all.pieces.len(), 2);
        assert_eq!(source[2], Span::new(rank.tp.into(), u64::from(rank.tp) + 1));
    }
    let uneven = Placement::of(
        &[rule("all", &[3, 3, 2], Sharding::FusedExperts)],
        Topology { tp: 1, pp: 1, ep: 2, dp: 1 },
    );
    assert!(matches!(uneven, Err(PlacementError::Uneven { extent: 3, parts: 2, .. })));
}

#[test]
fn no_more_places_are_computed_than_can_be() {
    let ranks = |ranks: u32| Topology { dp: ranks, ..Topology::SINGLE };
    let at = |name: u64, sharding| SourceRule {
        slot: name.to_string().as_str().into(),
        ..rule(&name.to_string(), &[1], sharding)
    };
    let many =
        |count: u64| -> Vec<_> { (0..count).map(|name| at(name, Sharding::Replicated)).collect() };
    let most = 1 << 16;
    let sources = Placement::PLACES_MAX / u64::from(most) + 1;
    let refused = Placement::of(&many(sources), ranks(most));
    assert_eq!(refused, Err(PlacementError::TooMany { sources: sources as usize, ranks: most }));
    assert!(refused.unwrap_err().to_string().contains("33 sources on 65536 ranks"));
    assert!(Placement::of(&many(sources), ranks(64)).is_ok());
    // One source of many experts has a place for each.
    let experts = 1 << 16;
    let fused = |count: u64| -> Vec<_> {
        let names = (0..count).map(|name| name.to_string());
        let rule = |name: String| SourceRule {
            slot: name.as_str().into(),
            ..rule(&name, &[experts, 1, 1], Sharding::FusedExpertsRow)
        };
        names.map(rule).collect()
    };
    let two = Topology { ep: 2, ..Topology::SINGLE };
    let sources = Placement::PLACES_MAX / experts;
    let refused = Placement::of(&fused(sources), two);
    assert_eq!(refused, Err(PlacementError::TooMany { sources: sources as usize, ranks: 2 }));
    assert!(Placement::of(&fused(1), two).is_ok());
    // What is of one rank has one place.
    let topology = Topology::tensor(most);
    let own = (0..33).map(|tp| {
        let rank = Rank::tensor(u32::try_from(tp).unwrap());
        at(tp, Sharding::OneRank { rank })
    });
    let placed = Placement::of(&own.collect::<Vec<_>>(), topology).unwrap();
    assert_eq!(placed.slots(Rank::tensor(32)).count(), 1);
    assert_eq!(placed.slots(Rank::tensor(33)).count(), 0);
}
