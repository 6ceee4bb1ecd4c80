//! The differential lane: a cold load of B, and a live engine that goes A>B>A>P>B with the graphs
//! that it captured at A (R14, R16, R17, R18).

use coldproof_contract::evidence::{ArmHeader, LaneName};
use coldproof_contract::words::StepName;

use crate::control;
use crate::driver::{ArmResult, Driver};
use crate::engine::DecodeMode;
use crate::inputs::Inputs;
use crate::lane::{COLD, Lane};
use crate::session::{Order, capture, load, look, update};

/// Cold load of B in its own process: what every other arm is compared with.
pub(crate) fn cold(lane: &mut Lane<'_, '_>) {
    let header = ArmHeader {
        arm: COLD.to_owned(),
        lane: LaneName::Differential,
        topology: lane.inputs.topology,
        against: None,
    };
    lane.arm(header, |inputs, driver| {
        load(driver, &inputs.to)?;
        capture(driver)?;
        look(driver, &inputs.rules, inputs.topology)?;
        serve_all(inputs, driver)?;
        driver.serve(&inputs.requests.cache(), 0)?;
        Ok(())
    });
}

/// The live engine.
pub(crate) fn warm(lane: &mut Lane<'_, '_>) {
    let header = lane.against_cold("warm", LaneName::Differential);
    lane.arm(header, |inputs, driver| {
        load(driver, &inputs.from)?;
        capture(driver)?;
        look(driver, &inputs.rules, inputs.topology)?;
        serve_all(inputs, driver)?;
        let (a, b, p) = (&inputs.from, &inputs.to, &inputs.changed);
        update(driver, &a.label, b, None, Order::File)?;
        let slots = look(driver, &inputs.rules, inputs.topology)?;
        driver.step(StepName::Pressure, |engine| engine.pressure())?;
        serve_all(inputs, driver)?;
        control::run(driver, &slots, &inputs.requests.control())?;
        driver.step(StepName::Pressure, |engine| engine.release_pressure())?;
        update(driver, &b.label, a, None, Order::Reversed)?;
        look(driver, &inputs.rules, inputs.topology)?;
        serve_all(inputs, driver)?;
        update(driver, &a.label, p, None, Order::File)?;
        look(driver, &inputs.rules, inputs.topology)?;
        update(driver, &p.label, b, None, Order::Reversed)?;
        look(driver, &inputs.rules, inputs.topology)?;
        driver.step(StepName::Pressure, |engine| engine.pressure())?;
        serve_all(inputs, driver)
    });
}

/// The main request eagerly and by replay, each twice: the second shows the noise.
pub(crate) fn serve_all(inputs: &Inputs, driver: &mut Driver<'_, '_>) -> ArmResult<()> {
    for mode in [DecodeMode::Eager, DecodeMode::Graph] {
        for repeat in 0..2 {
            driver.serve(&inputs.requests.main(mode), repeat)?;
        }
    }
    Ok(())
}
