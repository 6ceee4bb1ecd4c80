//! The routing lane: sentinels through the engine's own loaders, decoded on every rank (R32).

use std::collections::BTreeMap;
use std::sync::Arc;

use coldproof_checkpoint::SentinelPlan;
use coldproof_contract::evidence::{ArmHeader, Fact, LaneName, SlotFact};
use coldproof_contract::routing::Placement;
use coldproof_contract::words::{
    ByteRange, CheckpointLabel, Dtype, Rank, SlotName, StepName, Topology,
};

use crate::driver::{ArmResult, Driver};
use crate::engine::{EngineUnderTest, Reply};
use crate::inputs::Inputs;
use crate::lane::{COLD, COLD_ROUTING, Lane};
use crate::orders::{self, Orders, Stored};
use crate::origins;
use crate::read_back::in_logical_order;
use crate::session::{Order, Slots, load, look, permutation_range, slots_of, update};

/// The bytes of every slot in logical order, once for each sentinel checkpoint.
type Loads = BTreeMap<(Rank, SlotName), (Dtype, Vec<Vec<u8>>)>;

/// Loads A, then every sentinel as an update, then B, which is compared with a cold load of it at
/// the same topology.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let topology = lane.inputs.routing_topology;
    let header = |arm, against| ArmHeader::new(arm, LaneName::Routing, topology, against);
    let same = topology == lane.inputs.topology && lane.has_cold;
    let cold = if same { COLD } else { COLD_ROUTING };
    if !same {
        lane.arm(header(cold, None), |inputs, driver| {
            load(driver, &inputs.to)?;
            look(driver, inputs, topology).map(drop)
        });
    }
    let header = header("routing", Some(cold));
    lane.arm(header, |inputs, driver| {
        load(driver, &inputs.from)?;
        let mut at = &inputs.from.label;
        let (mut loads, mut stored) = (Loads::new(), Stored::default());
        for sentinel in &inputs.sentinels {
            update(driver, at, sentinel, None, Order::File)?;
            at = &sentinel.label;
            let slots = slots_of(&driver.claims()?);
            read_slots(driver, inputs, topology, &slots, &mut loads)?;
            stored.read(driver, &slots)?;
        }
        let mut now = Orders::default();
        if let Some(plan) = &inputs.sentinel_plan {
            record(driver, plan, loads);
            now = orders::decode(plan, stored);
            now.record(driver, plan);
        }
        let slots = finish(inputs, driver, at)?;
        let cold = Arc::clone(&driver.orders);
        cold.reorder(&now, driver, &slots)
    });
}

/// Ends at B, so that every source is also compared with its file at this topology.
fn finish(inputs: &Inputs, driver: &mut Driver<'_, '_>, at: &CheckpointLabel) -> ArmResult<Slots> {
    update(driver, at, &inputs.to, None, Order::Reversed)?;
    look(driver, inputs, inputs.routing_topology)
}

fn read_slots(
    driver: &mut Driver<'_, '_>,
    inputs: &Inputs,
    topology: Topology,
    slots: &Slots,
    loads: &mut Loads,
) -> ArmResult<()> {
    let Ok(placement) = Placement::of(&inputs.rules, topology) else { return Ok(()) };
    driver.step(StepName::ReadBack, |engine| {
        for rank in topology.ranks() {
            for (name, placed) in placement.slots(rank) {
                let Some(slot) = slots.get(&(rank, name.clone())) else { continue };
                if slot.logical_shape != placed.shape {
                    continue;
                }
                let Some(print) = &slot.fingerprint else { continue };
                let Some(bytes) = logical_bytes(engine, rank, slot, slots)? else { continue };
                let key = (rank, name.clone());
                loads.entry(key).or_insert_with(|| (print.dtype, Vec::new())).1.push(bytes);
            }
        }
        Ok(())
    })
}

/// A slot's bytes in logical order.
fn logical_bytes(
    engine: &mut dyn EngineUnderTest,
    rank: Rank,
    slot: &SlotFact,
    slots: &Slots,
) -> Reply<Option<Vec<u8>>> {
    let Some(print) = &slot.fingerprint else { return Ok(None) };
    let range = ByteRange { address: print.address, bytes: print.bytes() };
    let stored = engine.read(rank, range)?;
    let size = print.dtype.bytes() as usize;
    let order = (&slot.packing, permutation_range(rank, &slot.packing, slots));
    let read = &mut |range| engine.read(rank, range);
    in_logical_order(&stored, size, &slot.logical_shape, order, read)
}

fn record(driver: &mut Driver<'_, '_>, plan: &SentinelPlan, loads: Loads) {
    for ((rank, slot), (dtype, loads)) in loads {
        let origins = plan.decode_slot(dtype, &loads).into_iter();
        let origins = origins.map(|o| o.map(|o| (o.source, o.element)));
        driver.record(rank, Fact::Origins(origins::fact(plan, slot, origins)));
    }
}
