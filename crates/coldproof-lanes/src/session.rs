//! What every lane does with an engine: load, take the transition, look at everything.

use std::collections::BTreeMap;
use std::sync::Arc;

use coldproof_checkpoint::TensorRef;
use coldproof_contract::digest::{self, Piece as Share, SourceKey};
use coldproof_contract::evidence::{
    AdapterFact, Fact, ManifestFact, ReadBackFact, SlotFact, SourceReadBackFact,
};
use coldproof_contract::words::{
    ByteRange, CheckpointLabel, Packing, Rank, SlotKind, SlotName, StepName, Topology,
};

use crate::census;
use crate::driver::{ArmEnded, ArmResult, Driver};
use crate::engine::{EngineError, EngineUnderTest, ReadBackRequest, Reply, WakeTag};
use crate::expert_maps;
use crate::inputs::{Delivery, Format, Inputs};
use crate::orders::Orders;
use crate::places::Places;

/// Tensors of one bucket.
const BUCKET: usize = 16;

/// In which order tensors are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As the files have them.
    File,
    /// Backwards, so that halves of fused slots arrive in other buckets.
    Reversed,
}

/// Cold load.
///
/// # Errors
/// As [`Driver::step`].
pub(crate) fn load(driver: &mut Driver<'_, '_>, delivery: &Delivery) -> ArmResult<()> {
    driver.phase("before", &delivery.label, None);
    driver.step(StepName::Load, |engine| engine.load(&delivery.tensors))
}

/// The transition from whatever is served to `to`: eight steps with `sleep`, five without.
///
/// # Errors
/// As [`Driver::step`].
pub(crate) fn update(
    driver: &mut Driver<'_, '_>,
    from: &CheckpointLabel,
    to: &Delivery,
    sleep: Option<u8>,
    order: Order,
) -> ArmResult<()> {
    driver.phase(&format!("{from}>{}", to.label), &to.label, Some(from));
    driver.step(StepName::Pause, |engine| engine.pause())?;
    if let Some(level) = sleep {
        driver.step(StepName::Sleep, |engine| engine.sleep(level))?;
        driver.step(StepName::WakeWeights, |engine| engine.wake(WakeTag::Weights))?;
    }
    let mut tensors = to.sent.clone();
    if order == Order::Reversed {
        tensors.reverse();
    }
    let sources = to.adapters.iter().flat_map(|adapter| &adapter.sources);
    let manifest = ManifestFact {
        origin: "caller".to_owned(),
        checkpoint: to.label.clone(),
        required: to.required.iter().chain(sources).cloned().collect(),
        explicitly_preserved: to.preserved.clone(),
        allowed_missing: to.allowed_missing.clone(),
        delivered: Vec::new(),
    };
    driver.record(Rank::default(), Fact::Manifest(manifest.clone()));
    for adapter in &to.adapters {
        let (name, content) = (adapter.promised.name.clone(), adapter.content);
        driver.record(Rank::default(), Fact::Adapter(AdapterFact { adapter: name, content }));
    }
    let there = |name: &&String| to.tensors.iter().any(|tensor| tensor.name == **name);
    let promised: Vec<String> =
        (to.required.iter()).chain(to.allowed_missing.iter().filter(there)).cloned().collect();
    let mut delivered = Vec::new();
    let updated = driver.step(StepName::Update, |engine| {
        begin(engine, to, &promised)?;
        deliver(engine, &tensors, &mut delivered)?;
        to.adapters.iter().try_for_each(|adapter| {
            engine.apply_adapter(&adapter.promised.name)?;
            delivered.extend(adapter.sources.iter().cloned());
            Ok(())
        })
    });
    driver.record(Rank::default(), Fact::Manifest(ManifestFact { delivered, ..manifest }));
    updated?;
    driver.step(StepName::Finalize, |engine| {
        engine.finish()?;
        engine.commit()
    })?;
    if sleep.is_some() {
        driver.step(StepName::WakeKv, |engine| engine.wake(WakeTag::KvCache))?;
    }
    if !driver.skipped.contains(&StepName::Invalidate) {
        driver.step(StepName::Invalidate, |engine| engine.invalidate())?;
    }
    driver.step(StepName::Resume, |engine| engine.resume())
}

