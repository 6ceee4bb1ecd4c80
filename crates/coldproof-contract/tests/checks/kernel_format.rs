//! Categories 3 and 5: slots that are delivered rank by rank, as kernels read them.

use coldproof_contract::evidence::{
    ApplicationFact, Event, Fact, LaneName, ManifestFact, ReadBackFact, SourceHeader,
};
use coldproof_contract::routing::{Placement, PlacementError, Sharding, SourceRule, Stage};
use coldproof_contract::verdict::{FindingCode as Code, Room};
use coldproof_contract::words::{
    Fragment, Policy, Rank, SlotKind, SlotShard, StepName, Topology, TransactionId,
};

use crate::support::model::{self, EMBED, GATE_UP, NORM, NORM_F32, label};
use crate::support::{Run, assert_silent, assert_undecided, correct_with, one};

/// Two replicas of two ranks each.
const TOPOLOGY: Topology = Topology { tp: 2, pp: 1, ep: 1, dp: 2 };

fn shard(tp: u32, slot: &str) -> String {
    SlotShard::new(Rank::tensor(tp), slot.into()).to_string()
}

/// What K holds: every refreshed slot of every rank of a replica.
fn rules() -> Vec<SourceRule> {
    let rules = TOPOLOGY.replica().ranks().flat_map(|rank| {
        let own = model::slots(TOPOLOGY, rank, 1).into_iter().filter(|slot| {
            matches!(slot.slot_kind, SlotKind::Parameter | SlotKind::Derived)
                && slot.policy == Policy::Refresh
        });
        own.map(move |slot| SourceRule {
            source: shard(rank.tp, &slot.slot.0),
            dtype: slot.fingerprint.unwrap().dtype,
            shape: slot.logical_shape,
            slot: slot.slot,
            sharding: Sharding::OneRank { rank },
            stage: Stage::Everywhere,
        })
    });
    rules.collect()
}

/// One arm again, as one of the kernel lane.
fn again(run: &mut Run, of: &str, arm: &str, against: Option<&str>) {
    let mut header = run.header.arms.iter().find(|header| header.arm == of).unwrap().clone();
    (header.arm, header.lane) = (arm.to_owned(), LaneName::Kernel);
    header.against = against.map(str::to_owned);
    run.header.arms.push(header);
    let mut updated = false;
    let mut events: Vec<Event> = Vec::new();
    for mut event in run.events.iter().filter(|event| event.arm == of).cloned() {
        event.arm = arm.to_owned();
        match &mut event.fact {
            Fact::Phase(phase) if phase.from.is_some() => {
                (phase.at, phase.phase, updated) = (label("K"), "A>K".to_owned(), true);
            }
            Fact::Manifest(manifest) => promise(manifest),
            // No post-load follows.
            Fact::Application(_) | Fact::PostLoad(_) if updated => continue,
            _ => {}
        }
        events.push(event);
    }
    run.events.extend(events);
    if updated {
        for rank in TOPOLOGY.ranks() {
            let own = rules().into_iter().filter(|rule| rule.is_on(TOPOLOGY, rank));
            let facts = own.map(|rule| Fact::Application(applied(&rule))).collect();
            run.phase(arm, "A>K").add(StepName::Update, rank, facts);
        }
    }
}

fn promise(manifest: &mut ManifestFact) {
    let names: Vec<String> = rules().into_iter().map(|rule| rule.source).collect();
    (manifest.checkpoint, manifest.required) = (label("K"), names.clone());
    manifest.delivered = names;
}

fn applied(rule: &SourceRule) -> ApplicationFact {
    let whole = Fragment::whole(&rule.shape);
    ApplicationFact {
        transaction: TransactionId(2),
        source: rule.source.clone(),
        source_fragment: whole.clone(),
        slot: rule.slot.clone(),
        slot_fragment: whole,
    }
}

/// A run of all lanes and an update in kernel format, in which nothing is wrong.
fn with_an_update_in_kernel_format() -> Run {
    let mut run = correct_with(TOPOLOGY);
    let mut delivered = model::checkpoint("K");
    delivered.content = Some(label("B"));
    delivered.rules = rules();
    let source = |rule: &SourceRule| SourceHeader {
        name: rule.source.clone(),
        dtype: rule.dtype,
        shape: rule.shape.clone(),
        digest: model::content(&rule.source),
        unsigned: None,
    };
    delivered.sources = delivered.rules.iter().map(source).collect();
    run.header.checkpoints.push(delivered);
    again(&mut run, "cold-b", "cold-kernel", None);
    again(&mut run, "names", "kernel", Some("cold-kernel"));
    run
}

fn held(rank: Rank, at: &str, slot: &str) -> ReadBackFact {
    let held = model::read_backs(TOPOLOGY, rank, at).into_iter();
    held.clone().find(|read| read.slot.0 == slot).unwrap()
}

