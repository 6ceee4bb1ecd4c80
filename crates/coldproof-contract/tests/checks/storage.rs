//! Category 1: captured addresses.

use coldproof_contract::evidence::{AllocFact, Event, Fact, FreeFact, StepFact, StepOutcome};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::{Address, Rank, StepName, StorageId};

use crate::support::model::{self, GATE_UP, HEAD, NORM, ROPE, WORKSPACE};
use crate::support::{Run, assert_silent, assert_undecided, correct, correct_at, one, room};

fn freed(slot: &str) -> Fact {
    Fact::Free(FreeFact { storage: model::storage(slot), address: model::address(slot) })
}

fn handed_out(storage: u64, address: Address, purpose: &str) -> Fact {
    Fact::Alloc(AllocFact {
        storage: StorageId(storage),
        address,
        bytes: model::BYTES,
        region: "weights".to_owned(),
        purpose: purpose.to_owned(),
    })
}

/// The slot is registered elsewhere from `A>B` on.
fn rebind(run: &mut Run, slot: &str, to: Address) {
    run.since("warm", "A>B").slot(slot, |_, slot| {
        let print = slot.fingerprint.as_mut().unwrap();
        (print.storage, print.address) = (StorageId(90), to);
    });
}

#[test]
fn a_captured_slot_in_a_new_storage_is_rebound() {
    let mut run = correct();
    let facts = vec![
        handed_out(90, Address(0x1_4000), WORKSPACE),
        freed(WORKSPACE),
        handed_out(91, model::address(WORKSPACE), "pressure"),
    ];
    run.phase("warm", "A>B").add(StepName::Finalize, Rank::default(), facts);
    rebind(&mut run, WORKSPACE, Address(0x1_4000));
    assert_eq!(run.found(), [one(Code::SlotRebound, WORKSPACE, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.requirement, "R5");
    let events: Vec<(&str, &str)> =
        finding.events.iter().map(|e| (e.what.as_str(), e.step.as_str())).collect();
    assert_eq!(events, [("bound", "load"), ("captured", "capture"), ("freed", "finalize")]);
    let text = &finding.events[2].text;
    assert_eq!(
        text,
        "its block was freed in step `finalize` and handed to `pressure` (storage #91)"
    );
    assert!(finding.why.contains("graph `decode-1` retains 0x10600"), "{}", finding.why);
    assert!(finding.actual.contains("0x14000 (storage #90)"), "{}", finding.actual);
}

#[test]
fn a_slot_that_moved_while_its_old_block_lives_on_is_rebound() {
    let mut run = correct();
    rebind(&mut run, WORKSPACE, Address(0x1_4000));
    assert_eq!(run.found(), [one(Code::SlotRebound, WORKSPACE, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.events[2].what, "rebound");
    assert!(finding.why.contains("without an owner"), "{}", finding.why);
}

#[test]
fn a_slot_that_no_graph_captured_may_move() {
    let mut run = correct();
    let at = model::address(WORKSPACE);
    run.phase("warm", "before").map(|_, mut fact| {
        if let Fact::Node(node) = &mut fact {
            node.args.retain(|arg| arg.address != at);
        }
        Some(fact)
    });
    rebind(&mut run, WORKSPACE, Address(0x1_4000));
    assert_silent(&run);
}

#[test]
fn a_slot_that_the_graph_captured_in_the_middle_may_not_move() {
    let mut run = correct();
    let at = model::address(WORKSPACE);
    run.phase("warm", "before").map(|_, mut fact| {
        if let Fact::Node(node) = &mut fact {
            let arg = node.args.iter_mut().find(|arg| arg.address == at).unwrap();
            arg.address = at.plus(8);
        }
        Some(fact)
    });
    assert_silent(&run);
    rebind(&mut run, WORKSPACE, Address(0x1_4000));
    assert_eq!(run.found(), [one(Code::SlotRebound, WORKSPACE, &[0])]);
}

#[test]
fn a_lying_registry_is_convicted_by_the_allocator() {
    let mut run = correct();
    let facts = vec![freed(NORM), handed_out(90, model::address(NORM).plus(0x40), "kv")];
    run.phase("warm", "A>B").add(StepName::Finalize, Rank::default(), facts);
    assert_eq!(run.found(), [one(Code::AddressStale, NORM, &[0])]);
    assert_eq!(run.judge().findings[0].requirement, "R71");
}

#[test]
fn a_block_is_stale_even_where_its_own_slot_reuses_it_or_nobody_does() {
    for reuse in [vec![], vec![handed_out(90, model::address(NORM), NORM)]] {
        let mut run = correct();
        let facts = [vec![freed(NORM)], reuse].concat();
        run.phase("warm", "B>A").add(StepName::Update, Rank::default(), facts);
        assert_eq!(run.found(), [one(Code::AddressStale, NORM, &[0])]);
    }
}

#[test]
fn a_block_that_no_graph_retains_may_come_and_go() {
    let mut run = correct();
    let facts = vec![
        handed_out(90, Address(0x1_4000), "staging"),
        Fact::Free(FreeFact { storage: StorageId(90), address: Address(0x1_4000) }),
        handed_out(91, Address(0x1_4000), "staging"),
    ];
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), facts);
    assert_silent(&run);
}

#[test]
fn a_block_freed_before_the_capture_is_not_the_captured_one() {
    let mut run = correct();
    let at = model::address(NORM);
    let facts = vec![freed(NORM), handed_out(90, at, NORM)];
    run.phase("warm", "before").add(StepName::Load, Rank::default(), facts);
    assert_silent(&run);
}

#[test]
fn two_blocks_in_turn_are_one_fault() {
    // The allocator hands out the old block again at the second update: the registry is back where
    // it was, and the captured block is still one that was freed.
    let mut run = correct();
    let there = Address(0x1_4000);
    let facts = vec![handed_out(90, there, WORKSPACE), freed(WORKSPACE)];
    run.phase("warm", "A>B").add(StepName::Finalize, Rank::default(), facts);
    run.phase("warm", "A>B").slot(WORKSPACE, |_, slot| {
        let print = slot.fingerprint.as_mut().unwrap();
        (print.storage, print.address) = (StorageId(90), there);
    });
    assert_eq!(run.found(), [one(Code::SlotRebound, WORKSPACE, &[0])]);
}

#[test]
fn a_slot_that_is_gone_from_the_registry_is_missing() {
    let mut run = correct();
    let mut live = run.since("warm", "A>B");
    live.drop(|_, fact| match fact {
        Fact::Slot(slot) => slot.slot.0 == NORM,
        Fact::ReadBack(read) => read.slot.0 == NORM,
        _ => false,
    });
    assert_eq!(run.found(), [one(Code::SlotMissing, NORM, &[0])]);
    assert!(run.judge().findings[0].actual.contains("nowhere"));
}

#[test]
fn a_slot_without_a_storage_has_expired() {
    let mut run = correct();
    let mut live = run.since("warm", "A>B");
    live.slot(NORM, |_, slot| slot.fingerprint = None);
    live.drop(|_, fact| matches!(fact, Fact::ReadBack(read) if read.slot.0 == NORM));
    assert_eq!(run.found(), [one(Code::SlotExpired, NORM, &[0])]);
}

#[test]
fn a_slot_of_another_layout_at_the_same_address_is_respecified() {
    type Change = fn(&mut coldproof_contract::words::Fingerprint);
    let changes: [(&str, Change); 6] = [
        ("storage size", |print| print.storage_bytes *= 2),
        ("shape", |print| print.shape = vec![2, 8]),
        ("stride", |print| print.stride = vec![1, 8]),
        ("offset", |print| print.offset = 4),
        ("dtype", |print| print.dtype = coldproof_contract::words::Dtype::F16),
        ("device", |print| print.device = "arena:1".to_owned()),
    ];
    for (field, change) in changes {
        let mut run = correct();
        run.since("warm", "A>B").slot(GATE_UP, |_, slot| {
            change(slot.fingerprint.as_mut().unwrap());
        });
        assert_eq!(run.found(), [one(Code::SlotRespecified, GATE_UP, &[0])], "{field}");
        let finding = run.judge().findings.remove(0);
        let why = format!("the captured kernels were built for another {field}");
        assert_eq!(finding.why, why);
        assert_eq!(finding.expected, "[8, 2] BF16 stride [2, 1] on arena:0");
    }
}

#[test]
fn a_slot_that_begins_elsewhere_in_its_own_storage_is_rebound() {
    let mut run = correct();
    run.since("warm", "A>B").slot(GATE_UP, |_, slot| {
        let print = slot.fingerprint.as_mut().unwrap();
        (print.address, print.offset) = (Address(print.address.0 - 2), 4);
    });
    assert_eq!(run.found(), [one(Code::SlotRebound, GATE_UP, &[0])]);
}

#[test]
fn a_block_that_was_freed_and_came_back_with_another_layout_is_one_finding() {
    let mut run = correct();
    let facts = vec![freed(GATE_UP), handed_out(90, model::address(GATE_UP), GATE_UP)];
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), facts);
    run.since("warm", "A>B").slot(GATE_UP, |_, slot| {
        slot.fingerprint.as_mut().unwrap().stride = vec![1, 8];
    });
    assert_eq!(run.found(), [one(Code::AddressStale, GATE_UP, &[0])]);
}

