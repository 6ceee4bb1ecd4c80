//! The differential lane: a cold load of B, and a live engine that goes A>B>A>P>B with the graphs
//! that it captured at A (R14, R16, R17, R18).

use coldproof_contract::evidence::{ArmHeader, LaneName};
use coldproof_contract::words::StepName;

use crate::census::capture;
use crate::control;
use crate::driver::{ArmResult, Driver};
use crate::engine::GenerateRequest;
use crate::inputs::Inputs;
use crate::lane::{COLD, Lane};
use crate::session::{Order, Slots, load, look, update};

/// Requests that are served together.
const BATCHES: [u32; 2] = [2, 4];

/// Cold load of B in its own process: what every other arm is compared with. Returns its slots.
pub(crate) fn cold(lane: &mut Lane<'_, '_>) -> Slots {
    let header = ArmHeader::new(COLD, LaneName::Differential, lane.inputs.topology, None);
    let mut slots = Slots::new();
    lane.arm(header, |inputs, driver| {
        load(driver, &inputs.to)?;
        capture(driver)?;
        slots = look(driver, inputs, inputs.topology)?;
        serve_all(inputs, driver)?;
        // Alone, so that every row of a batch has a batch of one to equal.
        for request in inputs
            .requests
            .rows(batches(driver.can().batch_max).max().unwrap_or(0), driver.can().replay())
        {
            driver.serve(&request, 0)?;
        }
        for request in inputs.requests.cached(driver.can().images) {
            // Apart from every cache: two images that share an entry must not share it here too.
            let apart = GenerateRequest {
                use_prefix_cache: request.use_prefix_cache && request.images.is_empty(),
                use_encoder_cache: false,
                ..request
            };
            driver.serve(&apart, 0)?;
        }
        if inputs.lanes.contains(&LaneName::Tiers) {
            driver.serve(&inputs.requests.kept(), 0)?;
        }
        Ok(())
    });
    slots
}

/// The live engine.
pub(crate) fn warm(lane: &mut Lane<'_, '_>) {
    let header = lane.against_cold("warm", LaneName::Differential);
    lane.arm(header, |inputs, driver| {
        load(driver, &inputs.from)?;
        capture(driver)?;
        look(driver, inputs, inputs.topology)?;
        serve_all(inputs, driver)?;
        let (a, b, p) = (&inputs.from, &inputs.to, &inputs.changed);
        update(driver, &a.label, b, None, Order::File)?;
        let slots = look(driver, inputs, inputs.topology)?;
        driver.step(StepName::Pressure, |engine| engine.pressure())?;
        serve_all(inputs, driver)?;
        let can = driver.can();
        let request = inputs.requests.control(can.replay(), can.images);
        control::run(driver, &slots, &request)?;
        driver.step(StepName::Pressure, |engine| engine.release_pressure())?;
        update(driver, &b.label, a, None, Order::Reversed)?;
        look(driver, inputs, inputs.topology)?;
        serve_all(inputs, driver)?;
        update(driver, &a.label, p, None, Order::File)?;
        look(driver, inputs, inputs.topology)?;
        update(driver, &p.label, b, None, Order::Reversed)?;
        look(driver, inputs, inputs.topology)?;
        driver.step(StepName::Pressure, |engine| engine.pressure())?;
        serve_all(inputs, driver)
    });
}

/// The main request eagerly and by replay, and the one with an image, each twice: the second shows
/// the noise. Then batches, so that graphs of more than one row are replayed too.
pub(crate) fn serve_all(inputs: &Inputs, driver: &mut Driver<'_, '_>) -> ArmResult<()> {
    for mode in driver.can().modes() {
        for repeat in 0..2 {
            driver.serve(&inputs.requests.main(*mode), repeat)?;
        }
        let seen = inputs.requests.seen(*mode).filter(|_| driver.can().images);
        for (request, repeat) in seen.iter().flat_map(|request| [(request, 0), (request, 1)]) {
            driver.serve(request, repeat)?;
        }
    }
    for batch in batches(driver.can().batch_max) {
        driver.serve_batch(&inputs.requests.rows(batch, driver.can().replay()))?;
    }
    Ok(())
}

/// The batches that an engine is given that decodes at most `most` requests together.
fn batches(most: u32) -> impl Iterator<Item = u32> {
    BATCHES.into_iter().filter(move |batch| *batch <= most)
}

#[cfg(test)]
mod tests {
    use super::batches;

    #[test]
    fn an_engine_is_given_the_batches_that_it_can_decode() {
        for (most, wanted) in [(0, &[][..]), (1, &[]), (2, &[2]), (3, &[2]), (8, &[2, 4])] {
            assert_eq!(batches(most).collect::<Vec<_>>(), wanted, "at most {most}");
        }
    }
}
