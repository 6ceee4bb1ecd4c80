//! The partial lane: some slots are delivered, all others are said to keep what they hold; the
//! engine must equal a cold load of the checkpoint that both make up (R31).

use coldproof_contract::evidence::{ArmHeader, LaneName};

use crate::census::capture;
use crate::differential::serve_all;
use crate::inputs::Delivery;
use crate::lane::Lane;
use crate::session::{Order, load, look, update};

/// Of each mixed checkpoint a cold load, and a live engine that goes to it from A and is sent what
/// A does not have.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let inputs = lane.inputs;
    inputs.partial.iter().for_each(|mixed| one(lane, mixed));
}

fn one(lane: &mut Lane<'_, '_>, mixed: &Delivery) {
    let name = mixed.label.0.to_lowercase();
    let (cold, live) = (format!("cold-{name}"), format!("partial-{name}"));
    let header =
        |arm, against| ArmHeader::new(arm, LaneName::Partial, lane.inputs.topology, against);
    let (cold, live) = (header(&cold, None), header(&live, Some(cold.as_str())));
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
