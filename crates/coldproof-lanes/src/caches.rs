//! The caches lane: a hit on A is proven, then update, then the same request (R39).

use coldproof_contract::evidence::LaneName;

use crate::census::capture;
use crate::driver::{ArmResult, Driver};
use crate::inputs::Inputs;
use crate::lane::Lane;
use crate::session::{Order, load, look, update};

/// Serves each request that a cache may serve twice on A and twice on B.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let header = lane.against_cold("caches", LaneName::Caches);
    lane.arm(header, |inputs, driver| {
        load(driver, &inputs.from)?;
        capture(driver)?;
        twice(inputs, driver)?;
        look(driver, inputs, inputs.topology)?;
        update(driver, &inputs.from.label, &inputs.to, None, Order::File)?;
        look(driver, inputs, inputs.topology)?;
        twice(inputs, driver)
    });
}

/// Each request twice, one after the other.
fn twice(inputs: &Inputs, driver: &mut Driver<'_, '_>) -> ArmResult<()> {
    for request in inputs.requests.cached(driver.can().images) {
        for repeat in 0..2 {
            driver.serve(&request, repeat)?;
        }
    }
    Ok(())
}
