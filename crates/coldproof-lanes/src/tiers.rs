//! The tiers lane: blocks that the KV cache let go of, in host memory and in a folder that outlives
//! its engine, across an update and across restarts (R38, R39, R41).

use coldproof_contract::evidence::LaneName;
use coldproof_contract::words::StepName;

use crate::census::capture;
use crate::driver::{ArmResult, Driver};
use crate::engine::{EngineError, GenerateRequest};
use crate::inputs::{Delivery, Inputs};
use crate::lane::Lane;
use crate::session::{Order, load, look, update};

/// Three engines, one after the other, with one folder: A fills it, B must take nothing of it, and
/// A again must, before it is updated to B.
///
/// Only one request fits the KV cache, so each that is served pushes the one before it out. On B
/// the second engine serves one of the two and the third the other: neither has an entry then.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    if lane.hello.get().is_some_and(|hello| !hello.kv_tiers) {
        // Other lanes of the run judge the engine as one without tiers.
        return;
    }
    lane.arm(lane.against_cold("tiers", LaneName::Tiers), |inputs, driver| {
        begin(driver, &inputs.from)?;
        let [one, other] = requests(inputs);
        driver.serve(&one, 0)?;
        driver.serve(&other, 0)?;
        driver.claims().map(drop)
    });
    lane.arm(lane.against_cold("tiers-other", LaneName::Tiers), |inputs, driver| {
        begin(driver, &inputs.to)?;
        let [one, _] = requests(inputs);
        driver.serve(&one, 0)?;
        driver.claims().map(drop)
    });
    lane.arm(lane.against_cold("tiers-again", LaneName::Tiers), |inputs, driver| {
        begin(driver, &inputs.from)?;
        capture(driver)?;
        let [one, other] = requests(inputs);
        driver.serve(&other, 0)?;
        driver.serve(&one, 0)?;
        driver.serve(&other, 1)?;
        driver.claims()?;
        update(driver, &inputs.from.label, &inputs.to, None, Order::File)?;
        look(driver, inputs, inputs.topology)?;
        driver.serve(&other, 0)?;
        driver.serve(&other, 1).map(drop)
    });
}

/// The two requests, which begin with other tokens.
fn requests(inputs: &Inputs) -> [GenerateRequest; 2] {
    [inputs.requests.cache(), inputs.requests.kept()]
}

/// Cold load of an engine that has tiers.
fn begin(driver: &mut Driver<'_, '_>, delivery: &Delivery) -> ArmResult<()> {
    load(driver, delivery)?;
    if driver.can().kv_tiers {
        return Ok(());
    }
    driver.step(StepName::Serve, |_| Err(EngineError::Unsupported { what: "KV tiers".to_owned() }))
}
