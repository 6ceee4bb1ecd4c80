//! Category 7: what an adapter's slots hold after a swap in place and after a transaction.

use coldproof_contract::evidence::{
    AdapterFact, ArmHeader, CheckpointHeader, Fact, LaneName, LogitsFact, ManifestFact,
    PieceContent, ReadBackFact, ReceiptFact, SlotFact,
};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status, VerdictKind};
use coldproof_contract::words::{
    Address, Dtype, Fingerprint, Fragment, Generation, Packing, Policy, SlotKind, StepName,
    StorageId, Topology, TransactionId,
};

use crate::adapters::{Arm, NAME, swapped};
use crate::support::model::{self, content, label};
use crate::support::{Run, assert_silent, assert_undecided, one, room};

const A: &str = "adapter.adapter/q_proj.lora_A.0";
const B: &str = "adapter.adapter/q_proj.lora_B.0";
const SCALING: &str = "adapter.adapter/scaling";
/// A weight that comes with the adapter.
const WEIGHT: &str = "q_proj.weight";
/// The update of weights and the adapter.
const UPDATE: &str = "A with old>B with new";

fn slot(name: &str) -> SlotFact {
    let dtype = if name == SCALING { Dtype::F32 } else { Dtype::Bf16 };
    let fingerprint = Fingerprint {
        storage: StorageId(900 + name.len() as u64),
        address: Address(0x90_0000),
        storage_bytes: 4 * dtype.bytes(),
        shape: vec![2, 2],
        stride: vec![2, 1],
        offset: 0,
        dtype,
        device: "arena:0".to_owned(),
    };
    SlotFact {
        slot: name.into(),
        slot_kind: if name == SCALING { SlotKind::Derived } else { SlotKind::Parameter },
        fingerprint: Some(fingerprint),
        packing: Packing::Plain,
        logical_shape: vec![2, 2],
        aliases: vec![],
        policy: Policy::Refresh,
        inputs: vec![],
        epoch: Generation(1),
        replaceable: false,
    }
}

fn source(slot: &str) -> String {
    format!("{slot} of the file")
}

fn read(name: &str, of: &str) -> ReadBackFact {
    let piece = PieceContent {
        source: source(name),
        source_fragment: Fragment::whole(&[2, 2]),
        content: content(&format!("{of} {name}")),
    };
    ReadBackFact {
        slot: name.into(),
        address: Address(0x90_0000),
        content: Some(content(&format!("{of} {name}"))),
        pieces: if [A, B].contains(&name) { vec![piece] } else { vec![] },
        padding_written: 0,
    }
}

/// The slots as they are registered, and what they hold.
fn look(arm: &mut Arm<'_>, of: &str) {
    arm.step(StepName::ReadBack, None);
    for name in [A, B, SCALING, WEIGHT] {
        arm.fact(Fact::Slot(slot(name)));
        arm.fact(Fact::ReadBack(read(name, of)));
    }
}

fn receipt() -> Fact {
    Fact::Receipt(ReceiptFact {
        transaction: TransactionId(2),
        generation: Generation(2),
        applications: 6,
        buffered: vec![],
        unrouted: vec![],
        committed: true,
    })
}

fn manifest() -> Fact {
    let sources: Vec<String> = model::rules().into_iter().map(|rule| rule.source).collect();
    Fact::Manifest(ManifestFact {
        origin: "caller".to_owned(),
        checkpoint: label("B with new"),
        required: sources.clone(),
        explicitly_preserved: vec![],
        allowed_missing: vec![],
        delivered: sources,
    })
}

/// A run in which weights and an adapter came in one transaction, and nothing is wrong.
fn joint() -> Run {
    let mut run = swapped();
    let header =
        ArmHeader::new("joint", LaneName::Adapters, Topology::SINGLE, Some("cold-adapter"));
    run.header.arms.push(header);
    let last = run.events.iter().filter(|event| event.arm == "cold-adapter").map(|e| e.step).max();
    let step = last.unwrap();
    look(&mut Arm { name: "cold-adapter", events: &mut run.events, step }, "new one");
    let mut arm = Arm { name: "joint", events: &mut run.events, step: 0 };
    arm.phase("before", "A with old", None);
    arm.step(StepName::Load, None);
    arm.adapter("old");
    look(&mut arm, "old");
    arm.serve(None, 0, 71);
    arm.serve(Some("old"), 0, 71);
    arm.serve(Some("old"), 1, 7);
    arm.phase(UPDATE, "B with new", Some("A with old"));
    arm.fact(manifest());
    let adapter = AdapterFact { adapter: NAME.to_owned(), content: content("new one") };
    arm.fact(Fact::Adapter(adapter));
    for step in [StepName::Pause, StepName::Update] {
        arm.step(step, None);
    }
    arm.step(StepName::Finalize, Some(receipt()));
    for step in [StepName::Invalidate, StepName::Resume] {
        arm.step(step, None);
    }
    look(&mut arm, "new one");
    arm.serve(Some("new one"), 0, 71);
    arm.serve(Some("new one"), 1, 7);
    arm.serve(None, 0, 71);
    run
}

