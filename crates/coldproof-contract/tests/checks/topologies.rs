//! What explains what: a finding explains its slot on its own rank and layout of ranks.

use coldproof_contract::evidence::{ArmHeader, Event, Fact, FreeFact, LaneName};
use coldproof_contract::verdict::{FindingCode as Code, Room};
use coldproof_contract::words::{Rank, StepName, Topology};

use crate::support::model::{self, EMBED, GATE_UP, NORM_F32};
use crate::support::{Run, correct, correct_at, misplaced, one, room};

/// The block under a captured slot is freed on one rank.
fn freed(run: &mut Run, slot: &str, rank: Rank) {
    let fact = FreeFact { storage: model::storage(slot), address: model::address(slot) };
    run.phase("warm", "A>B").add(StepName::Update, rank, vec![Fact::Free(fact)]);
}

#[test]
fn another_fault_of_a_slot_at_another_topology_is_a_finding_of_its_own() {
    let mut run = correct();
    freed(&mut run, GATE_UP, Rank::default());
    misplaced(&mut run);
    let wanted = [one(Code::AddressStale, GATE_UP, &[0]), one(Code::ShardMisplaced, GATE_UP, &[1])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn a_symptom_on_the_same_rank_of_the_same_topology_joins() {
    let mut run = correct_at(2);
    freed(&mut run, GATE_UP, Rank::tensor(1));
    misplaced(&mut run);
    assert_eq!(run.found(), [one(Code::AddressStale, GATE_UP, &[1])]);
    let (_, reason) = room(&run.judge(), Room::Routing);
    assert!(reason.contains("see address-stale of `mlp.gate_up.weight`"), "{reason}");
}

#[test]
fn another_fault_of_a_slot_on_another_rank_is_a_finding_of_its_own() {
    let mut run = correct_at(2);
    freed(&mut run, GATE_UP, Rank::tensor(0));
    misplaced(&mut run);
    let wanted = [one(Code::AddressStale, GATE_UP, &[0]), one(Code::ShardMisplaced, GATE_UP, &[1])];
    assert_eq!(run.found(), wanted);
    let mut run = correct_at(2);
    freed(&mut run, GATE_UP, Rank::tensor(0));
    run.phase("warm", "A>B").read(GATE_UP, |rank, read| {
        if rank.tp == 1 {
            read.content = Some(model::content("garbage"));
            read.pieces.iter_mut().for_each(|piece| piece.content = model::content("garbage"));
        }
    });
    let wanted = [one(Code::AddressStale, GATE_UP, &[0]), one(Code::LoaderStale, GATE_UP, &[1])];
    assert_eq!(run.found(), wanted);
}

/// A run whose routing arm, at two ranks, is held against a cold load at two ranks.
fn with_cold_routing() -> Run {
    let mut run = correct();
    let other = correct_at(2);
    let header = other.header.arms.iter().find(|header| header.arm == "cold-b").unwrap();
    let header = ArmHeader { arm: "routing-cold".to_owned(), ..header.clone() };
    run.header.arms.push(ArmHeader { lane: LaneName::Routing, ..header });
    let cold = other.events.into_iter().filter(|event| event.arm == "cold-b");
    run.events.extend(cold.map(|event| Event { arm: "routing-cold".to_owned(), ..event }));
    let routing = run.header.arms.iter_mut().find(|header| header.arm == "routing").unwrap();
    routing.against = Some("routing-cold".to_owned());
    run
}

#[test]
fn a_slot_that_is_wrong_in_the_same_way_at_another_topology_has_the_same_cause() {
    let stale = |content: &str| {
        let mut run = with_cold_routing();
        freed(&mut run, NORM_F32, Rank::default());
        run.phase("warm", "A>B").still_holds(NORM_F32, "A");
        for rank in [0, 1].map(Rank::tensor) {
            let own = model::read_backs(Topology::tensor(2), rank, "S0").into_iter();
            let mut old = own.filter(|read| read.slot.0 == NORM_F32).collect::<Vec<_>>().remove(0);
            old.content = Some(model::content("old"));
            let facts = vec![Fact::ReadBack(old)];
            run.phase("routing", "A>S0").add(StepName::ReadBack, rank, facts);
        }
        let content = Some(model::content(content));
        run.phase("routing", "S0>B").read(NORM_F32, |_, read| read.content = content);
        run.found()
    };
    assert_eq!(stale("old"), [one(Code::AddressStale, NORM_F32, &[0])]);
    let wanted =
        [one(Code::AddressStale, NORM_F32, &[0]), one(Code::DerivedStale, NORM_F32, &[0, 1])];
    assert_eq!(stale("garbage"), wanted);
}

#[test]
fn the_same_fault_at_two_topologies_is_one_finding() {
    let mut run = correct();
    for (arm, phase) in [("warm", "A>B"), ("routing", "S0>B")] {
        run.phase(arm, phase).read(EMBED, |_, read| read.padding_written = 2);
    }
    assert_eq!(run.found(), [one(Code::PaddingWritten, EMBED, &[0])]);
}
