//! Category 4: buffers, aliases, configuration.

use coldproof_contract::evidence::Fact;
use coldproof_contract::verdict::{FindingCode as Code, Room};
use coldproof_contract::words::{Address, Policy, Rank, SlotKind, StepName, StorageId};

use crate::support::model::{self, EMBED, HEAD, ROPE, WORKSPACE};
use crate::support::{Run, assert_silent, assert_undecided, correct, correct_at, one, room};

fn garbage(run: &mut Run, slot: &str) {
    let garbage = Some(model::content("garbage"));
    run.phase("warm", "A>B").read(slot, |_, read| read.content = garbage);
}

fn configure(run: &mut Run, arm: &str, phase: &str, value: Option<&str>) {
    run.since(arm, phase).map(|_, fact| match fact {
        Fact::State(mut state) => value.map(|value| {
            state.value = value.to_owned();
            Fact::State(state)
        }),
        fact => Some(fact),
    });
}

/// The head has a storage of its own from `A>B` on.
fn split(run: &mut Run, arm: &str, phase: &str) {
    run.since(arm, phase).slot(HEAD, |_, slot| {
        let print = slot.fingerprint.as_mut().unwrap();
        (print.storage, print.address) = (StorageId(90), Address(0x1_4000));
    });
}

#[test]
fn a_buffer_that_no_checkpoint_carries_must_survive() {
    let mut run = correct();
    garbage(&mut run, ROPE);
    assert_eq!(run.found(), [one(Code::StateLost, ROPE, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.actual, "after `A>B` it holds neither the old nor the new bytes");
    assert_eq!(finding.events[0].what, "read-back");
}

#[test]
fn a_buffer_that_is_the_same_in_every_generation_is_preserved_and_not_unseen() {
    let run = correct();
    assert_silent(&run);
    assert_eq!(run.judge().unseen, Vec::<String>::new());
}

#[test]
fn a_slot_that_a_cold_load_has_and_the_live_engine_lacks_is_lost() {
    // No graph captured the alias, so the census has nothing to say of it.
    for (unbound, text) in [(false, "gone"), (true, "no storage")] {
        let mut run = correct();
        let mut live = run.since("warm", "A>B");
        live.slot(HEAD, |_, slot| slot.fingerprint = None);
        live.drop(|_, fact| match fact {
            Fact::Slot(slot) => !unbound && slot.slot.0 == HEAD,
            Fact::ReadBack(read) => read.slot.0 == HEAD,
            _ => false,
        });
        assert_eq!(run.found(), [one(Code::StateLost, HEAD, &[0])]);
        assert_eq!(run.judge().findings[0].actual, text);
    }
}

#[test]
fn a_scratch_slot_that_is_gone_is_lost_though_its_bytes_are_never_compared() {
    let mut run = correct();
    let at = model::address(WORKSPACE);
    run.phase("warm", "before").map(|_, mut fact| {
        if let Fact::Node(node) = &mut fact {
            node.args.retain(|arg| arg.address != at);
        }
        Some(fact)
    });
    run.since("warm", "A>B")
        .drop(|_, fact| matches!(fact, Fact::Slot(slot) if slot.slot.0 == WORKSPACE));
    assert_eq!(run.found(), [one(Code::StateLost, WORKSPACE, &[0])]);
}

#[test]
fn a_slot_that_neither_engine_has_any_more_is_not_lost() {
    let mut run = correct();
    for arm in ["cold-b", "warm", "names", "names-1", "caches", "composite"] {
        run.since(arm, "before").drop(|_, fact| match fact {
            Fact::Slot(slot) => slot.slot.0 == HEAD,
            Fact::ReadBack(read) => read.slot.0 == HEAD,
            _ => false,
        });
    }
    assert_silent(&run);
}

#[test]
fn two_names_of_one_storage_that_part_are_split() {
    let mut run = correct();
    split(&mut run, "warm", "A>B");
    assert_eq!(run.found(), [one(Code::AliasSplit, HEAD, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!(finding.expected, "one storage with `embed.weight`");
    assert_eq!(finding.actual, "#90, not #1");
}

/// The embedding, and with it its other name where `both`, has another storage from `A>B` on.
fn owner_moves(run: &mut Run, both: bool) {
    for name in [EMBED, HEAD].into_iter().take(1 + usize::from(both)) {
        run.since("warm", "A>B").slot(name, |_, slot| {
            let print = slot.fingerprint.as_mut().unwrap();
            (print.storage, print.address) = (StorageId(90), Address(0x1_4000));
        });
    }
}

#[test]
fn a_graph_that_keeps_the_storage_of_the_other_name_shows_a_split_and_no_rebinding() {
    let mut run = correct();
    owner_moves(&mut run, false);
    assert_eq!(run.found(), [one(Code::AliasSplit, HEAD, &[0])]);
    let mut run = correct();
    owner_moves(&mut run, true);
    assert_eq!(run.found(), [one(Code::SlotRebound, EMBED, &[0])]);
}

#[test]
fn a_pair_that_lists_itself_from_both_sides_is_one_finding_on_each_rank_that_has_it() {
    let mut run = correct_at(2);
    run.since("warm", "before").slot(HEAD, |_, slot| slot.slot_kind = SlotKind::Parameter);
    run.since("warm", "A>B").slot(HEAD, |rank, slot| {
        if rank.tp == 1 {
            slot.fingerprint.as_mut().unwrap().storage = StorageId(90);
        }
    });
    assert_eq!(run.found(), [one(Code::AliasSplit, HEAD, &[1])]);
}

#[test]
fn names_that_never_shared_a_storage_are_not_split() {
    let mut run = correct();
    for arm in ["warm", "composite"] {
        split(&mut run, arm, "before");
    }
    assert_silent(&run);
}

#[test]
fn an_alias_that_keeps_old_bytes_while_its_owner_is_new_is_split() {
    // The registry says that nothing moved.
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(HEAD, "A");
    assert_eq!(run.found(), [one(Code::AliasSplit, HEAD, &[0])]);
    assert_eq!(run.judge().findings[0].expected, "the bytes of `embed.weight`");
}

#[test]
fn an_alias_of_a_stale_owner_is_no_second_fault() {
    let mut run = correct();
    run.phase("warm", "A>B").still_holds(HEAD, "A").still_holds(EMBED, "A");
    assert_eq!(run.found(), [one(Code::ApplicationMissing, EMBED, &[0])]);
    let (_, reason) = room(&run.judge(), Room::State);
    assert!(reason.contains("so does the slot that owns its storage"), "{reason}");
}

#[test]
fn configuration_that_is_not_a_cold_loads_has_drifted() {
    let mut run = correct();
    configure(&mut run, "warm", "A>B", Some("32"));
    assert_eq!(run.found(), [one(Code::ConfigDrift, "engine.block_size", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!((finding.expected.as_str(), finding.actual.as_str()), ("16", "32"));
    let mut run = correct();
    run.since("warm", "A>B").map(|_, fact| match fact {
        Fact::State(mut state) => {
            state.name = "another".to_owned();
            Some(Fact::State(state))
        }
        fact => Some(fact),
    });
    assert_eq!(run.found(), [one(Code::ConfigDrift, "engine.block_size", &[0])]);
    assert_eq!(run.judge().findings[0].actual, "absent");
}

#[test]
fn configuration_that_a_cold_load_of_the_new_weights_has_too_is_right() {
    let mut run = correct();
    for arm in ["names", "caches", "composite"] {
        configure(&mut run, arm, "A>B", Some("32"));
    }
    configure(&mut run, "names-1", "A>B-alt", Some("32"));
    configure(&mut run, "cold-b", "before", Some("32"));
    for (phase, value) in [("A>B", "32"), ("B>A", "32"), ("A>P", "32"), ("P>B", "32")] {
        configure(&mut run, "warm", phase, Some(value));
    }
    assert_silent(&run);
}

#[test]
fn configuration_without_a_cold_load_is_held_against_what_it_was() {
    let mut run = correct();
    configure(&mut run, "cold-b", "before", None);
    assert_silent(&run);
    configure(&mut run, "warm", "P>B", Some("32"));
    assert_eq!(run.found(), [one(Code::ConfigDrift, "engine.block_size", &[0])]);
}

#[test]
fn configuration_that_an_update_refreshes_may_change() {
    let mut run = correct();
    run.since("warm", "before").map(|_, mut fact| {
        if let Fact::State(state) = &mut fact {
            state.policy = Policy::Refresh;
        }
        Some(fact)
    });
    configure(&mut run, "warm", "A>B", Some("32"));
    assert_silent(&run);
}

#[test]
fn configuration_that_an_update_empties_is_empty() {
    let policy = |run: &mut Run| {
        run.since("warm", "before").map(|_, mut fact| {
            if let Fact::State(state) = &mut fact {
                state.policy = Policy::Invalidate;
            }
            Some(fact)
        });
    };
    let mut run = correct();
    policy(&mut run);
    assert_eq!(run.found(), [one(Code::ConfigDrift, "engine.block_size", &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!((finding.expected.as_str(), finding.actual.as_str()), ("nothing", "16"));
    configure(&mut run, "warm", "A>B", Some(""));
    assert_silent(&run);
}

#[test]
fn configuration_that_appears_or_that_an_update_refreshes_and_drops_is_no_drift() {
    let mut run = correct();
    run.since("warm", "A>B").map(|_, fact| match fact {
        Fact::State(mut state) => {
            state.name = "another".to_owned();
            Some(Fact::State(state))
        }
        fact => Some(fact),
    });
    run.phase("warm", "before").map(|_, mut fact| {
        if let Fact::State(state) = &mut fact {
            state.policy = Policy::Refresh;
        }
        Some(fact)
    });
    assert_silent(&run);
}

#[test]
fn the_name_that_is_no_alias_owns_the_storage_whatever_the_order_of_names() {
    let mut run = correct();
    for arm in ["cold-b", "warm"] {
        run.since(arm, "before").slot(EMBED, |_, slot| slot.slot_kind = SlotKind::Alias);
        run.since(arm, "before").slot(HEAD, |_, slot| slot.slot_kind = SlotKind::Parameter);
    }
    assert_silent(&run);
    run.since("warm", "A>B").slot(EMBED, |_, slot| {
        slot.fingerprint.as_mut().unwrap().storage = StorageId(90);
    });
    assert_eq!(run.found(), [one(Code::AliasSplit, EMBED, &[0])]);
    assert_eq!(run.judge().findings[0].expected, "one storage with `head.weight`");
}

#[test]
fn names_without_a_storage_share_none() {
    let mut run = correct();
    for name in [EMBED, HEAD] {
        run.phase("names", "before").slot(name, |_, slot| slot.fingerprint = None);
    }
    run.phase("names", "A>B").slot(HEAD, |_, slot| {
        slot.fingerprint.as_mut().unwrap().storage = StorageId(90);
    });
    assert!(run.found().iter().all(|found| found.1 != Code::AliasSplit), "{:?}", run.found());
}

#[test]
fn outputs_in_the_phase_in_which_names_part_join_the_finding() {
    let mut run = correct();
    split(&mut run, "warm", "A>B");
    run.phase("warm", "B>A").map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact {
            logits.rows[0].digest = model::content("other outputs");
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::AliasSplit, HEAD, &[0])]);
}

#[test]
fn the_owner_of_an_alias_is_the_slot_that_names_it() {
    let mut run = correct();
    let first = run.events.iter().find_map(|event| match &event.fact {
        Fact::Slot(slot) if slot.slot.0 == ROPE => Some(slot.clone()),
        _ => None,
    });
    let mut first = first.unwrap();
    first.slot = "a.table".into();
    let facts = vec![Fact::Slot(first)];
    run.phase("warm", "A>B").add(StepName::Resume, Rank::default(), facts);
    run.phase("warm", "A>B").still_holds(HEAD, "A");
    assert_eq!(run.found(), [one(Code::AliasSplit, HEAD, &[0])]);
    assert_eq!(run.judge().findings[0].expected, "the bytes of `embed.weight`");
}

#[test]
fn three_names_of_one_storage_are_held_against_the_first() {
    // The head lists the buffer as its own other name; both belong to the embedding.
    let mut run = correct();
    for arm in ["cold-b", "warm", "names", "names-1", "caches", "composite"] {
        run.since(arm, "before").slot(ROPE, |_, slot| slot.aliases = vec![HEAD.into()]);
        run.since(arm, "before").slot(ROPE, |_, slot| {
            slot.fingerprint.as_mut().unwrap().storage = model::storage(EMBED);
        });
    }
    assert_silent(&run);
    run.since("warm", "A>B").slot(ROPE, |_, slot| {
        slot.fingerprint.as_mut().unwrap().storage = StorageId(90);
    });
    assert_eq!(run.found(), [one(Code::AliasSplit, ROPE, &[0])]);
    assert_eq!(run.judge().findings[0].expected, "one storage with `embed.weight`");
}

#[test]
fn an_engine_that_states_nothing_after_the_update_has_not_drifted() {
    let mut run = correct();
    configure(&mut run, "warm", "A>B", None);
    let reason = "arm `warm` stated no configuration in `A>B`";
    assert_undecided(&run, Room::State, reason);
}

#[test]
fn without_a_buffer_to_compare_nothing_is_proven() {
    let mut run = correct();
    run.phase("cold-b", "before").drop(|_, fact| match fact {
        Fact::ReadBack(read) => [ROPE, HEAD].contains(&read.slot.0.as_str()),
        Fact::Slot(slot) => [ROPE, HEAD].contains(&slot.slot.0.as_str()),
        _ => false,
    });
    assert_undecided(&run, Room::State, "no buffer was compared with a cold load's");
    assert!(run.judge().unseen.contains(&format!("{ROPE} (registered by no cold load)")));
}

#[test]
fn checks_count_equal_buffers() {
    let (_, proven) = room(&correct().judge(), Room::State);
    assert_eq!(proven, "14 buffers and aliases equal to a cold load's, bit for bit");
}

/// What a request in graph mode launches from `A>B` on.
fn launched(run: &mut Run, kernel: &str, graph: Option<&str>) {
    run.since("warm", "A>B").map(|_, fact| match fact {
        Fact::Launch(mut launch) => {
            if launch.graph.is_some() {
                launch.graph = graph.map(str::to_owned);
            }
            launch.kernel = kernel.to_owned();
            Some(Fact::Launch(launch))
        }
        fact => Some(fact),
    });
}

#[test]
fn a_graph_that_is_replayed_no_more_is_another_configuration() {
    let mut run = correct();
    launched(&mut run, "forward", None);
    assert_eq!(run.found(), [one(Code::ConfigDrift, "captured graphs", &[0])]);
    // A graph of more rows does as well.
    let mut run = correct();
    launched(&mut run, "forward", Some("decode-2"));
    assert_eq!(run.found(), []);
}

#[test]
fn another_kernel_is_another_configuration() {
    let mut run = correct();
    launched(&mut run, "backward", Some("decode-1"));
    assert_eq!(run.found(), [one(Code::ConfigDrift, "kernel forward", &[0])]);
}

#[test]
fn what_was_not_recorded_accuses_nobody() {
    let mut run = correct();
    run.since("warm", "A>B").drop(|_, fact| matches!(fact, Fact::Launch(_)));
    assert_eq!(run.found(), []);
    assert_undecided(&run, Room::Storage, "of arm `warm` replayed no graph after `A>B`");
}

#[test]
fn what_a_cache_spares_is_not_another_configuration() {
    // The kernel is gone, and with it rows: whether that may be is the caches' room.
    let mut run = correct();
    launched(&mut run, "backward", Some("decode-1"));
    run.since("warm", "A>B").map(|_, fact| match fact {
        Fact::Launch(mut launch) => {
            launch.rows -= 1;
            Some(Fact::Launch(launch))
        }
        fact => Some(fact),
    });
    assert_eq!(run.found(), []);
}
