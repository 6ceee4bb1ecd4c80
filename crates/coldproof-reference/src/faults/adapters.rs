//! Adapters that a commit, or a swap in place, leaves what they were in part or whole.

use coldproof_checkpoint::Lora;
use coldproof_contract::transaction::Scope;
use coldproof_contract::words::Address;

use super::storage::copy;
use super::{FaultId, Variant};
use crate::adapters::Room;
use crate::ranks::{Failure, Worker};

/// R47: writes an adapter that is delivered together with weights beside the one of its name, to be
/// put in its place at the commit. Says whether it did.
pub(crate) fn stage_adapter(worker: &mut Worker, name: &str, lora: &Lora) -> Result<bool, Failure> {
    let joint = worker.load()?.scope != Scope::Adapters;
    if !joint || worker.faults.of(FaultId::R47).is_none() {
        return Ok(false);
    }
    let sites = (&worker.adapters.sites, &worker.slots);
    let room = Room::take(&mut worker.device, sites, name, lora.adapter.rank)?;
    room.write(&mut worker.device, &worker.adapters.sites, lora)?;
    worker.adapters.staged = Some((name.to_owned(), room));
    Ok(true)
}

/// R47: the commit publishes the weights, and forgets what lies beside. Its twin copies it into
/// place first.
pub(crate) fn close_staged(worker: &mut Worker, committed: bool) -> Result<(), Failure> {
    let Some((name, staged)) = worker.adapters.staged.take() else { return Ok(()) };
    let blocks = worker.adapters.loaded.get(&name).map(Room::blocks).unwrap_or_default();
    if committed && worker.faults.of(FaultId::R47) == Some(Variant::Twin) {
        for (from, to) in staged.blocks().into_iter().zip(blocks) {
            copy(worker, from.address, to.address, to.bytes)?;
        }
    }
    staged.free(&mut worker.device)
}

/// Writes an adapter over the one of its name; R61 and R60 then put back what a part of it was.
/// Their twins do so too, and write that part once more.
pub(crate) fn write_adapter(worker: &mut Worker, name: &str, lora: &Lora) -> Result<(), Failure> {
    let stale = stale_factor(worker, name, lora);
    let parts = [(FaultId::R61, stale), (FaultId::R60, scaling(worker, name))];
    let mut kept = Vec::new();
    for (id, part) in parts {
        let (Some(variant), Some((address, bytes))) = (worker.faults.of(id), part) else {
            continue;
        };
        kept.push((variant, address, worker.device.read(address, bytes)?.to_vec()));
    }
    worker.write_over(name, lora)?;
    for (variant, address, old) in kept {
        let new = worker.device.read(address, old.len() as u64)?.to_vec();
        worker.device.write(address, &old)?;
        if variant == Variant::Twin {
            worker.device.write(address, &new)?;
        }
    }
    Ok(())
}

/// What this rank holds of `lora_B` of the adapter's first module.
fn stale_factor(worker: &Worker, name: &str, lora: &Lora) -> Option<(Address, u64)> {
    let module = lora.factors.keys().next()?;
    let (sites, room) = (&worker.adapters.sites, worker.adapters.loaded.get(name)?);
    let cut = sites.cuts.get(module)?;
    let [_, block] = room.factors.get(cut.site)?;
    let bytes = block.bytes / sites.all.get(cut.site)?.matrices().max(1) as u64;
    Some((block.address.plus(cut.place as u64 * bytes), bytes))
}

fn scaling(worker: &Worker, name: &str) -> Option<(Address, u64)> {
    worker.adapters.loaded.get(name).map(|room| (room.scale.address, room.scale.bytes))
}
