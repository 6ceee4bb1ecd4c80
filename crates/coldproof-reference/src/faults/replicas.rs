//! R43: an update that does not reach every replica.

use coldproof_contract::transaction::{Base, State};

use super::{FaultId, Variant};
use crate::engine::{Core, EngineError};

/// Whether and how the open update of this replica, the last one, is passed over. One that lost its
/// weights has nothing old to keep.
pub(crate) fn passed_over(core: &Core) -> Option<Variant> {
    let whole = matches!(core.machine.state(), State::Open { base: Base::Whole, .. });
    core.faults.of(FaultId::R43).filter(|_| whole)
}

/// A bucket goes by this replica, which believes that it came.
pub(crate) fn pass_delivery_over(core: &mut Core) -> Result<(), EngineError> {
    let State::Open { id, .. } = core.machine.state() else { return Ok(()) };
    Ok(core.machine.apply(id)?)
}

/// So does the end of the update: nothing arrived that post-load could read.
pub(crate) fn pass_finish_over(core: &mut Core) -> Result<(), EngineError> {
    let State::Open { id, .. } = core.machine.state() else { return Ok(()) };
    core.machine.finalize(id)?;
    Ok(core.machine.verify(id)?)
}
