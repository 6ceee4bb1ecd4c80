//! Room 4: two names of one storage part, a buffer that no checkpoint holds is overwritten.

use super::storage::{copy, copy_back, load_beside};
use super::{FaultId, Variant};
use crate::loader::Source;
use crate::models::Rotary;
use crate::ranks::{Failure, Worker};
use crate::slots::SlotId;

/// F4.01: takes the source of the slot that its object is another name of. Says whether it did.
pub(crate) fn split_alias(
    worker: &mut Worker,
    name: &str,
    source: &Source,
    bytes: &[u8],
) -> Result<bool, Failure> {
    let slot = worker.slots[source.slot].clone();
    let mut aliases = slot.aliases.iter();
    let variant = aliases.find_map(|alias| worker.fault_on(FaultId::F4_01, &alias.0));
    let (Some(variant), Some(bound)) = (variant, slot.storage) else { return Ok(false) };
    let new = load_beside(worker, &bound, (name, source), bytes)?;
    match (variant, slot.viewed) {
        (Variant::Twin, _) => copy_back(worker, source.slot, &new, bound)?,
        (Variant::Faulty, None) => worker.slots[source.slot].viewed = Some(bound),
        // Nothing views what the load before gave the slot.
        (Variant::Faulty, Some(_)) => worker.device.free(bound.storage)?,
    }
    Ok(true)
}

/// F4.02: copies the rotary table back from a block that never held it.
pub(crate) fn restore_rotary(
    worker: &mut Worker,
    table: SlotId,
    rotary: &Rotary,
) -> Result<(), Failure> {
    let name = worker.slots[table].spec.name.0.clone();
    let variant = worker.fault_on(FaultId::F4_02, &name);
    let (Some(variant), Some(bound)) = (variant, worker.slots[table].storage) else {
        return Ok(());
    };
    let never_written = worker.device.alloc(bound.region, bound.bytes, &name)?;
    copy(worker, never_written.address, bound.address, bound.bytes)?;
    worker.device.free(never_written.storage)?;
    match variant {
        Variant::Faulty => Ok(()),
        Variant::Twin => worker.compute_rotary(table, rotary),
    }
}

/// F4.06: clears the first slot that a partial update was told to preserve; its twin puts back what
/// it held.
pub(crate) fn forget_preserved(worker: &mut Worker, preserved: &[String]) -> Result<(), Failure> {
    let Some(variant) = worker.faults.of(FaultId::F4_06) else { return Ok(()) };
    let mut own = preserved.iter().filter_map(|name| worker.catalogue.source(name));
    let Some(slot) = own.next().map(|source| source.slot) else { return Ok(()) };
    let (address, bytes) = (worker.slots.address(slot)?, worker.slots[slot].spec.bytes());
    let kept = worker.device.read(address, bytes)?.to_vec();
    worker.device.write(address, &vec![0; kept.len()])?;
    match variant {
        Variant::Faulty => Ok(()),
        Variant::Twin => Ok(worker.device.write(address, &kept)?),
    }
}
