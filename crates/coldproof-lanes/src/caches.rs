//! The caches lane: a hit on A is proven, then update, then the same request (R39).

use coldproof_contract::evidence::LaneName;

use crate::census::capture;
use crate::lane::Lane;
use crate::session::{Order, load, look, update};

/// Serves one request twice on A and twice on B.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let header = lane.against_cold("caches", LaneName::Caches);
    lane.arm(header, |inputs, driver| {
        load(driver, &inputs.from)?;
        capture(driver)?;
        driver.serve(&inputs.requests.cache(), 0)?;
        driver.serve(&inputs.requests.cache(), 1)?;
        look(driver, inputs, inputs.topology)?;
        update(driver, &inputs.from.label, &inputs.to, None, Order::File)?;
        look(driver, inputs, inputs.topology)?;
        driver.serve(&inputs.requests.cache(), 0)?;
        driver.serve(&inputs.requests.cache(), 1)?;
        Ok(())
    });
}