/// Nothing but this lane, as `--lane adapters` has it.
fn alone(mut run: Run) -> Run {
    let own = ["cold-adapter", "adapters", "joint"];
    let others: Vec<String> = run.header.arms.iter().map(|arm| arm.arm.clone()).collect();
    for arm in others.iter().filter(|arm| !own.contains(&arm.as_str())) {
        run = run.without_arm(arm);
    }
    run.header.settings.required = vec![coldproof_contract::evidence::RequiredItem::Category(7)];
    run
}

fn stale(run: &mut Run, slots: &[&str]) {
    for slot in slots {
        run.phase("joint", UPDATE).read(slot, |_, held| *held = read(slot, "old"));
    }
}

/// Category 4 asks for what was preserved, and nothing was.
fn without_preservation(run: &Run) -> (VerdictKind, Vec<(Room, Status)>) {
    let verdict = run.judge();
    assert_eq!(verdict.findings, []);
    let statuses = Room::ALL.into_iter().map(|of| (of, room(&verdict, of).0)).collect();
    (verdict.verdict, statuses)
}

#[test]
fn what_equals_a_cold_load_is_proven_and_has_a_certificate() {
    let (_, statuses) = without_preservation(&joint());
    for (of, status) in statuses {
        let wanted = if of == Room::State { Status::Undecided } else { Status::Pass };
        assert_eq!(status, wanted, "{of:?}");
    }
    let verdict = alone(joint()).judge();
    assert_eq!((verdict.verdict, verdict.findings), (VerdictKind::Pass, vec![]));
    let certificate = verdict.certificate.unwrap();
    assert_eq!(
        (certificate.ranks, certificate.checkpoint.as_deref()),
        (vec![0], Some("B with new"))
    );
    let caches = verdict.categories[6].reason.clone().unwrap();
    let text = "3 slots of adapters equal to a cold load's, bit for bit; 1 updates of adapters by \
                transaction";
    assert!(caches.contains(text), "{caches}");
    assert!(caches.contains("128 cached rows served with one adapter"), "{caches}");
}

#[test]
fn an_adapter_of_which_nothing_followed_is_one_finding() {
    let mut run = joint();
    stale(&mut run, &[A, B, SCALING]);
    assert_eq!(run.found(), [one(Code::AdapterReused, NAME, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.actual.contains("every factor still holds the bytes before"), "{finding:?}");
    // A scale that both have is no sign.
    let mut run = joint();
    run.phase("joint", "before").read(SCALING, |_, held| *held = read(SCALING, "new one"));
    stale(&mut run, &[A, B]);
    assert_eq!(run.found(), [one(Code::AdapterReused, NAME, &[0])]);
}

#[test]
fn one_part_that_is_old_is_a_finding_of_its_own_room() {
    for (slot, wanted) in [
        (B, one(Code::ApplicationMissing, &source(B), &[0])),
        (SCALING, one(Code::DerivedStale, SCALING, &[0])),
    ] {
        let mut run = joint();
        stale(&mut run, &[slot]);
        assert_eq!(run.found(), [wanted]);
    }
}

#[test]
fn slots_that_nobody_compared_and_receipts_that_nobody_gave_are_undecided() {
    let mut run = joint();
    run.phase("cold-adapter", "to").drop(|_, fact| matches!(fact, Fact::ReadBack(_)));
    assert_undecided(&run, Room::Caches, "no slot of an adapter of arm `joint` was compared");
    let mut run = joint();
    run.phase("joint", UPDATE).drop(|_, fact| matches!(fact, Fact::Receipt(_)));
    assert_undecided(&run, Room::Caches, "rank tp0 of arm `joint` gave no receipt");
    let run = alone(run);
    assert!(run.judge().certificate.is_none());
}

#[test]
fn an_engine_that_registers_no_factor_is_judged_by_rows_and_logits() {
    let run = swapped();
    assert_silent(&run);
    assert!(!room(&run.judge(), Room::Caches).1.contains("slots of adapters"));
}

#[test]
fn an_update_of_adapters_is_a_transition_as_all_others() {
    let mut run = joint();
    run.phase("joint", UPDATE)
        .drop(|_, fact| matches!(fact, Fact::Step(step) if step.name == StepName::Invalidate));
    assert_eq!(run.found(), [one(Code::Order, &format!("transition `{UPDATE}`"), &[0])]);
}

/// The base model of the new weights is not that of the old ones.
#[test]
fn other_weights_are_another_base_model() {
    let answer = |run: &mut Run| {
        run.phase("joint", "before").map(|_, mut fact| {
            if let Fact::Logits(LogitsFact { request, rows, .. }) = &mut fact
                && request == "unadapted"
            {
                rows[0].digest = content("of A");
            }
            Some(fact)
        });
    };
    let mut run = joint();
    answer(&mut run);
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "unadapted", &[0])]);
    for (base, silent) in [("A", true), ("B", false)] {
        let header =
            CheckpointHeader { base: Some(label(base)), ..model::checkpoint("A with old") };
        let mut run = joint();
        run.header.checkpoints.push(header);
        answer(&mut run);
        assert_eq!(run.found().is_empty(), silent, "{base}");
    }
}
