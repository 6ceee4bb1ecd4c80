//! The composite lane: the eight steps in order, then outputs and liveness against cold B (R49).

use coldproof_contract::evidence::LaneName;

use crate::census::capture;
use crate::differential::serve_all;
use crate::lane::Lane;
use crate::session::{Order, load, look, update};

/// A>B with sleep level 2, back to A with sleep level 1, with graphs captured before the first.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let header = lane.against_cold("composite", LaneName::Composite);
    lane.arm(header, |inputs, driver| {
        load(driver, &inputs.from)?;
        capture(driver)?;
        look(driver, inputs, inputs.topology)?;
        serve_all(inputs, driver)?;
        let (a, b) = (&inputs.from, &inputs.to);
        let sleep = |level| driver.can().sleep.then_some(level);
        let (deep, light) = (sleep(2), sleep(1));
        update(driver, &a.label, b, deep, Order::File)?;
        look(driver, inputs, inputs.topology)?;
        serve_all(inputs, driver)?;
        driver.serve(&inputs.requests.cache(), 0)?;
        update(driver, &b.label, a, light, Order::Reversed)?;
        look(driver, inputs, inputs.topology)?;
        serve_all(inputs, driver)
    });
}
