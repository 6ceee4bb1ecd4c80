//! Adapters in transactions: one that takes another's name while the weights are preserved, and one
//! that comes together with new weights (R47). Both must equal a cold load of the new weights with
//! the new adapter.

use coldproof_contract::evidence::{ArmHeader, LaneName};
use coldproof_contract::words::{CheckpointLabel, StepName};

use crate::adapter_swap::{AdapterPair, FROM, NAME, TO, adapted, adapter, read_back};
use crate::control;
use crate::driver::{ArmResult, Driver};
use crate::engine::{DecodeMode, GenerateRequest, PromisedAdapter};
use crate::inputs::{AdapterDelivery, Delivery, Inputs};
use crate::lane::{COLD_ADAPTER, Lane};
use crate::session::{Order, Slots, update};

/// The most tokens that a control decodes: each is launched kernel by kernel.
const CONTROL: usize = 8;

/// Both updates, where the engine under test has such.
pub(crate) fn run(lane: &mut Lane<'_, '_>, pair: &AdapterPair) {
    if !lane.hello.get().is_some_and(|hello| hello.adapter_updates) {
        return;
    }
    let inputs = lane.inputs;
    let delivery = delivery(inputs, pair);
    let alone = Delivery {
        sent: Vec::new(),
        required: Vec::new(),
        preserved: inputs.to.required.clone(),
        ..delivery.clone()
    };
    for (arm, base, to) in
        [("adapter-only", &inputs.to, &alone), ("joint", &inputs.from, &delivery)]
    {
        let header = ArmHeader::new(arm, LaneName::Adapters, inputs.topology, Some(COLD_ADAPTER));
        lane.arm(header, |inputs, driver| {
            let from = adapted(&base.label, FROM);
            loaded(inputs, driver, (base, &from), pair)?;
            update(driver, &from, to, None, Order::File)?;
            let slots = read_back(driver, inputs, &to.label)?;
            twice(inputs, driver)?;
            driver.serve(&inputs.requests.adapted(None), 0)?;
            // The slots of both arms are the same.
            if to.sent.is_empty() {
                return Ok(());
            }
            let own = slots.into_iter().filter(|((_, slot), _)| slot.adapter().is_some());
            controls(inputs, driver, &own.collect())
        });
    }
}

/// The new weights with the new adapter.
fn delivery(inputs: &Inputs, pair: &AdapterPair) -> Delivery {
    let label = adapted(&inputs.to.label, TO);
    let rules = inputs.headers.iter().filter(|header| header.label == label);
    let rules = rules.flat_map(|header| &header.rules);
    let own = rules.filter(|rule| rule.slot.adapter().is_some());
    let adapter = AdapterDelivery {
        promised: PromisedAdapter { name: NAME.to_owned(), folder: pair.to.folder.clone() },
        content: pair.to.content,
        sources: own.map(|rule| rule.source.clone()).collect(),
    };
    Delivery { label, adapters: vec![adapter], ..inputs.to.clone() }
}

/// The old state: weights and an adapter, read back, and a hit of the prefix cache with it.
fn loaded(
    inputs: &Inputs,
    driver: &mut Driver<'_, '_>,
    (base, at): (&Delivery, &CheckpointLabel),
    pair: &AdapterPair,
) -> ArmResult<()> {
    driver.phase("before", at, None);
    driver.step(StepName::Load, |engine| engine.load(&base.tensors))?;
    adapter(driver, &pair.from, &pair.from.folder)?;
    read_back(driver, inputs, at)?;
    driver.serve(&inputs.requests.adapted(None), 0)?;
    twice(inputs, driver)
}

fn twice(inputs: &Inputs, driver: &mut Driver<'_, '_>) -> ArmResult<()> {
    for repeat in 0..2 {
        driver.serve(&inputs.requests.adapted(Some(NAME)), repeat)?;
    }
    Ok(())
}

/// A live change of each slot of the adapter, seen by a request with it: graphs have no adapter.
fn controls(inputs: &Inputs, driver: &mut Driver<'_, '_>, slots: &Slots) -> ArmResult<()> {
    let mut control = inputs.requests.control(DecodeMode::Eager, false);
    control.forced.truncate(CONTROL);
    control::run(driver, slots, &GenerateRequest { adapter: Some(NAME.to_owned()), ..control })
}
