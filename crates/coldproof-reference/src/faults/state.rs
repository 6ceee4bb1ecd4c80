//! Room 4: a buffer that no checkpoint holds is overwritten by a reload.

use super::storage::copy;
use super::{FaultId, Variant};
use crate::ranks::{Failure, Worker};
use crate::slots::SlotId;

/// F4.02: copies the rotary table back from a block that never held it.
pub(crate) fn restore_rotary(worker: &mut Worker, table: SlotId) -> Result<(), Failure> {
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
        Variant::Twin => worker.compute_rotary(table, false),
    }
}
