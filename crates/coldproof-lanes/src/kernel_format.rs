//! The kernel lane: an update delivers what every rank stores of its slots, as kernels read it,
//! taken from the same rank of a cold load of B, and no post-load follows. The engine must equal
//! that cold load all the same. Every replica takes what the first one of the cold load has.

use std::collections::BTreeMap;

use coldproof_checkpoint::{
    Checkpoint, CheckpointError, Layout, TensorSpec, digest_checkpoint, write_checkpoint,
};
use coldproof_contract::evidence::{ArmHeader, CheckpointHeader, LaneName, SlotFact, SourceHeader};
use coldproof_contract::routing::{Sharding, SourceRule, Stage};
use coldproof_contract::words::{
    ByteRange, CheckpointLabel, Fingerprint, Policy, Rank, SlotKind, SlotShard, StepName, Topology,
};

use crate::census::capture;
use crate::differential::serve_all;
use crate::driver::{ArmResult, Driver};
use crate::engine::EngineError;
use crate::inputs::{Delivery, Format, Inputs};
use crate::lane::Lane;
use crate::session::{Order, Slots, load, look, update};

/// The label of B's slots.
const LABEL: &str = "K";
/// The arm that they are taken from.
const COLD: &str = "cold-kernel";

/// A cold load of B, and a live engine that goes from A to the slots of it.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let topology = lane.inputs.topology;
    let header = |arm, against| ArmHeader::new(arm, LaneName::Kernel, topology, against);
    let mut taken = None;
    lane.arm(header(COLD, None), |inputs, driver| {
        load(driver, &inputs.to)?;
        capture(driver)?;
        let slots = look(driver, inputs, topology)?;
        taken = Some(take(driver, inputs, &slots, topology)?);
        serve_all(inputs, driver)
    });
    let Some((delivery, described)) = taken else { return };
    lane.headers.push(described);
    lane.arm(header("kernel", Some(COLD)), |inputs, driver| {
        load(driver, &inputs.from)?;
        capture(driver)?;
        look(driver, inputs, topology)?;
        serve_all(inputs, driver)?;
        update(driver, &inputs.from.label, &delivery, None, Order::File)?;
        look(driver, inputs, topology)?;
        serve_all(inputs, driver)
    });
}

/// What one rank stores of a slot that an update in kernel format delivers.
struct Stored<'s> {
    rank: Rank,
    /// Its name in the delivery.
    name: String,
    slot: &'s SlotFact,
    print: &'s Fingerprint,
}

impl<'s> Stored<'s> {
    fn of(rank: Rank, slot: &'s SlotFact) -> Option<Self> {
        let computed = matches!(slot.slot_kind, SlotKind::Parameter | SlotKind::Derived);
        let refreshed = computed && slot.policy == Policy::Refresh;
        let print = slot.fingerprint.as_ref().filter(|_| refreshed)?;
        let name = SlotShard::new(rank, slot.slot.clone()).to_string();
        Some(Self { rank, name, slot, print })
    }
}

/// Reads every slot of every rank of the first replica and writes them as a checkpoint.
fn take(
    driver: &mut Driver<'_, '_>,
    inputs: &Inputs,
    slots: &Slots,
    topology: Topology,
) -> ArmResult<(Delivery, CheckpointHeader)> {
    let first = slots.iter().filter(|((rank, _), _)| topology.replica().contains(*rank));
    let own: Vec<_> = first.filter_map(|((rank, _), slot)| Stored::of(*rank, slot)).collect();
    driver.step(StepName::ReadBack, |engine| {
        let mut bytes = BTreeMap::new();
        for Stored { rank, name, print, .. } in &own {
            let range = ByteRange { address: print.address, bytes: print.bytes() };
            bytes.insert(name.clone(), engine.read(*rank, range)?);
        }
        written(inputs, &own, bytes).map_err(|error| EngineError::Refused {
            text: format!("its slots could not be kept for the kernel lane: {error}"),
        })
    })
}

/// Writes the slots, as they are delivered and as evidence has them: B's content under the names of
/// what ranks store.
fn written(
    inputs: &Inputs,
    slots: &[Stored<'_>],
    mut bytes: BTreeMap<String, Vec<u8>>,
) -> Result<(Delivery, CheckpointHeader), CheckpointError> {
    let specs = slots.iter().map(|own| TensorSpec {
        name: own.name.clone(),
        dtype: own.print.dtype,
        shape: own.slot.logical_shape.clone(),
    });
    let layout = Layout::single(specs.collect());
    write_checkpoint(&inputs.kernel, &layout, |spec| {
        Ok(bytes.remove(&spec.name).unwrap_or_default())
    })?;
    let checkpoint = Checkpoint::open(&inputs.kernel)?;
    let digests = digest_checkpoint(&checkpoint)?;
    let sources = digests.sources.iter().map(|(name, source)| SourceHeader {
        name: name.clone(),
        dtype: source.dtype,
        shape: source.shape.clone(),
        digest: source.digest,
        unsigned: None,
    });
    let rules = slots.iter().map(|own| SourceRule {
        source: own.name.clone(),
        dtype: own.print.dtype,
        shape: own.slot.logical_shape.clone(),
        slot: own.slot.slot.clone(),
        sharding: Sharding::OneRank { rank: own.rank },
        stage: Stage::Everywhere,
    });
    let label = CheckpointLabel(LABEL.to_owned());
    let header = CheckpointHeader {
        label: label.clone(),
        path: "(made) kernel".to_owned(),
        digest: digests.digest.clone(),
        sources: sources.collect(),
        content: Some(inputs.to.label.clone()),
        rules: rules.collect(),
        base: None,
    };
    let tensors: Vec<_> = checkpoint.in_file_order().into_iter().cloned().collect();
    let delivery = Delivery {
        label,
        folder: inputs.kernel.clone(),
        sent: tensors.clone(),
        required: tensors.iter().map(|tensor| tensor.name.clone()).collect(),
        tensors,
        allowed_missing: Vec::new(),
        preserved: Vec::new(),
        format: Format::Kernel,
        adapters: Vec::new(),
    };
    Ok((delivery, header))
}
