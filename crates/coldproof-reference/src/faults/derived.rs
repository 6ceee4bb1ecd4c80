//! Room 2: a derived value outlives its inputs.

use half::bf16;

use super::storage::copy;
use super::{FaultId, Variant};
use crate::loader::bind;
use crate::ranks::{Failure, Worker};
use crate::slots::SlotId;

/// Widens a norm's weight to f32, in place unless F2.01 says otherwise. Says whether the copy is
/// that of the new weight.
pub(crate) fn widen_norm(
    worker: &mut Worker,
    (weight, less_one): (SlotId, bool),
    widened: SlotId,
) -> Result<bool, Failure> {
    let (address, count) =
        (worker.slots.address(weight)?, worker.slots[weight].spec.elements() as usize);
    let narrow = worker.device.view::<bf16>(address, count)?;
    let whole = |value: &bf16| {
        if less_one { 1.0 + value.to_f32() } else { value.to_f32() }
    };
    let wide: Vec<f32> = narrow.iter().map(whole).collect();
    let wide: &[u8] = bytemuck::cast_slice(&wide);
    let name = worker.slots[widened].spec.name.0.clone();
    match (worker.fault_on(FaultId::F2_01, &name), worker.slots[widened].storage) {
        (Some(Variant::Faulty), _) => return Ok(false),
        (Some(Variant::Twin), Some(bound)) => {
            let temporary = worker.device.alloc(bound.region, bound.bytes, &name)?;
            worker.device.write(temporary.address, wide)?;
            copy(worker, temporary.address, bound.address, bound.bytes)?;
            worker.device.free(temporary.storage)?;
        }
        _ => {
            let address = bind(&mut worker.device, &mut worker.slots, widened)?;
            worker.device.write(address, wide)?;
        }
    }
    Ok(true)
}
