//! The partial lane: some slots are delivered, all others are said to keep what they hold; the
//! engine must equal a cold load of the checkpoint that both make up (R31).

use coldproof_contract::evidence::{ArmHeader, LaneName};

use crate::census::capture;
use crate::differential::serve_all;
use crate::lane::{COLD_PARTIAL, Lane};
use crate::session::{Order, load, look, update};

/// A cold load of M, and a live engine that goes A>M, of which it is sent what A does not have.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let Some(mixed) = &lane.inputs.partial else { return };
    let header =
        |arm, against| ArmHeader::new(arm, LaneName::Partial, lane.inputs.topology, against);
    let (cold, live) = (header(COLD_PARTIAL, None), header("partial", Some(COLD_PARTIAL)));
    lane.arm(cold, |inputs, driver| {
        load(driver, mixed)?;
        capture(driver)?;
        look(driver, inputs, inputs.topology)?;
        serve_all(inputs, driver)
    });
    lane.arm(live, |inputs, driver| {
        load(driver, &inputs.from)?;
        capture(driver)?;
        look(driver, inputs, inputs.topology)?;
        update(driver, &inputs.from.label, mixed, None, Order::File)?;
        look(driver, inputs, inputs.topology)?;
        serve_all(inputs, driver)
    });
}
