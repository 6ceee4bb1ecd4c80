//! The kernel lane: an update delivers slots as kernels read them, taken from a cold load of B, and
//! no post-load follows. The engine must equal that cold load all the same.
//!
//! Slots are named and not cut: the lane has one rank.

use std::collections::BTreeMap;

use coldproof_checkpoint::{
    Checkpoint, CheckpointError, Layout, TensorSpec, digest_checkpoint, write_checkpoint,
};
use coldproof_contract::evidence::{ArmHeader, CheckpointHeader, LaneName, SlotFact, SourceHeader};
use coldproof_contract::routing::{Sharding, SourceRule, Stage};
use coldproof_contract::words::{
    ByteRange, CheckpointLabel, Fingerprint, Policy, Rank, SlotKind, StepName, Topology,
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
    let topology = Topology::SINGLE;
    let header = |arm, against| ArmHeader::new(arm, LaneName::Kernel, topology, against);
    let mut taken = None;
    lane.arm(header(COLD, None), |inputs, driver| {
        load(driver, &inputs.to)?;
        capture(driver)?;
        let slots = look(driver, inputs, topology)?;
        taken = Some(take(driver, inputs, &slots)?);
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

/// A slot that an update in kernel format delivers.
fn delivered(slot: &SlotFact) -> Option<(&SlotFact, &Fingerprint)> {
    let computed = matches!(slot.slot_kind, SlotKind::Parameter | SlotKind::Derived);
    let refreshed = computed && slot.policy == Policy::Refresh;
    Some((slot, slot.fingerprint.as_ref().filter(|_| refreshed)?))
}

/// Reads every slot of the one rank and writes them as a checkpoint.
fn take(
    driver: &mut Driver<'_, '_>,
    inputs: &Inputs,
    slots: &Slots,
) -> ArmResult<(Delivery, CheckpointHeader)> {
    let own: Vec<(&SlotFact, &Fingerprint)> = slots.values().filter_map(delivered).collect();
    driver.step(StepName::ReadBack, |engine| {
        let mut bytes = BTreeMap::new();
        for (slot, print) in &own {
            let range = ByteRange { address: print.address, bytes: print.bytes() };
            bytes.insert(slot.slot.0.clone(), engine.read(Rank::default(), range)?);
        }
        written(inputs, &own, bytes).map_err(|error| EngineError::Refused {
            text: format!("its slots could not be kept for the kernel lane: {error}"),
        })
    })
}

/// Writes the slots, as they are delivered and as evidence has them: B's content under the names of
/// slots.
fn written(
    inputs: &Inputs,
    slots: &[(&SlotFact, &Fingerprint)],
    mut bytes: BTreeMap<String, Vec<u8>>,
) -> Result<(Delivery, CheckpointHeader), CheckpointError> {
    let specs = slots.iter().map(|(slot, print)| TensorSpec {
        name: slot.slot.0.clone(),
        dtype: print.dtype,
        shape: slot.logical_shape.clone(),
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
    let rules = slots.iter().map(|(slot, print)| SourceRule {
        source: slot.slot.0.clone(),
        dtype: print.dtype,
        shape: slot.logical_shape.clone(),
        slot: slot.slot.clone(),
        sharding: Sharding::Replicated,
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
