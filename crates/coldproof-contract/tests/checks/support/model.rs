//! The model that every run of these tests is about: four sources, seven slots.

use coldproof_contract::digest;
use coldproof_contract::evidence::{
    ApplicationFact, CheckpointHeader, OriginRun, OriginsFact, PieceContent, ReadBackFact,
    SlotFact, SourceHeader,
};
use coldproof_contract::routing::{Half, PlacedPiece, Placement, Sharding, SourceRule, Stage};
use coldproof_contract::words::{
    Address, CheckpointLabel, Dtype, Fingerprint, Generation, Hex128, Packing, Policy, Rank,
    SlotKind, SlotName, StorageId, Topology, TransactionId,
};

pub(crate) const EMBED: &str = "embed.weight";
pub(crate) const HEAD: &str = "head.weight";
pub(crate) const GATE_UP: &str = "mlp.gate_up.weight";
pub(crate) const NORM: &str = "norm.weight";
pub(crate) const NORM_F32: &str = "norm/kernel.weight_f32";
pub(crate) const ROPE: &str = "rope.table";
pub(crate) const WORKSPACE: &str = "mlp/kernel.workspace";
pub(crate) const GATE: &str = "mlp.gate.weight";
pub(crate) const UP: &str = "mlp.up.weight";

/// Slots by the order of their addresses: name, kind, shape without sources.
const SLOTS: [(&str, SlotKind, &[u64]); 7] = [
    (EMBED, SlotKind::Parameter, &[]),
    (HEAD, SlotKind::Alias, &[]),
    (GATE_UP, SlotKind::Parameter, &[]),
    (NORM, SlotKind::Parameter, &[]),
    (NORM_F32, SlotKind::Derived, &[2]),
    (ROPE, SlotKind::Buffer, &[8]),
    (WORKSPACE, SlotKind::Scratch, &[4]),
];

/// Bytes between the storages of two slots.
const STRIDE: u64 = 0x100;
/// The first storage.
const FIRST: u64 = 0x1_0000;

fn rule(source: &str, shape: &[u64], slot: &str, sharding: Sharding) -> SourceRule {
    SourceRule {
        source: source.to_owned(),
        dtype: Dtype::Bf16,
        shape: shape.to_vec(),
        slot: slot.into(),
        sharding,
        stage: Stage::Everywhere,
    }
}

/// Where the catalogue expects every source.
pub(crate) fn rules() -> Vec<SourceRule> {
    vec![
        rule(EMBED, &[3, 2], EMBED, Sharding::Vocabulary { multiple: 2 }),
        rule(GATE, &[4, 2], GATE_UP, Sharding::GateUp { half: Half::Gate }),
        rule(UP, &[4, 2], GATE_UP, Sharding::GateUp { half: Half::Up }),
        rule(NORM, &[2], NORM, Sharding::Replicated),
    ]
}

/// The same slots under another spelling of two sources.
pub(crate) fn other_rules() -> Vec<SourceRule> {
    let spell = |source: String| match source.as_str() {
        GATE => "mlp.w1.weight".to_owned(),
        UP => "mlp.w3.weight".to_owned(),
        _ => source,
    };
    rules().into_iter().map(|rule| SourceRule { source: spell(rule.source), ..rule }).collect()
}

pub(crate) fn label(text: &str) -> CheckpointLabel {
    CheckpointLabel(text.to_owned())
}

/// Some content, by its description.
pub(crate) fn content(text: &str) -> Hex128 {
    digest::content(text.as_bytes())
}

pub(crate) fn checkpoint(name: &str) -> CheckpointHeader {
    let sources = rules().into_iter().map(|rule| SourceHeader {
        digest: content(&format!("{name} {}", rule.source)),
        name: rule.source,
        dtype: rule.dtype,
        shape: rule.shape,
        unsigned: None,
    });
    CheckpointHeader {
        label: label(name),
        path: format!("checkpoints/{name}"),
        digest: content(name).to_string(),
        sources: sources.collect(),
        content: None,
        rules: Vec::new(),
        base: None,
    }
}

fn placed(topology: Topology, rank: Rank, slot: &str) -> Option<(Vec<u64>, Vec<PlacedPiece>)> {
    let placement = Placement::of(&rules(), topology).expect("the model can be placed");
    let slot = placement.slot(rank, &slot.into())?;
    Some((slot.shape.clone(), slot.pieces.clone()))
}

/// The storage that owns the bytes of a slot.
fn owner(slot: &str) -> &str {
    if slot == HEAD { EMBED } else { slot }
}

pub(crate) fn address(slot: &str) -> Address {
    let index = SLOTS.iter().position(|(name, _, _)| *name == owner(slot));
    Address(FIRST + STRIDE * index.expect("a slot of the model") as u64)
}

pub(crate) fn storage(slot: &str) -> StorageId {
    StorageId((address(slot).0 - FIRST) / STRIDE + 1)
}

/// Bytes of every storage of the model.
pub(crate) const BYTES: u64 = 0x80;

