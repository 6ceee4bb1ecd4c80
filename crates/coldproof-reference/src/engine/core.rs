//! One replica of an engine: its ranks, its transaction machine, its KV cache.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use coldproof_contract::evidence::Fact;
use coldproof_contract::transaction::Machine;
use coldproof_contract::words::{Hex128, Rank};

use super::graphs::GraphConfig;
use super::tiers::{TierKeeper, rank_tiers};
use super::{EngineConfig, EngineError, Promise};
use crate::arena::{ArenaConfig, Placement};
use crate::caches::{EncoderCache, KvBlocks, ProcessorCache};
use crate::faults::{FaultId, Faults, invalidation};
use crate::groups::Groups;
use crate::loader::Place;
use crate::models::{Builder, Dims, ENCODER_ENTRIES, KvShape};
use crate::ranks::{Failure, Ranks, Worker, WorkerConfig};
use crate::trace::Trace;

/// What can still be read off an engine that ended.
#[derive(Debug, Default)]
pub(super) struct Remains {
    pub(super) log: Vec<(Rank, Fact)>,
    pub(super) launches: Vec<(Rank, Fact)>,
    pub(super) nodes: Vec<(Rank, Fact)>,
}

/// A replica that says of itself what it believes.
#[derive(Debug)]
pub(crate) struct Core {
    /// Its dp coordinate.
    pub(crate) replica: u32,
    /// With the topology of one replica.
    pub(super) config: EngineConfig,
    pub(super) dims: Arc<Dims>,
    ranks: Option<Ranks>,
    pub(crate) machine: Machine,
    pub(super) blocks: KvBlocks,
    /// The tiers below them.
    pub(super) tiers: Option<TierKeeper>,
    pub(super) encoder: EncoderCache,
    /// Where the model takes images.
    pub(super) processor: Option<ProcessorCache>,
    /// What the host computed for requests.
    pub(super) host: Trace,
    /// What each adapter is, by its name.
    pub(super) adapters: BTreeMap<String, Hex128>,
    pub(super) paused: bool,
    /// The version of the placement of experts that is in force.
    pub(super) placement_version: u64,
    pub(crate) faults: Faults,
    /// Which steps replay them.
    pub(super) graphs: GraphConfig,
    /// Rows of the captured graphs.
    pub(super) captured: Vec<usize>,
    /// What the open transaction promised.
    pub(super) promise: Promise,
    pub(super) remains: Remains,
    ended: Option<String>,
}

impl Core {
    /// How long any later call may take.
    pub(crate) const fn set_deadline(&mut self, deadline: std::time::Duration) {
        self.config.deadline = deadline;
    }

    /// Starts every rank, with nothing loaded. `cancel` ends every wait.
    pub(crate) fn start(
        config: EngineConfig,
        replica: u32,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        let dims = Arc::new(Dims::from(&config.model));
        config.check(&dims)?;
        let faults = switched_on(&config, &dims);
        let workers = start_workers(&config, replica, &dims, &faults, cancel)
            .map_err(|failure| EngineError::of(failure, 0))?;
        let ranks = Ranks::start(workers, Arc::clone(cancel)).map_err(|error| {
            EngineError::refused(format!("cannot start a thread for every rank: {error}"))
        })?;
        let block_size = config.block_size as usize;
        Ok(Self {
            blocks: KvBlocks::new(
                config.kv_blocks,
                block_size,
                invalidation(&faults, &[FaultId::F7_02, FaultId::F7_04]),
            ),
            tiers: TierKeeper::of(&config, &faults),
            encoder: EncoderCache::new(ENCODER_ENTRIES, invalidation(&faults, &[FaultId::F7_03])),
            processor: (dims.vision.as_ref())
                .map(|vision| ProcessorCache::new(vision.processor.clone())),
            host: Trace::default(),
            replica,
            config,
            dims,
            ranks: Some(ranks),
            machine: Machine::new(),
            adapters: BTreeMap::new(),
            paused: false,
            placement_version: 0,
            captured: Vec::new(),
            graphs: GraphConfig::default(),
            faults,
            promise: Promise::default(),
            remains: Remains::default(),
            ended: None,
        })
    }

    /// Lets every rank do the same. A failure that is no refusal ends the engine.
    pub(super) fn each<T, F>(&mut self, call: F) -> Result<Vec<T>, EngineError>
    where
        T: Send + 'static,
        F: Fn(&mut Worker) -> Result<T, Failure> + Send + Sync + 'static,
    {
        let deadline = self.config.deadline;
        let answer = self.ranks()?.each(deadline, call);
        answer.map_err(|failure| self.failed(failure))
    }