/// After an update that the engine refused: back, where it has a way, and a request.
///
/// # Errors
/// As [`Driver::step`].
pub(crate) fn refused(inputs: &Inputs, driver: &mut Driver<'_, '_>) -> ArmResult<()> {
    if driver.asleep {
        driver.step(StepName::WakeKv, |engine| engine.wake(WakeTag::KvCache))?;
    }
    driver.step(StepName::Resume, |engine| {
        match engine.abort() {
            Ok(()) | Err(EngineError::Unsupported { .. }) => {}
            Err(error) => return Err(error),
        }
        engine.resume()
    })?;
    for mode in driver.can().modes() {
        driver.serve(&inputs.requests.main(*mode), 0)?;
    }
    Ok(())
}

/// Begins the transaction that a delivery asks for.
fn begin(engine: &mut dyn EngineUnderTest, to: &Delivery, promised: &[String]) -> Reply<()> {
    let begun = match (to.format, to.adapters.as_slice(), to.preserved.as_slice()) {
        (Format::Kernel, ..) => engine.begin_kernel(promised),
        (Format::Checkpoint, [], []) => engine.begin(promised),
        (Format::Checkpoint, [], preserved) => engine.begin_partial(promised, preserved),
        (Format::Checkpoint, adapters, preserved) => {
            let adapters: Vec<_> = adapters.iter().map(|own| own.promised.clone()).collect();
            engine.begin_with_adapters(promised, preserved, &adapters)
        }
    };
    begun.map(drop)
}

/// Delivers bucket by bucket; `delivered` gets the names of those that the engine took.
fn deliver(
    engine: &mut dyn EngineUnderTest,
    tensors: &[TensorRef],
    delivered: &mut Vec<String>,
) -> Reply<()> {
    tensors.chunks(BUCKET).try_for_each(|bucket| {
        engine.apply(bucket)?;
        delivered.extend(bucket.iter().map(|tensor| tensor.name.clone()));
        Ok(())
    })
}

/// Slots of all ranks, as the engine registers them.
pub(crate) type Slots = BTreeMap<(Rank, SlotName), SlotFact>;

/// Keeps the slots among claims.
#[must_use]
pub(crate) fn slots_of(claims: &[(Rank, Fact)]) -> Slots {
    let slots = claims.iter().filter_map(|(rank, fact)| match fact {
        Fact::Slot(slot) => Some(((*rank, slot.slot.clone()), slot.clone())),
        _ => None,
    });
    slots.collect()
}

/// Records what the engine claims, reads every slot back (raw, by piece, and by source), and counts
/// captured graphs again.
///
/// # Errors
/// As [`Driver::step`].
pub(crate) fn look(
    driver: &mut Driver<'_, '_>,
    inputs: &Inputs,
    topology: Topology,
) -> ArmResult<Slots> {
    let applied = std::mem::take(&mut driver.applied);
    let experts = driver.placement.clone();
    let places = Places::of(inputs, topology, (&applied, experts.as_ref()));
    let looked = look_at(driver, &places, topology);
    driver.applied = applied;
    looked
}