#[test]
fn a_region_that_was_not_mapped_again_is_one_finding() {
    let mut run = correct();
    let woken = |fact: &Fact| matches!(fact, Fact::Region(region) if region.mapped);
    let mut woke = false;
    run.phase("composite", "A>B").drop(|_, fact| {
        let first = woken(fact) && !woke;
        woke |= first;
        first
    });
    assert_eq!(run.found(), [one(Code::AddressStale, "weights", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.events[1].what, "unmapped");
    assert_eq!(finding.events[1].step, "sleep");
}

#[test]
fn an_engine_that_does_not_serve_while_it_is_asleep_is_right_about_its_memory() {
    let woken = |fact: &Fact| matches!(fact, Fact::Region(region) if region.mapped);
    let asleep = |outcome| {
        let mut run = correct();
        run.phase("composite", "A>B").drop(|_, fact| woken(fact)).ends(StepName::Resume, outcome);
        run.found()
    };
    let refused = StepOutcome::Error { text: "asleep".to_owned() };
    assert_eq!(asleep(refused), [one(Code::StepRefused, "resume", &[0])]);
    assert_eq!(asleep(StepOutcome::Unsupported { what: "resume".to_owned() }), []);
}

#[test]
fn a_fault_of_one_rank_names_that_rank() {
    let mut run = correct_at(2);
    let facts = vec![freed(NORM)];
    run.phase("warm", "A>B").add(StepName::Update, Rank::tensor(1), facts.clone());
    assert_eq!(run.found(), [one(Code::AddressStale, NORM, &[1])]);
    run.phase("warm", "A>B").add(StepName::Update, Rank::tensor(0), facts);
    assert_eq!(run.found(), [one(Code::AddressStale, NORM, &[0, 1])]);
}

#[test]
fn faults_of_two_slots_are_two_findings() {
    let mut run = correct();
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), vec![freed(NORM)]);
    rebind(&mut run, WORKSPACE, Address(0x1_4000));
    let wanted = [one(Code::SlotRebound, WORKSPACE, &[0]), one(Code::AddressStale, NORM, &[0])];
    assert_eq!(run.found(), wanted);
}