/// Slots as a correct engine registers them.
pub(crate) fn slots(topology: Topology, rank: Rank, epoch: u64) -> Vec<SlotFact> {
    let fact = |(name, kind, shape): (&str, SlotKind, &[u64])| {
        let shape = placed(topology, rank, owner(name)).map_or(shape.to_vec(), |slot| slot.0);
        let other = match name {
            EMBED => vec![HEAD.into()],
            HEAD => vec![EMBED.into()],
            _ => vec![],
        };
        let loaded = matches!(kind, SlotKind::Parameter | SlotKind::Alias);
        SlotFact {
            slot: name.into(),
            slot_kind: kind,
            fingerprint: Some(Fingerprint {
                storage: storage(name),
                address: address(name),
                storage_bytes: BYTES,
                stride: (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect(),
                shape: shape.clone(),
                offset: 0,
                dtype: if loaded { Dtype::Bf16 } else { Dtype::F32 },
                device: format!("arena:{}", rank.tp),
            }),
            packing: if loaded { Packing::Plain } else { Packing::Opaque },
            logical_shape: shape,
            aliases: other,
            policy: if kind == SlotKind::Buffer { Policy::Preserve } else { Policy::Refresh },
            inputs: if kind == SlotKind::Derived { vec![NORM.into()] } else { vec![] },
            epoch: Generation(epoch),
            replaceable: false,
        }
    };
    SLOTS.map(fact).into()
}

/// What a piece of a slot holds.
pub(crate) fn piece(at: &str, topology: Topology, rank: Rank, piece: &PlacedPiece) -> PieceContent {
    let fragment = piece.piece.source_fragment.clone();
    // Where a source is not cut, every rank holds the same.
    let rank = if topology.size() > 1 && piece.source != NORM { rank.tp } else { 0 };
    PieceContent {
        content: content(&format!("{at} {} {fragment} {rank}", piece.source)),
        source: piece.source.clone(),
        source_fragment: fragment,
    }
}

/// Slots of a rank as a correct engine holds them once `at` is loaded.
pub(crate) fn read_backs(topology: Topology, rank: Rank, at: &str) -> Vec<ReadBackFact> {
    let read = SLOTS.iter().filter(|(_, kind, _)| *kind != SlotKind::Scratch);
    read.map(|(name, kind, _)| {
        let generation = if *kind == SlotKind::Buffer { "any" } else { at };
        let pieces = placed(topology, rank, name).map_or_else(Vec::new, |slot| slot.1);
        ReadBackFact {
            slot: (*name).into(),
            address: address(name),
            content: Some(content(&format!("{generation} {} {}", owner(name), rank.tp))),
            pieces: pieces.iter().map(|placed| piece(at, topology, rank, placed)).collect(),
            padding_written: 0,
        }
    })
    .collect()
}

/// Every application of a rank's account of one update, in order; `spelling` names the sources.
pub(crate) fn applications(
    topology: Topology,
    rank: Rank,
    transaction: u64,
    spelling: &[SourceRule],
) -> Vec<ApplicationFact> {
    let placement = Placement::of(spelling, topology).expect("the model can be placed");
    let slots: Vec<_> = placement.slots(rank).collect();
    let pieces = slots.into_iter().flat_map(|(name, slot)| {
        slot.pieces.iter().map(|placed| ApplicationFact {
            transaction: TransactionId(transaction),
            source: placed.source.clone(),
            source_fragment: placed.piece.source_fragment.clone(),
            slot: name.clone(),
            slot_fragment: placed.piece.slot_fragment.clone(),
        })
    });
    pieces.collect()
}

/// Decoded sentinels of a rank where everything is in place.
pub(crate) fn origins(topology: Topology, rank: Rank) -> Vec<OriginsFact> {
    let placement = Placement::of(&rules(), topology).expect("the model can be placed");
    let slots: Vec<_> = placement.slots(rank).collect();
    let facts = slots.into_iter().map(|(name, slot)| {
        let mut runs = Vec::new();
        for (index, placed) in (0..).zip(&slot.pieces) {
            runs.extend(run(index, placed, &slot.shape));
        }
        OriginsFact {
            slot: name.clone(),
            sources: slot.pieces.iter().map(|placed| placed.source.clone()).collect(),
            runs,
        }
    });
    facts.collect()
}

/// All sources of the model are cut along their first axis, so a piece is one run.
fn run(source: u32, placed: &PlacedPiece, shape: &[u64]) -> Option<OriginRun> {
    let row: u64 = shape[1..].iter().product();
    let first = |spans: &[coldproof_contract::words::Span]| spans[0].start * row;
    let length = placed.piece.slot_fragment.volume();
    (length > 0).then(|| OriginRun {
        slot: first(&placed.piece.slot_fragment.0),
        source: Some(source),
        element: first(&placed.piece.source_fragment.0),
        length,
        count: 1,
        slot_step: 0,
        source_step: 0,
    })
}

pub(crate) fn name(slot: &str) -> SlotName {
    slot.into()
}
