//! A whole run: every lane that was asked for, one after the other.

use std::rc::Rc;

use coldproof_contract::evidence::{EngineHeader, Header, LaneName, Record, SCHEMA, Settings};

use crate::engine::Capabilities;
use crate::factory::EngineFactory;
use crate::inputs::Inputs;
use crate::lane::Lane;
use crate::recorder::{Progress, Recorder};
use crate::{
    adapter_swap, caches, composite, differential, kernel_format, names, orders, partial,
    placement, routing, tiers,
};

/// Lanes with a cold load of their own, or, as routing has sentinels, with no need of one: every
/// other lane is compared with one that all share.
const OWN_COLD: [LaneName; 5] = [
    LaneName::Routing,
    LaneName::Adapters,
    LaneName::Partial,
    LaneName::Kernel,
    LaneName::Placement,
];

/// Drives all lanes and returns the evidence. Nothing is judged here.
#[must_use]
pub fn run(inputs: &Inputs, factory: &dyn EngineFactory, progress: &mut dyn Progress) -> Record {
    let mut recorder = Recorder::new(progress);
    let mut arms = Vec::new();
    let mut lane = Lane {
        inputs,
        factory,
        recorder: &mut recorder,
        arms: &mut arms,
        headers: Vec::new(),
        hello: None,
        orders: Rc::default(),
    };
    if inputs.lanes.iter().any(|lane| !OWN_COLD.contains(lane)) {
        let slots = differential::cold(&mut lane);
        lane.orders = Rc::new(orders::learn(&mut lane, &slots));
    }
    for name in &inputs.lanes {
        match name {
            LaneName::Differential => differential::warm(&mut lane),
            LaneName::Routing => routing::run(&mut lane),
            LaneName::Names => names::run(&mut lane),
            LaneName::Caches => caches::run(&mut lane),
            LaneName::Composite => composite::run(&mut lane),
            LaneName::Adapters => adapter_swap::run(&mut lane),
            LaneName::Partial => partial::run(&mut lane),
            LaneName::Kernel => kernel_format::run(&mut lane),
            LaneName::Tiers => tiers::run(&mut lane),
            LaneName::Placement => placement::run(&mut lane),
        }
    }
    let checkpoints = inputs.headers.iter().cloned().chain(lane.headers).collect();
    let mut notes = inputs.notes.clone();
    let delivers = |hello: &Capabilities| hello.adapter_updates;
    if inputs.lanes.contains(&LaneName::Adapters) && !lane.hello.as_ref().is_some_and(delivers) {
        notes.push("adapters in transactions are not covered: the engine has none".to_owned());
    }
    let (kind, version, cannot) = match lane.hello {
        Some(hello) => {
            let cannot = hello.cannot();
            (hello.kind, hello.version, cannot)
        }
        None => ("not started".to_owned(), String::new(), Vec::new()),
    };
    let order: Vec<String> = arms.iter().map(|arm| arm.arm.clone()).collect();
    let events = recorder.finish(&order);
    let header = Header {
        schema: SCHEMA.to_owned(),
        seed: inputs.seed,
        engine: EngineHeader { kind, version, topology: inputs.topology, cannot },
        environment: inputs.environment.clone(),
        settings: Settings {
            required: inputs.required.clone(),
            lanes: inputs.lanes.iter().copied().collect(),
            seeded: inputs.seeded.clone(),
            skipped: inputs.skipped.clone(),
            modes: Default::default(),
        },
        checkpoints,
        arms,
        rules: inputs.rules.clone(),
        notes,
    };
    Record { header, events }
}