    /// Lets one rank do something.
    pub(super) fn one<T, F>(&mut self, rank: Rank, call: F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Worker) -> Result<T, Failure> + Send + 'static,
    {
        let size = self.config.topology.size();
        let index = self.config.topology.index(rank.in_replica());
        if index >= size {
            return Err(EngineError::refused(format!("there is no rank {rank} of {size}")));
        }
        let deadline = self.config.deadline;
        let answer = self.ranks()?.one(index as usize, deadline, call);
        answer.map_err(|failure| self.failed(failure))
    }

    /// Facts of every rank, in rank order.
    pub(super) fn facts<F>(&mut self, call: F) -> Result<Vec<(Rank, Fact)>, EngineError>
    where
        F: Fn(&mut Worker) -> Vec<Fact> + Send + Sync + 'static,
    {
        let all = self.each(move |worker| Ok((worker.rank, call(worker))))?;
        Ok(flatten(all))
    }

    /// Whether the engine has ended.
    pub(super) const fn is_ended(&self) -> bool {
        self.ranks.is_none()
    }

    /// Ends the engine; every later call says why.
    pub(crate) fn end(&mut self, why: &str) {
        if let Some(mut ranks) = self.ranks.take() {
            ranks.end();
        }
        self.ended.get_or_insert_with(|| why.to_owned());
    }

    /// Ends it because another replica died; what was seen of it stays.
    pub(super) fn end_beside(&mut self, why: &str) {
        self.keep_remains();
        self.end(why);
    }

    fn ranks(&self) -> Result<&Ranks, EngineError> {
        self.ranks.as_ref().ok_or_else(|| {
            let why = self.ended.as_deref().unwrap_or("it was shut down");
            EngineError::refused(format!("the engine has ended: {why}; start another one"))
        })
    }

    fn failed(&mut self, failure: Failure) -> EngineError {
        let deadline = u64::try_from(self.config.deadline.as_millis()).unwrap_or(u64::MAX);
        let lost = matches!(failure, Failure::Late { .. } | Failure::Lost { .. });
        let error = EngineError::of(failure, deadline);
        if error.ends() {
            if !lost {
                self.keep_remains();
            }
            self.end(&error.to_string());
        }
        error
    }

    /// A dead device still answers what its allocator and its trace have seen.
    fn keep_remains(&mut self) {
        let Some(ranks) = &self.ranks else { return };
        let drained = ranks.each(self.config.deadline, |worker| {
            let launches = worker.device.drain_launches().into_iter().map(Fact::Launch).collect();
            let nodes = worker.census().into_iter().map(Fact::Node).collect();
            Ok((worker.rank, worker.device.drain_log(), launches, nodes))
        });
        for (rank, log, launches, nodes) in drained.unwrap_or_default() {
            self.remains.log.extend(log.into_iter().map(|fact| (rank, fact)));
            self.remains.launches.extend(tagged(rank, launches));
            self.remains.nodes.extend(tagged(rank, nodes));
        }
    }
}

fn tagged(rank: Rank, facts: Vec<Fact>) -> impl Iterator<Item = (Rank, Fact)> {
    facts.into_iter().map(move |fact| (rank, fact))
}

fn flatten(all: Vec<(Rank, Vec<Fact>)>) -> Vec<(Rank, Fact)> {
    all.into_iter().flat_map(|(rank, facts)| tagged(rank, facts)).collect()
}

/// The faults of an engine, with their objects in its model.
fn switched_on(config: &EngineConfig, dims: &Dims) -> Faults {
    if config.faults.is_empty() {
        return Faults::default();
    }
    let Builder { slots, catalogue, .. } = Builder::outline(dims, config.topology.ep);
    let own = slots.ids().map(|id| &slots[id]);
    let own = own.flat_map(|slot| std::iter::once(&slot.spec.name).chain(&slot.aliases));
    let names = own.map(|name| name.0.clone()).chain(catalogue.names());
    Faults::new(&config.faults, &names.collect::<Vec<_>>())
}

fn start_workers(
    config: &EngineConfig,
    replica: u32,
    dims: &Arc<Dims>,
    faults: &Faults,
    cancel: &Arc<AtomicBool>,
) -> Result<Vec<Worker>, Failure> {
    let placement =
        if config.reversed_allocation { Placement::Reversed } else { Placement::Forward };
    let start = |(rank, groups): (Rank, Groups)| {
        Worker::new(WorkerConfig {
            rank: Rank { dp: replica, ..rank },
            place: Place::of(config.topology, rank),
            dims: Arc::clone(dims),
            kv: KvShape {
                blocks: u64::from(config.kv_blocks),
                block_size: u64::from(config.block_size),
            },
            arena: ArenaConfig { base: config.arena_base, seed: config.seed, placement },
            tiers: rank_tiers(config, faults, rank),
            faults: faults.clone(),
            groups,
            cancel: Arc::clone(cancel),
        })
    };
    config.topology.ranks().zip(Groups::of(config.topology)).map(start).collect()
}
