//! What all lanes share: starting an arm's engine and naming what it is compared with.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coldproof_contract::evidence::{ArmHeader, CheckpointHeader, LaneName};

use crate::driver::{ArmResult, Driver};
use crate::engine::{Capabilities, EngineUnderTest, KvTiers, Reply, StartSpec};
use crate::factory::EngineFactory;
use crate::inputs::Inputs;
use crate::orders::Orders;
use crate::recorder::Recorder;

/// The arm that is a cold load of the new checkpoint.
pub const COLD: &str = "cold-b";
/// The same at the topology of the routing lane, where that is another one.
pub const COLD_ROUTING: &str = "cold-b-routing";

/// The arm that is a cold load of the base model with the new adapter.
pub const COLD_ADAPTER: &str = "cold-adapter";

/// Whether an arm is a cold load, in a process of its own.
#[must_use]
pub fn is_cold(arm: &str) -> bool {
    arm.starts_with("cold-")
}

/// Bytes that a rank's host tier may fill: more than all requests of a run.
const HOST_TIER_BYTES: u64 = 1 << 30;

/// Everything that a lane works with.
pub struct Lane<'a, 'p> {
    /// Checkpoints and requests.
    pub inputs: &'a Inputs,
    /// Where engines come from.
    pub factory: &'a dyn EngineFactory,
    /// Where evidence goes.
    pub recorder: Recorder<'p>,
    /// Its arms so far, in order.
    pub arms: Vec<ArmHeader>,
    /// Checkpoints that it made.
    pub headers: Vec<CheckpointHeader>,
    /// What the engine under test said of itself when it first started in this run.
    pub hello: &'a OnceLock<Capabilities>,
    /// Whether the run has the arm [`COLD`].
    pub has_cold: bool,
    /// Orders of packed slots, once they were learned.
    pub(crate) orders: Arc<Orders>,
}

impl<'p> Lane<'_, 'p> {
    /// Runs one arm from start to shutdown. However it ends, its evidence stays.
    pub fn arm(
        &mut self,
        header: ArmHeader,
        plan: impl FnOnce(&Inputs, &mut Driver<'_, 'p>) -> ArmResult<()>,
    ) {
        let cold = is_cold(&header.arm);
        let spec = self.spec(&header, cold);
        let started = match cold {
            true => self.factory.start_cold(&spec),
            false => self.factory.start(&spec),
        };
        let deadline = Duration::from_millis(self.inputs.deadline_ms);
        self.arms.push(header.clone());
        let (engine, started): (Box<dyn EngineUnderTest>, Reply<()>) = match started {
            Ok(engine) => (engine, Ok(())),
            Err(error) => (Box::new(crate::adapters::Absent), Err(error)),
        };
        let orders = Arc::clone(&self.orders);
        let skipped = &self.inputs.skipped;
        let mut driver =
            Driver::new(engine, &mut self.recorder, &header, deadline, orders, skipped);
        let result = driver.hello(started).and_then(|hello| {
            if !cold {
                self.hello.get_or_init(|| hello);
            }
            plan(self.inputs, &mut driver)
        });
        if driver.refused() {
            let outcome = crate::session::refused(self.inputs, &mut driver);
            // The evidence holds how it went; the checks read it from there.
            drop(outcome);
        }
        crate::session::end(driver, result);
    }

    /// The cold engine has other addresses, another order of allocation and other garbage.
    fn spec(&self, header: &ArmHeader, cold: bool) -> StartSpec {
        // An engine that may serve adapters runs other layers: the other lanes start it without.
        let adapters = self.inputs.adapters.as_ref();
        let adapters = adapters.filter(|_| header.lane == LaneName::Adapters);
        StartSpec {
            model: self.inputs.from.folder.clone(),
            topology: header.topology,
            seed: self.inputs.seed.wrapping_mul(2).wrapping_add(u64::from(cold)),
            arena_base: if cold { 0x7e00_0000_0000 } else { 0x7f00_0000_0000 },
            reversed_allocation: cold,
            faults: Vec::new(),
            lying: false,
            deadline_ms: self.inputs.deadline_ms,
            adapter_rank: adapters.map_or(0, |pair| pair.rank),
            kv_tiers: (header.lane == LaneName::Tiers).then(|| self.tiers()),
        }
    }

    /// A KV cache that holds one request, so that each pushes out the one before it.
    fn tiers(&self) -> KvTiers {
        KvTiers {
            cache_tokens: self.inputs.requests.cached_tokens(),
            host_bytes: HOST_TIER_BYTES,
            folder: self.inputs.tiers.clone(),
        }
    }

    /// The header of an arm that is compared with the cold load.
    #[must_use]
    pub fn against_cold(&self, arm: &str, lane: LaneName) -> ArmHeader {
        ArmHeader::new(arm, lane, self.inputs.topology, Some(COLD))
    }
}