/// Ranks of the first replica hold each other's bytes of a slot.
fn exchanged(run: &mut Run, arm: &str, phase: &str, slot: &str) {
    run.phase(arm, phase).read(slot, |rank, read| {
        if rank.dp == 0 {
            *read = held(Rank { tp: 1 - rank.tp, ..rank }, "B", slot);
        }
    });
}

#[test]
fn every_rank_of_every_replica_takes_its_own() {
    let run = with_an_update_in_kernel_format();
    assert_silent(&run);
    let ranks = |rule: &SourceRule| -> Vec<Rank> {
        TOPOLOGY.ranks().filter(|rank| rule.is_on(TOPOLOGY, *rank)).collect()
    };
    let own = &rules()[0];
    assert_eq!(ranks(own), [Rank::tensor(0), Rank::first_of(1)]);
    assert_eq!(own.pieces(TOPOLOGY, Rank::tensor(0)).unwrap().1, own.shape);
}

#[test]
fn shards_of_two_ranks_that_were_exchanged_are_misplaced() {
    for slot in [GATE_UP, NORM_F32] {
        let mut run = with_an_update_in_kernel_format();
        exchanged(&mut run, "kernel", "A>K", slot);
        assert_eq!(run.found(), [one(Code::ShardMisplaced, slot, &[0, 1])]);
        let finding = run.judge().findings.remove(0);
        assert_eq!(finding.expected, format!("the bytes of `tp0:{slot}`"));
        assert_eq!(finding.actual, format!("the bytes of `tp1:{slot}`"));
    }
}

#[test]
fn the_same_bytes_of_a_checkpoint_that_no_rank_has_alone_are_the_loaders() {
    let mut run = with_an_update_in_kernel_format();
    exchanged(&mut run, "names", "A>B", GATE_UP);
    assert_eq!(run.found(), [one(Code::LoaderStale, GATE_UP, &[0, 1])]);
}

#[test]
fn old_bytes_are_no_other_ranks_shard() {
    let mut run = with_an_update_in_kernel_format();
    let old = held(Rank::tensor(0), "A", NORM_F32);
    for (arm, phase) in [("cold-kernel", "before"), ("kernel", "A>K")] {
        run.phase(arm, phase).read(NORM_F32, |rank, read| {
            let wanted = arm == "cold-kernel" && rank.tp == 1;
            if wanted || (arm == "kernel" && rank == Rank::tensor(0)) {
                *read = old.clone();
            }
        });
    }
    let found = run.found();
    assert!(found.contains(&one(Code::DerivedStale, NORM_F32, &[0, 1, 3])), "{found:?}");
}

#[test]
fn bytes_that_no_rank_has_are_of_no_other_rank() {
    let mut run = with_an_update_in_kernel_format();
    run.phase("kernel", "A>K").read(NORM, |rank, read| {
        if rank == Rank::tensor(1) {
            read.content = Some(model::content("garbage"));
        }
    });
    assert_eq!(run.found(), [one(Code::LoaderStale, NORM, &[1])]);
}

#[test]
fn a_shard_that_never_reached_its_rank_is_one_finding_whatever_the_engine_says() {
    for honest in [true, false] {
        let mut run = with_an_update_in_kernel_format();
        let source = shard(1, GATE_UP);
        let gone = Rank { dp: 1, ..Rank::tensor(1) };
        run.phase("kernel", "A>K").read(GATE_UP, |rank, read| {
            if rank == gone {
                *read = held(rank, "A", GATE_UP);
            }
        });
        run.phase("kernel", "A>K").drop(|rank, fact| match fact {
            Fact::Application(applied) => honest && rank == gone && applied.source == source,
            _ => false,
        });
        assert_eq!(run.found(), [one(Code::ApplicationMissing, &source, &[3])], "{honest}");
    }
}

#[test]
fn an_engine_that_says_that_a_rank_took_anothers_shard_is_believed() {
    for whole in [true, false] {
        let mut run = with_an_update_in_kernel_format();
        run.phase("kernel", "A>K").map(|rank, mut fact| {
            if let Fact::Application(applied) = &mut fact
                && rank == Rank::tensor(0)
                && applied.source == shard(0, EMBED)
            {
                applied.source = shard(1, EMBED);
            }
            Some(fact)
        });
        if whole {
            exchanged(&mut run, "kernel", "A>K", EMBED);
        }
        let ranks: &[u32] = if whole { &[0, 1] } else { &[0] };
        assert_eq!(run.found(), [one(Code::ShardMisplaced, EMBED, ranks)]);
    }
}

#[test]
fn a_rank_that_the_topology_has_not_is_named() {
    let mut foreign = rules();
    let rank = Rank::tensor(2);
    foreign[0].sharding = Sharding::OneRank { rank };
    let refused = PlacementError::Rank { rank, topology: TOPOLOGY };
    assert_eq!(Placement::of(&foreign, TOPOLOGY), Err(refused.clone()));
    let mut run = with_an_update_in_kernel_format();
    run.header.checkpoints.last_mut().unwrap().rules = foreign;
    assert_undecided(&run, Room::Lifecycle, &refused.to_string());
}
