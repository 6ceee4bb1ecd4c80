//! A whole run: every lane that was asked for, as many at once as the engines allow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use coldproof_contract::evidence::{
    ArmHeader, CheckpointHeader, EngineHeader, Event, Header, LaneName, Record, SCHEMA, Settings,
};

use crate::engine::Capabilities;
use crate::factory::EngineFactory;
use crate::inputs::Inputs;
use crate::lane::Lane;
use crate::orders::Orders;
use crate::recorder::{Progress, Recorder, sort};
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

/// What a lane leaves.
struct Part {
    arms: Vec<ArmHeader>,
    headers: Vec<CheckpointHeader>,
    events: Vec<Event>,
}

/// Drives all lanes and returns the evidence. Nothing is judged here.
#[must_use]
pub fn run(inputs: &Inputs, factory: &dyn EngineFactory, progress: &dyn Progress) -> Record {
    let (began, hello) = (Instant::now(), OnceLock::new());
    let has_cold = inputs.lanes.iter().any(|lane| !OWN_COLD.contains(lane));
    let lane = |orders: &Arc<Orders>| Lane {
        inputs,
        factory,
        recorder: Recorder::new(began, progress),
        arms: Vec::new(),
        headers: Vec::new(),
        hello: &hello,
        has_cold,
        orders: Arc::clone(orders),
    };
    let part = |lane: Lane<'_, '_>| Part {
        arms: lane.arms,
        headers: lane.headers,
        events: lane.recorder.finish(),
    };
    let mut parts = Vec::new();
    let mut learned = Arc::default();
    if has_cold {
        let mut cold = lane(&learned);
        let slots = differential::cold(&mut cold);
        learned = Arc::new(orders::learn(&mut cold, &slots));
        parts.push(part(cold));
    }
    let most = factory.together(inputs.topology.size());
    parts.extend(beside_each_other(&inputs.lanes, most, |name| {
        let mut lane = lane(&learned);
        drive(name, &mut lane);
        part(lane)
    }));
    record(inputs, hello.into_inner(), parts)
}

/// Runs every lane, so many at once. What they leave is in the order of the lanes.
fn beside_each_other<T: Send>(
    lanes: &BTreeSet<LaneName>,
    most: usize,
    run: impl Fn(LaneName) -> T + Sync,
) -> Vec<T> {
    let (waiting, done) = (Mutex::new(lanes.iter()), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..most.clamp(1, lanes.len().max(1)) {
            scope.spawn(|| {
                let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(&name) = next() {
                    let left = run(name);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(name, left);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

fn drive(name: LaneName, lane: &mut Lane<'_, '_>) {
    match name {
        LaneName::Differential => differential::warm(lane),
        LaneName::Routing => routing::run(lane),
        LaneName::Names => names::run(lane),
        LaneName::Caches => caches::run(lane),
        LaneName::Composite => composite::run(lane),
        LaneName::Adapters => adapter_swap::run(lane),
        LaneName::Partial => partial::run(lane),
        LaneName::Kernel => kernel_format::run(lane),
        LaneName::Tiers => tiers::run(lane),
        LaneName::Placement => placement::run(lane),
    }
}

/// Puts together what the lanes left.
fn record(inputs: &Inputs, hello: Option<Capabilities>, parts: Vec<Part>) -> Record {
    let mut checkpoints = inputs.headers.clone();
    let (mut arms, mut events) = (Vec::new(), Vec::new());
    for part in parts {
        checkpoints.extend(part.headers);
        arms.extend(part.arms);
        events.extend(part.events);
    }
    sort(&mut events, &arms);
    let mut notes = inputs.notes.clone();
    let delivers = |hello: &Capabilities| hello.adapter_updates;
    if inputs.lanes.contains(&LaneName::Adapters) && !hello.as_ref().is_some_and(delivers) {
        notes.push("adapters in transactions are not covered: the engine has none".to_owned());
    }
    let (kind, version, cannot) = match hello {
        Some(hello) => {
            let cannot = hello.cannot();
            (hello.kind, hello.version, cannot)
        }
        None => ("not started".to_owned(), String::new(), Vec::new()),
    };
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    const LANES: [LaneName; 4] =
        [LaneName::Caches, LaneName::Differential, LaneName::Names, LaneName::Routing];

    #[test]
    fn lanes_run_beside_each_other_and_leave_what_they_leave_in_order() {
        let lanes = BTreeSet::from(LANES);
        // Each waits for another: alone it would wait for ever.
        let pair = Barrier::new(2);
        let left = beside_each_other(&lanes, 2, |name| {
            pair.wait();
            name
        });
        assert!(left.iter().eq(&lanes));
    }

    #[test]
    fn no_more_lanes_run_than_the_engines_allow() {
        for most in [0, 1, 3] {
            let (now, seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let left = beside_each_other(&BTreeSet::from(LANES), most, |_| {
                seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
                now.fetch_sub(1, Ordering::SeqCst);
            });
            assert_eq!(left.len(), LANES.len());
            assert!(seen.into_inner() <= most.max(1));
        }
    }

    #[test]
    fn a_run_without_lanes_ends() {
        assert!(beside_each_other(&BTreeSet::new(), 2, |name| name).is_empty());
    }
}