#[test]
fn an_address_that_no_block_holds_is_undecided() {
    let mut run = correct();
    let unknown = model::storage(ROPE);
    run.phase("warm", "before")
        .drop(|_, fact| matches!(fact, Fact::Alloc(block) if block.storage == unknown));
    let reason = "1 captured addresses of arm `warm` lie in no block the allocator knows";
    assert_undecided(&run, Room::Storage, reason);
}

#[test]
fn an_address_that_no_slot_owns_is_judged_by_its_block() {
    let mut run = correct();
    for phase in ["before", "A>B", "B>A", "A>P", "P>B"] {
        run.phase("warm", phase)
            .drop(|_, fact| matches!(fact, Fact::Slot(slot) if slot.slot.0 == WORKSPACE));
    }
    run.phase("cold-b", "before")
        .drop(|_, fact| matches!(fact, Fact::Slot(slot) if slot.slot.0 == WORKSPACE));
    let reason = "1 captured addresses of arm `warm` are read and owned by no slot";
    assert_undecided(&run, Room::Storage, reason);
    // The graphs' own memory has no owner.
    let mut pool = run.clone();
    pool.phase("warm", "before").map(|_, mut fact| {
        if let Fact::Alloc(block) = &mut fact
            && block.purpose == WORKSPACE
        {
            block.region = "graph_pool".to_owned();
        }
        Some(fact)
    });
    assert_silent(&pool);
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), vec![freed(WORKSPACE)]);
    assert_eq!(run.found(), [one(Code::AddressStale, WORKSPACE, &[0])]);
}

#[test]
fn a_capture_without_nodes_is_undecided() {
    let mut run = correct();
    run.phase("warm", "before").drop(|_, fact| matches!(fact, Fact::Node(_)));
    assert_undecided(&run, Room::Storage, "arm `warm` captured no node");
    let mut run = correct_at(2);
    run.phase("warm", "before").drop(|rank, fact| rank.tp == 1 && matches!(fact, Fact::Node(_)));
    assert_undecided(&run, Room::Storage, "arm `warm` captured no address on rank tp1");
}

#[test]
fn an_arm_that_captures_nothing_owes_no_node() {
    let mut run = correct();
    run.phase("names", "before").drop(|_, fact| match fact {
        Fact::Node(_) => true,
        Fact::Step(step) => step.name == StepName::Capture,
        _ => false,
    });
    assert_silent(&run);
}

