//! Category 5: sentinels, padding.

use coldproof_contract::evidence::{Fact, OriginRun, OriginsFact};
use coldproof_contract::routing::Sharding;
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::Topology;

use crate::support::model::{self, EMBED, GATE, GATE_UP, NORM, NORM_F32, UP};
use crate::support::{Run, assert_silent, assert_undecided, correct, correct_at, one, room};

/// Changes what the sentinels in a slot decode to.
fn origins(run: &mut Run, slot: &str, change: impl Fn(u32, &mut OriginsFact)) {
    run.phase("routing", "A>S0").map(|rank, mut fact| {
        if let Fact::Origins(origins) = &mut fact
            && origins.slot.0 == slot
        {
            change(rank.tp, origins);
        }
        Some(fact)
    });
}

fn run_of(slot: u64, source: Option<u32>, element: u64, length: u64) -> OriginRun {
    OriginRun { slot, source, element, length, count: 1, slot_step: 0, source_step: 0 }
}

#[test]
fn elements_of_another_rank_are_misplaced() {
    // Rank 1 holds the gate rows of rank 0.
    let mut run = correct();
    origins(&mut run, GATE_UP, |rank, fact| {
        if rank == 1 {
            fact.runs[0].element = 0;
        }
    });
    assert_eq!(run.found(), [one(Code::ShardMisplaced, GATE_UP, &[1])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.expected, "element 0 is mlp.gate.weight[4]");
    assert_eq!(finding.actual, "element 0 is mlp.gate.weight[0]");
    assert!(finding.why.starts_with("the shard does not follow the rank: 4 elements are right"));
    let event = &finding.events[0];
    assert_eq!((event.what.as_str(), event.seq > 0), ("read-back", true));
    assert_eq!(event.step, "read_back");
}

#[test]
fn every_rank_that_holds_elements_of_another_is_named() {
    let mut run = correct();
    origins(&mut run, GATE_UP, |rank, fact| fact.runs[0].element = if rank == 1 { 0 } else { 4 });
    assert_eq!(run.found(), [one(Code::ShardMisplaced, GATE_UP, &[0, 1])]);
}

#[test]
fn elements_of_another_slot_are_misplaced_though_all_ranks_are_alike() {
    let mut run = correct();
    origins(&mut run, NORM, |_, fact| fact.sources = vec![GATE.to_owned()]);
    assert_eq!(run.found(), [one(Code::ShardMisplaced, NORM, &[0, 1])]);
}

#[test]
fn right_elements_in_another_order_on_every_rank_are_a_stale_loader() {
    // The halves of every rank are exchanged.
    let mut run = correct();
    origins(&mut run, GATE_UP, |_, fact| {
        let (gate, up) = (fact.runs[0].slot, fact.runs[1].slot);
        (fact.runs[0].slot, fact.runs[1].slot) = (up, gate);
    });
    assert_eq!(run.found(), [one(Code::LoaderStale, GATE_UP, &[0, 1])]);
    let why = run.judge().findings.remove(0).why;
    let wanted = "on every rank the right elements stand in the order of another layout: \
                  0 elements are right, 8 stand elsewhere";
    assert!(why.starts_with(wanted), "{why}");
    // On one rank alone it depends on the rank.
    let mut run = correct();
    origins(&mut run, GATE_UP, |rank, fact| {
        let (gate, up) = (fact.runs[0].slot, fact.runs[1].slot);
        if rank == 0 {
            (fact.runs[0].slot, fact.runs[1].slot) = (up, gate);
        }
    });
    assert_eq!(run.found(), [one(Code::ShardMisplaced, GATE_UP, &[0])]);
    // And so it does where the ranks differ in how much is out of order.
    let mut run = correct();
    origins(&mut run, GATE_UP, |rank, fact| {
        let first = fact.runs[0].element;
        if rank == 0 {
            let (gate, up) = (fact.runs[0].slot, fact.runs[1].slot);
            (fact.runs[0].slot, fact.runs[1].slot) = (up, gate);
        } else {
            fact.runs[0] = run_of(0, Some(0), first + 2, 2);
            fact.runs.push(run_of(2, Some(0), first, 2));
        }
    });
    assert_eq!(run.found(), [one(Code::ShardMisplaced, GATE_UP, &[0, 1])]);
}

#[test]
fn elements_that_came_from_no_source_are_a_missing_application() {
    let mut run = correct();
    origins(&mut run, GATE_UP, |rank, fact| {
        if rank == 1 {
            fact.runs[1].source = None;
        }
    });
    assert_eq!(run.found(), [one(Code::ApplicationMissing, UP, &[1])]);
    assert!(run.judge().findings[0].actual.starts_with("4 elements of `mlp.gate_up.weight`"));
    // Also where nothing was decoded there at all.
    let mut run = correct();
    origins(&mut run, GATE_UP, |_, fact| {
        fact.runs.pop();
    });
    assert_eq!(run.found(), [one(Code::ApplicationMissing, UP, &[0, 1])]);
}

#[test]
fn a_source_in_whose_place_another_stands_was_not_left_out() {
    // Rank 0 has gate rows where rank 1 has none of `up`: one fault, of the shard.
    let mut run = correct();
    origins(&mut run, GATE_UP, |rank, fact| match rank {
        0 => fact.runs[1] = run_of(4, Some(0), 4, 4),
        _ => fact.runs[1].source = None,
    });
    assert_eq!(run.found(), [one(Code::ShardMisplaced, GATE_UP, &[0, 1])]);
}

#[test]
fn runs_may_be_cut_and_folded_in_any_way() {
    let mut run = correct();
    origins(&mut run, GATE_UP, |_, fact| {
        let OriginRun { slot, element, .. } = fact.runs[0];
        fact.runs[0] = OriginRun {
            slot: slot + 3,
            source: Some(0),
            element: element + 3,
            length: 1,
            count: 1,
            slot_step: 9,
            source_step: -9,
        };
        let folded = OriginRun {
            slot,
            source: Some(0),
            element,
            length: 1,
            count: 3,
            slot_step: 1,
            source_step: 1,
        };
        fact.runs.push(folded);
    });
    assert_silent(&run);
}

#[test]
fn malformed_origins_are_undecided() {
    type Break = fn(&mut OriginsFact);
    let breaks: [Break; 8] = [
        |fact| fact.runs[0].slot = 5,
        |fact| fact.runs[0].slot = u64::MAX,
        |fact| fact.runs[0].element = u64::MAX,
        |fact| fact.runs[0].source = Some(7),
        |fact| (fact.runs[0].count, fact.runs[0].length) = (u64::MAX, 1),
        |fact| (fact.runs[0].count, fact.runs[0].length) = (u64::MAX, 0),
        |fact| (fact.runs[0].count, fact.runs[0].slot_step) = (2, u64::MAX),
        |fact| (fact.runs[0].count, fact.runs[0].source_step) = (2, i64::MIN),
    ];
    for (number, change) in breaks.into_iter().enumerate() {
        let mut run = correct();
        origins(&mut run, EMBED, |rank, fact| {
            if rank == 0 {
                change(fact);
            }
        });
        let reason = "the origins of `embed.weight` on rank tp0 are malformed";
        assert_eq!(run.found(), [], "{number}");
        assert_undecided(&run, Room::Routing, reason);
    }
}

#[test]
fn a_slot_without_origins_is_undecided() {
    let mut run = correct();
    run.phase("routing", "A>S0").drop(|rank, fact| {
        matches!(fact, Fact::Origins(origins) if origins.slot.0 == NORM && rank.tp == 1)
    });
    let reason = "no origins were decoded for `norm.weight` on rank tp1";
    assert_undecided(&run, Room::Routing, reason);
}

#[test]
fn a_run_without_sentinels_is_undecided_and_one_without_the_lane_is_not_covered() {
    let mut run = correct();
    run.phase("routing", "A>S0").drop(|_, fact| matches!(fact, Fact::Origins(_)));
    assert_undecided(&run, Room::Routing, "no sentinel was decoded");
    let run = correct().without_arm("routing");
    let (status, reason) = room(&run.judge(), Room::Routing);
    assert_eq!(status, coldproof_contract::verdict::Status::NotCovered);
    assert_eq!(reason, "no lane of this run looks at it");
}

#[test]
fn one_rank_cannot_show_a_wrong_rank() {
    let mut run = correct();
    run.header.arms[2].topology = Topology::tensor(1);
    run.events.retain(|event| event.arm != "routing" || event.rank.tp == 0);
    let one_rank = model::origins(Topology::tensor(1), Default::default());
    origins(&mut run, GATE_UP, |_, fact| *fact = one_rank[1].clone());
    origins(&mut run, EMBED, |_, fact| *fact = one_rank[0].clone());
    run.phase("routing", "A>S0").drop(|_, fact| matches!(fact, Fact::Application(_)));
    run.phase("routing", "S0>B").drop(|_, fact| matches!(fact, Fact::Application(_)));
    let (status, reason) = room(&run.judge(), Room::Routing);
    assert_eq!(status, Status::NotCovered);
    assert!(reason.contains("one rank cannot show a wrong rank"), "{reason}");
}

#[test]
fn the_topology_is_named_where_it_is_not_the_runs() {
    assert_eq!(correct().judge().categories[4].topology, Some(Topology::tensor(2)));
    assert_eq!(correct_at(2).judge().categories[4].topology, None);
}

#[test]
fn a_catalogue_that_cannot_be_placed_is_undecided() {
    let mut run = correct();
    let odd = run.header.rules.iter_mut().find(|rule| rule.source == NORM).unwrap();
    (odd.sharding, odd.shape) = (Sharding::Column, vec![3]);
    run.events.retain(|event| !matches!(event.fact, Fact::Application(_)));
    let why = "the catalogue cannot be placed on this topology: `norm.weight`: 3 of axis 0 cannot";
    assert_undecided(&run, Room::Routing, why);
}

#[test]
fn padding_that_is_not_its_fill_was_written() {
    let mut run = correct();
    run.phase("routing", "S0>B").read(EMBED, |rank, read| {
        read.padding_written = if rank.tp == 1 { 2 } else { 0 };
    });
    assert_eq!(run.found(), [one(Code::PaddingWritten, EMBED, &[1])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(
        (finding.expected.as_str(), finding.actual.as_str()),
        ("0 in all padding", "2 elements")
    );
}

#[test]
fn padding_explains_that_the_slot_differs_from_a_cold_load() {
    let mut run = correct();
    run.phase("warm", "A>B").read(EMBED, |_, read| {
        read.padding_written = 1;
        read.content = Some(model::content("with padding"));
    });
    assert_eq!(run.found(), [one(Code::PaddingWritten, EMBED, &[0])]);
}

#[test]
fn padding_that_nobody_read_is_undecided() {
    let mut run = correct();
    run.phase("routing", "S0>B").drop(|_, fact| matches!(fact, Fact::ReadBack(_)));
    assert_undecided(&run, Room::Routing, "no padding was read back");
}

#[test]
fn a_slot_that_another_finding_explains_is_no_second_one() {
    let misplaced = |run: &mut Run| {
        origins(run, GATE_UP, |rank, fact| {
            if rank == 1 {
                fact.runs[0].element = 0;
            }
        });
    };
    let mut run = correct_at(2);
    misplaced(&mut run);
    run.since("warm", "A>B").slot(GATE_UP, |_, slot| slot.fingerprint = None);
    run.since("warm", "A>B")
        .drop(|_, fact| matches!(fact, Fact::ReadBack(read) if read.slot.0 == GATE_UP));
    assert_eq!(run.found(), [one(Code::SlotExpired, GATE_UP, &[0, 1])]);
    // So is one that is read through a permutation with a finding.
    let mut run = correct_at(2);
    misplaced(&mut run);
    run.phase("routing", "A>S0").add(
        coldproof_contract::words::StepName::Resume,
        Default::default(),
        model::slots(Topology::tensor(2), Default::default(), 2)
            .into_iter()
            .filter(|slot| slot.slot.0 == GATE_UP)
            .map(|mut slot| {
                let permutation = model::name(NORM_F32);
                slot.packing = coldproof_contract::words::Packing::ColumnsPermuted { permutation };
                Fact::Slot(slot)
            })
            .collect(),
    );
    run.since("warm", "A>B").slot(NORM_F32, |_, slot| slot.fingerprint = None);
    run.since("warm", "A>B")
        .drop(|_, fact| matches!(fact, Fact::ReadBack(read) if read.slot.0 == NORM_F32));
    assert_eq!(run.found(), [one(Code::SlotExpired, NORM_F32, &[0, 1])]);
}

#[test]
fn an_arm_without_sentinels_need_not_be_placed() {
    // Three ranks divide nothing of the model.
    let mut run = correct();
    let names = run.header.arms.iter_mut().find(|header| header.arm == "names-1").unwrap();
    names.topology = Topology::tensor(3);
    assert_eq!(room(&run.judge(), Room::Routing).0, Status::Pass);
    let routing = run.header.arms.iter_mut().find(|header| header.arm == "routing").unwrap();
    routing.topology = Topology::tensor(3);
    let (status, reason) = room(&run.judge(), Room::Routing);
    assert_eq!(status, Status::Undecided);
    assert!(reason.contains("the catalogue cannot be placed"), "{reason}");
}

#[test]
fn checks_count_elements() {
    // Two ranks: 4 and 2 rows of two, a whole gate_up half of each, a norm on both.
    let (_, proven) = room(&correct().judge(), Room::Routing);
    assert_eq!(proven, "origin of every element decoded on 2 ranks, 26 elements");
}