/// The same, with sources where these places say.
///
/// # Errors
/// As [`Driver::step`].
pub(crate) fn look_at(
    driver: &mut Driver<'_, '_>,
    places: &Places<'_>,
    topology: Topology,
) -> ArmResult<Slots> {
    let claims = driver.claims()?;
    let slots = slots_of(&claims);
    let (mut facts, mut maps) = (Vec::new(), Vec::new());
    let mut shares: BTreeMap<String, Vec<Share>> = BTreeMap::new();
    let counted = driver.graphs.is_some();
    let orders = Arc::clone(&driver.orders);
    let nodes = driver.step(StepName::ReadBack, |engine| {
        for rank in topology.ranks() {
            let found = rank_look(engine, rank, &slots, places, &orders)?;
            for (fact, own) in found {
                for (source, share) in own {
                    shares.entry(source).or_default().push(share);
                }
                facts.push((rank, fact));
            }
        }
        maps = expert_maps::read(engine, &claims, &slots)?;
        if counted { engine.graph_nodes() } else { Ok(Vec::new()) }
    })?;
    census::again(driver, nodes);
    for (rank, map) in maps {
        driver.record(rank, Fact::ExpertMap(map));
    }
    for (rank, fact) in facts {
        driver.record(rank, Fact::ReadBack(fact));
    }
    for (source, shares) in shares {
        let Some((dtype, shape)) = places.source(&source) else { continue };
        let folded = SourceKey::new(&source, dtype, shape)
            .map_err(|error| error.to_string())
            .and_then(|key| digest::fold(&key, &shares).map_err(|error| error.to_string()));
        let (digest, problem) = match folded {
            Ok(digest) => (Some(digest), None),
            Err(problem) => (None, Some(problem)),
        };
        let fact = SourceReadBackFact { source, digest, problem };
        driver.record(Rank::default(), Fact::SourceReadBack(fact));
    }
    Ok(slots)
}

/// A slot as it was read back, and its sources' shares.
type Found = (ReadBackFact, Vec<(String, Share)>);

fn rank_look(
    engine: &mut dyn EngineUnderTest,
    rank: Rank,
    slots: &Slots,
    places: &Places<'_>,
    orders: &Orders,
) -> Reply<Vec<Found>> {
    let own = slots.iter().filter(|((r, _), slot)| *r == rank && is_compared(slot.slot_kind));
    let (names, requests): (Vec<&SlotName>, Vec<ReadBackRequest>) = own
        .filter_map(|((_, name), slot)| Some((name, request(rank, slot, slots, places)?)))
        .unzip();
    let reads = engine.read_back(rank, &requests)?;
    let mut found = Vec::with_capacity(reads.len());
    for ((name, request), read) in names.into_iter().zip(&requests).zip(reads) {
        let read = orders.read_back(engine, (rank, name), request)?.unwrap_or(read);
        let sources = request.pieces.iter().map(|piece| piece.source.clone());
        let shares = sources.zip(read.shares).collect();
        let fact = ReadBackFact {
            slot: name.clone(),
            address: request.address,
            content: read.content,
            pieces: read.pieces,
            padding_written: read.padding_written,
        };
        found.push((fact, shares));
    }
    Ok(found)
}

/// Scratch is overwritten by every forward, and what is opaque has no bytes.
const fn is_compared(kind: SlotKind) -> bool {
    matches!(kind, SlotKind::Parameter | SlotKind::Buffer | SlotKind::Derived | SlotKind::Alias)
}

fn request(
    rank: Rank,
    slot: &SlotFact,
    slots: &Slots,
    places: &Places<'_>,
) -> Option<ReadBackRequest> {
    let print = slot.fingerprint.as_ref()?;
    let permutation = permutation_range(rank, &slot.packing, slots);
    let (pieces, zero_fill) = places.pieces(rank, slot, print.dtype);
    Some(ReadBackRequest {
        address: print.address,
        dtype: print.dtype,
        logical_shape: slot.logical_shape.clone(),
        packing: slot.packing.clone(),
        permutation,
        zero_fill,
        pieces,
    })
}

/// Where the permutation of a permuted slot lies.
#[must_use]
pub(crate) fn permutation_range(rank: Rank, packing: &Packing, slots: &Slots) -> Option<ByteRange> {
    let Packing::ColumnsPermuted { permutation } = packing else { return None };
    let slot = slots.get(&(rank, permutation.clone()))?;
    let print = slot.fingerprint.as_ref()?;
    Some(ByteRange { address: print.address, bytes: print.bytes() })
}

/// An arm that ended early leaves its evidence and nothing else.
pub(crate) fn end(driver: Driver<'_, '_>, result: Result<(), ArmEnded>) {
    // The evidence holds the reason; the checks read it from there.
    drop(result);
    driver.finish();
}