#[test]
fn only_a_replay_of_the_old_graph_proves_anything() {
    let rename = |run: &mut Run, graph: Option<&str>| {
        for arm in ["warm", "composite"] {
            run.since(arm, "A>B").map(|_, mut fact| {
                if let Fact::Launch(launch) = &mut fact
                    && launch.graph.is_some()
                {
                    launch.graph = graph.map(str::to_owned);
                }
                Some(fact)
            });
        }
    };
    for other in [None, Some("decode-1-captured-again")] {
        let mut run = correct();
        rename(&mut run, other);
        let verdict = run.judge();
        let (status, why) = room(&verdict, Room::Storage);
        assert_eq!(status, Status::Undecided);
        assert!(why.contains("no captured graph was replayed after the update"), "{why}");
    }
}

#[test]
fn a_replay_before_the_pressure_proves_nothing() {
    let reason = "freed memory was not reused before the replay";
    let mut run = correct();
    let pressure = |fact: &Fact| match fact {
        Fact::Step(step) => step.name == StepName::Pressure,
        _ => false,
    };
    for phase in ["A>B", "B>A", "A>P", "P>B"] {
        run.phase("warm", phase).drop(|_, fact| pressure(fact));
    }
    assert_undecided(&run, Room::Storage, reason);
    // Pressure that comes when all has been served is none.
    let last = run.events.iter().rfind(|event| event.arm == "warm").unwrap().clone();
    let step = last.step + 1;
    for outcome in [None, Some(StepOutcome::Ok)] {
        let fact = Fact::Step(StepFact { name: StepName::Pressure, outcome });
        run.events.push(Event { step, fact, ..last.clone() });
    }
    assert_undecided(&run, Room::Storage, reason);
}

#[test]
fn a_change_that_no_replay_shows_is_unseen() {
    let blind = |run: &mut Run, slots: &[&str]| {
        run.phase("warm", "A>B").map(|_, mut fact| {
            if let Fact::Control(control) = &mut fact
                && slots.contains(&control.slot.0.as_str())
            {
                control.after = control.before;
                control.part = if control.slot.0 == ROPE { "head 1".into() } else { "".into() };
            }
            Some(fact)
        });
    };
    let mut run = correct();
    blind(&mut run, &[ROPE]);
    assert_silent(&run);
    assert_eq!(run.judge().unseen, [format!("{ROPE} (head 1)")]);
    blind(&mut run, &[GATE_UP]);
    assert_undecided(&run, Room::Storage, "no positive control was seen by the replay");
    assert_eq!(run.judge().unseen, [GATE_UP.to_owned(), format!("{ROPE} (head 1)")]);
}

#[test]
fn an_engine_that_registers_nothing_after_the_capture_is_undecided() {
    let mut run = correct();
    for (arm, phase) in [("warm", "A>B"), ("warm", "B>A"), ("warm", "A>P"), ("warm", "P>B")] {
        run.phase(arm, phase).drop(|_, fact| matches!(fact, Fact::Slot(_)));
    }
    assert_undecided(&run, Room::Storage, "arm `warm` registered no slot after it captured");
    // What the allocator knows still convicts.
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), vec![freed(NORM)]);
    assert_eq!(run.found(), [one(Code::AddressStale, NORM, &[0])]);
}

#[test]
fn an_alias_gives_way_to_the_slot_that_owns_the_storage() {
    let mut run = correct();
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), vec![freed(HEAD)]);
    assert_eq!(run.found(), [one(Code::AddressStale, model::EMBED, &[0])]);
}

#[test]
fn a_view_into_a_slot_does_not_hide_it() {
    let mut run = correct();
    let (at, view) = (model::address(NORM), model::address(NORM).plus(2));
    run.phase("warm", "before").map(|_, mut fact| {
        if let Fact::Node(node) = &mut fact {
            node.args.iter_mut().find(|arg| arg.address == at).unwrap().address = at.plus(3);
        }
        if let Fact::Slot(slot) = &mut fact
            && slot.slot.0 == WORKSPACE
        {
            let print = slot.fingerprint.as_mut().unwrap();
            (print.address, print.shape) = (view, vec![0]);
        }
        Some(fact)
    });
    rebind(&mut run, NORM, Address(0x1_4000));
    assert!(run.found().contains(&one(Code::SlotRebound, NORM, &[0])), "{:?}", run.found());
}

#[test]
fn checks_count_captured_addresses_that_are_clean() {
    let checks = |run: &Run| run.judge().categories[0].checks;
    // Six storages in each of warm, names, names-1, caches and composite.
    assert_eq!(checks(&correct()), 30);
    let mut run = correct();
    run.phase("warm", "A>B").add(StepName::Update, Rank::default(), vec![freed(NORM)]);
    assert_eq!(checks(&run), 29);
    assert_eq!(room(&run.judge(), Room::Storage).0, Status::Fail);
    let (_, proven) = room(&correct().judge(), Room::Storage);
    let wanted = "30 captured addresses alive, 30 of them of the same owner and 0 of the graphs' \
                  own memory; 2 live changes seen by the replay";
    assert_eq!(proven, wanted);
}
