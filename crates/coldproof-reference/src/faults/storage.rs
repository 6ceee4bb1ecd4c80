//! Room 1: storage that a captured graph retains is replaced.

use coldproof_contract::words::Address;

use super::{FaultId, Variant};
use crate::arena::Allocation;
use crate::loader::{Source, bind};
use crate::ranks::{Failure, Worker};
use crate::slots::SlotId;

/// Clears a kernel's scratch, in place unless F1.05 says otherwise.
pub(crate) fn reset_workspace(worker: &mut Worker, workspace: SlotId) -> Result<(), Failure> {
    let zeros = vec![0; worker.slots[workspace].spec.bytes() as usize];
    refill(worker, workspace, &zeros, FaultId::F1_05)
}

/// Stores an absorbed matrix, in place unless F1.01 says otherwise.
pub(crate) fn bind_absorbed(
    worker: &mut Worker,
    matrix: SlotId,
    bytes: &[u8],
) -> Result<(), Failure> {
    refill(worker, matrix, bytes, FaultId::F1_01)
}

/// Writes a whole slot, in place unless this fault rebinds it.
fn refill(worker: &mut Worker, slot: SlotId, bytes: &[u8], id: FaultId) -> Result<(), Failure> {
    let name = worker.slots[slot].spec.name.0.clone();
    match (worker.fault_on(id, &name), worker.slots[slot].storage) {
        (Some(Variant::Faulty), Some(old)) => {
            let new = fresh(worker, &old, bytes, &name)?;
            worker.device.free(old.storage)?;
            worker.slots[slot].storage = Some(new);
            Ok(())
        }
        (Some(Variant::Twin), Some(old)) => replace_by_copy(worker, &old, bytes, &name),
        _ => {
            let address = bind(&mut worker.device, &mut worker.slots, slot)?;
            Ok(worker.device.write(address, bytes)?)
        }
    }
}

/// Stores the order of a weight's columns, in place unless F1.08 says otherwise.
pub(crate) fn bind_permutation(
    worker: &mut Worker,
    permutation: SlotId,
    order: &[i32],
) -> Result<(), Failure> {
    let bytes: &[u8] = bytemuck::cast_slice(order);
    let name = worker.slots[permutation].spec.name.0.clone();
    let variant = worker.fault_on(FaultId::F1_08, &name);
    match (variant, worker.slots[permutation].storage) {
        (Some(Variant::Faulty), Some(registered)) => {
            let old = worker.slots[permutation].hidden.unwrap_or(registered);
            let new = fresh(worker, &old, bytes, &name)?;
            worker.device.free(old.storage)?;
            worker.slots[permutation].hidden = Some(new);
            Ok(())
        }
        (Some(Variant::Twin), Some(old)) => replace_by_copy(worker, &old, bytes, &name),
        _ => {
            let address = bind(&mut worker.device, &mut worker.slots, permutation)?;
            Ok(worker.device.write(address, bytes)?)
        }
    }
}

/// A new block beside an old one, with these bytes.
fn fresh(
    worker: &mut Worker,
    old: &Allocation,
    bytes: &[u8],
    purpose: &str,
) -> Result<Allocation, Failure> {
    let new = worker.device.alloc(old.region, old.bytes, purpose)?;
    worker.device.write(new.address, bytes)?;
    Ok(new)
}

/// Makes a new block, copies it into the bound one and frees it.
fn replace_by_copy(
    worker: &mut Worker,
    old: &Allocation,
    bytes: &[u8],
    purpose: &str,
) -> Result<(), Failure> {
    let new = fresh(worker, old, bytes, purpose)?;
    copy(worker, new.address, old.address, old.bytes)?;
    Ok(worker.device.free(new.storage)?)
}

/// Copies device bytes.
pub(super) fn copy(
    worker: &mut Worker,
    from: Address,
    to: Address,
    bytes: u64,
) -> Result<(), Failure> {
    let copied = worker.device.read(from, bytes)?.to_vec();
    Ok(worker.device.write(to, &copied)?)
}

/// F1.02: writes its source into a new storage. Says whether it took the source.
pub(crate) fn rebind_parameter(
    worker: &mut Worker,
    name: &str,
    source: &Source,
    bytes: &[u8],
) -> Result<bool, Failure> {
    let slot = worker.slots[source.slot].spec.name.0.clone();
    let variant = worker.fault_on(FaultId::F1_02, &slot);
    let (Some(variant), Some(bound)) = (variant, worker.slots[source.slot].storage) else {
        return Ok(false);
    };
    let new = load_beside(worker, &bound, (name, source), bytes)?;
    match variant {
        Variant::Faulty => worker.device.free(bound.storage)?,
        Variant::Twin => copy_back(worker, source.slot, &new, bound)?,
    }
    Ok(true)
}

/// Binds a new storage beside the one that is bound, and loads a source into it.
pub(super) fn load_beside(
    worker: &mut Worker,
    bound: &Allocation,
    (name, source): (&str, &Source),
    bytes: &[u8],
) -> Result<Allocation, Failure> {
    let purpose = worker.slots[source.slot].spec.name.0.clone();
    let new = worker.device.alloc(bound.region, bound.bytes, &purpose)?;
    worker.slots[source.slot].storage = Some(new);
    let steps = worker.pieces(source);
    worker.write(name, source, &steps, bytes)?;
    Ok(new)
}

/// Copies such a storage into the one that was bound before, binds that again and frees the new
/// one.
pub(super) fn copy_back(
    worker: &mut Worker,
    slot: SlotId,
    new: &Allocation,
    bound: Allocation,
) -> Result<(), Failure> {
    copy(worker, new.address, bound.address, bound.bytes)?;
    worker.slots[slot].storage = Some(bound);
    Ok(worker.device.free(new.storage)?)
}
