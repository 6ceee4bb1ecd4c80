//! The façade: commands, claims and probes of one engine.
//!
//! Every call is synchronous and ends by the deadline. Every command goes to every replica, and a
//! request to the one that it names. Commands change the engine, claims are what
//! it says of itself, probes observe it past that.

mod adapters;
mod claims;
mod config;
mod control;
mod core;
mod error;
mod graphs;
mod images;
mod kernel_format;
mod placement;
mod probe;
mod promise;
mod ready;
mod replicas;
mod request;
mod serve;
mod speculate;
mod tiers;
mod update;

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::{Lora, TensorRef};
use coldproof_contract::evidence::Fact;
use coldproof_contract::words::{
    Address, ExpertPlacement, Generation, Rank, Topology, TransactionId,
};

pub use config::{EngineConfig, KvTiers, RANKS_MAX};
pub use control::BATCH_MAX;
pub use error::EngineError;
pub use probe::Canceller;
pub(crate) use promise::{Format, Promise};
pub use request::{GenerateRequest, Image, Mode, Output};

pub(crate) use self::core::Core;
pub(crate) use replicas::Replicas;

use crate::faults::lying::Liar;

/// An inference engine that is right, unless it was started with faults.
#[derive(Debug)]
pub struct Engine {
    replicas: Replicas,
    liar: Option<Liar>,
}

/// Commands.
impl Engine {
    /// Starts every rank, with nothing loaded.
    ///
    /// # Errors
    /// A topology that does not divide the model, or a configuration that cannot be built.
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        let liar = if config.lying { Some(Liar::start(&config)?) } else { None };
        Ok(Self { replicas: Replicas::start(&config)?, liar })
    }

    /// How long any later call may take.
    pub fn set_deadline(&mut self, deadline: std::time::Duration) {
        // Setting a value cannot fail.
        let _ = self.each(|core| {
            core.set_deadline(deadline);
            Ok(())
        });
    }

    /// Loads a whole checkpoint in one transaction, in place where there was one before, and
    /// empties every cache.
    ///
    /// # Errors
    /// A source that is missing, unknown, repeated or misshapen; an engine that is serving.
    pub fn load(&mut self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        self.command(|replicas| replicas.load(tensors))
    }

    /// Captures the decode graphs `decode-1`, `decode-2` and `decode-4`.
    ///
    /// # Errors
    /// Nothing is loaded, or graphs are captured already.
    pub fn capture(&mut self) -> Result<(), EngineError> {
        self.each(Core::capture)
    }

    /// Serves one request, on the replica that it names.
    ///
    /// # Errors
    /// The engine is not serving, has no such replica, or the request does not fit it.
    pub fn generate(&mut self, request: &GenerateRequest) -> Result<Output, EngineError> {
        let mut outputs = self.generate_batch(std::slice::from_ref(request))?;
        Ok(outputs.pop().unwrap_or_default())
    }

    /// Serves requests together, one row each in every decode step of the replica that they name.
    ///
    /// # Errors
    /// The engine is not serving, has no such replica, or a request does not fit it.
    pub fn generate_batch(
        &mut self,
        requests: &[GenerateRequest],
    ) -> Result<Vec<Output>, EngineError> {
        self.command(|replicas| replicas.generate(requests))
    }

    /// Loads the LoRA adapter in a folder under a name, in a transaction of its own. The one that
    /// has the name is written over, in place where both have one rank; one that is refused changes
    /// nothing.
    ///
    /// # Errors
    /// A folder that cannot be read, what would be computed otherwise than `scale · B (A x)`, a
    /// module that this model does not have or that takes no adapter; an open transaction; an
    /// engine whose weights are no whole generation in memory.
    pub fn load_adapter(&mut self, name: &str, folder: &Utf8Path) -> Result<(), EngineError> {
        let lora = lora(folder)?;
        self.each(|core| core.load_adapter(name, &lora))
    }

    /// Says where the experts of every module are from here on. Those that are loaded move between
    /// ranks in place, and the maps that the forward reads with them; where none are, the next load
    /// goes by it, and so does every later one.
    ///
    /// # Errors
    /// Experts on one rank of ep; an engine that serves, sleeps or is in a transaction; a version
    /// that is not above the one in force; a module that has no experts, or whose experts are not
    /// each placed once. All of it before the first write.
    pub fn place_experts(&mut self, placement: &ExpertPlacement) -> Result<(), EngineError> {
        let placement = Arc::new(placement.clone());
        self.command(|replicas| replicas.place_experts(&placement))
    }

    /// Admits no more requests.
    ///
    /// # Errors
    /// It is paused already.
    pub fn pause(&mut self) -> Result<(), EngineError> {
        self.each(Core::pause)
    }

    /// Gives device memory back: level 1 keeps weights and buffers on the host, level 2 keeps
    /// nothing. Both drop the KV cache.
    ///
    /// # Errors
    /// It is serving, asleep, or in a transaction.
    pub fn sleep(&mut self, level: u8) -> Result<(), EngineError> {
        self.each(|core| core.sleep(level))
    }

    /// Takes device memory back at the old addresses, by tag: `weights`, then `kv_cache`.
    ///
    /// # Errors
    /// An unknown tag, or one that is in memory.
    pub fn wake(&mut self, tag: &str) -> Result<(), EngineError> {
        self.each(|core| core.wake(tag))
    }

    /// Opens an update of all weights that promises these sources. With no names it promises what
    /// the model needs.
    ///
    /// # Errors
    /// It is serving, asleep or in a transaction, or a promised source is none of the model's.
    pub fn begin(&mut self, promised: &[String]) -> Result<TransactionId, EngineError> {
        self.command(|replicas| replicas.begin(&Promise::of(promised)))
    }

    /// Opens an update of whole slots that keeps the bytes of all others. What is in neither list
    /// must be delivered where the model needs it.
    ///
    /// # Errors
    /// As [`Engine::begin`]; a slot that would hold parts of two generations; a name in both lists;
    /// an engine whose weights are no whole generation.
    pub fn begin_partial(
        &mut self,
        delivered: &[String],
        preserved: &[String],
    ) -> Result<TransactionId, EngineError> {
        let promise = Promise { preserved: preserved.to_vec(), ..Promise::of(delivered) };
        self.command(|replicas| replicas.begin(&promise))
    }

    /// Opens an update in kernel format: every slot that an update refreshes, as kernels read it,
    /// for each rank of a replica under a name of its own ([`SlotShard`]). No post-load follows.
    ///
    /// # Errors
    /// As [`Engine::begin`]; a slot that is left out or is none of these, a rank that there is not,
    /// an engine whose weights are no whole generation.
    ///
    /// [`SlotShard`]: coldproof_contract::words::SlotShard
    pub fn begin_kernel(&mut self, shards: &[String]) -> Result<TransactionId, EngineError> {
        let promise = Promise { format: Format::Kernel, ..Promise::of(shards) };
        self.command(|replicas| replicas.begin(&promise))
    }

    /// Opens an update that delivers adapters too, each by its name and from its folder. With
    /// sources to deliver both are published together; where all sources are preserved, adapters
    /// alone are written, and the weights keep their generation. Adapters of other names stay as
    /// they are.
    ///
    /// # Errors
    /// As [`Engine::begin_partial`] and [`Engine::load_adapter`], before anything is written.
    pub fn begin_with_adapters(
        &mut self,
        delivered: &[String],
        preserved: &[String],
        adapters: &[(String, Utf8PathBuf)],
    ) -> Result<TransactionId, EngineError> {
        let read = |(name, folder): &(String, Utf8PathBuf)| Ok((name.clone(), lora(folder)?));
        let adapters = adapters.iter().map(read).collect::<Result<Vec<_>, EngineError>>()?;
        let preserved = preserved.to_vec();
        let promise = Promise { preserved, adapters, ..Promise::of(delivered) };
        self.command(|replicas| replicas.begin(&promise))
    }

    /// Writes an adapter that the open transaction promised, as its folder held it when the
    /// transaction began.
    ///
    /// # Errors
    /// One that was not promised, or that comes twice: the transaction has then failed.
    pub fn apply_adapter(&mut self, name: &str) -> Result<(), EngineError> {
        self.each(|core| core.apply_adapter(name))
    }

    /// Writes a bucket of whole tensors; they may come in any order over any number of calls.
    ///
    /// # Errors
    /// A tensor that is unknown, misshapen, repeated or not promised, or cannot be read. After the
    /// first write the transaction has then failed for good.
    pub fn apply(&mut self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        self.command(|replicas| replicas.apply(tensors))
    }

    /// Runs every layer's post-load, in place.
    ///
    /// # Errors
    /// Sources are missing; the transaction has then failed.
    pub fn finish(&mut self) -> Result<(), EngineError> {
        self.command(Replicas::finish)
    }

    /// Makes the finished update the generation that is served.
    ///
    /// # Errors
    /// It is not finished.
    pub fn commit(&mut self) -> Result<Generation, EngineError> {
        self.command(Replicas::commit)
    }

    /// Gives the open transaction up. Before the first write the old weights stand; after it only
    /// a full load leads on.
    ///
    /// # Errors
    /// None is open.
    pub fn abort(&mut self) -> Result<(), EngineError> {
        self.command(Replicas::abort)
    }

    /// Lets every cache answer the committed generation.
    ///
    /// # Errors
    /// A transaction is open or failed.
    pub fn invalidate(&mut self) -> Result<(), EngineError> {
        self.each(Core::invalidate)
    }

    /// Admits requests again.
    ///
    /// # Errors
    /// A transaction is open or failed, weights are not in memory, or caches are of another
    /// generation.
    pub fn resume(&mut self) -> Result<(), EngineError> {
        self.each(Core::resume)
    }

    /// Whether the model takes images.
    #[must_use]
    pub fn takes_images(&self) -> bool {
        self.replicas.takes_images()
    }

    /// The ranks that it was started with.
    #[must_use]
    pub const fn topology(&self) -> Topology {
        self.replicas.topology()
    }

    /// Ends the engine.
    pub fn shutdown(&mut self) {
        self.replicas.end("it was shut down");
        self.liar = None;
    }

    fn command<T>(
        &mut self,
        command: impl Fn(&mut Replicas) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if let Some(liar) = &mut self.liar {
            liar.follow(&command);
        }
        command(&mut self.replicas)
    }

    /// A command that every replica takes alike.
    fn each<T: PartialEq>(
        &mut self,
        command: impl Fn(&mut Core) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.command(|replicas| replicas.each(&command))
    }
}

fn lora(folder: &Utf8Path) -> Result<Arc<Lora>, EngineError> {
    let read = Lora::read(folder).map_err(|error| EngineError::refused(error.to_string()))?;
    Ok(Arc::new(read))
}

/// Claims.
impl Engine {
    /// Slots, configuration, caches and generation, as the engine states them now.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn claims(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        match &mut self.liar {
            Some(liar) => liar.claims(),
            None => self.replicas.facts(Core::claims),
        }
    }

    /// Applications, post-load stages, receipts and remarks that the engine states, since the last
    /// call.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn drain_claims(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        match &mut self.liar {
            Some(liar) => liar.drain_claims(),
            None => self.replicas.facts(Core::drain_claims),
        }
    }
}

/// Probes. An engine that ended still answers what its allocators and traces had seen.
impl Engine {
    /// Allocations, frees, maps and unmaps since the last call.
    ///
    /// # Errors
    /// A rank does not answer.
    pub fn allocator_log(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        self.replicas.facts(Core::allocator_log)
    }

    /// Nodes of all captured graphs, as they are now.
    ///
    /// # Errors
    /// A rank does not answer.
    pub fn graph_nodes(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        self.replicas.facts(Core::graph_nodes)
    }

    /// Kernels that ran since the last call.
    ///
    /// # Errors
    /// A rank does not answer.
    pub fn launches(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        self.replicas.facts(Core::launches)
    }

    /// Device bytes, whoever owns them.
    ///
    /// # Errors
    /// No memory backs them, or the engine has ended.
    pub fn read(
        &mut self,
        rank: Rank,
        address: Address,
        bytes: u64,
    ) -> Result<Vec<u8>, EngineError> {
        self.replicas.at(rank, |core| core.read(rank, address, bytes))
    }

    /// Overwrites device bytes, whoever owns them.
    ///
    /// # Errors
    /// No memory backs them, or the engine has ended.
    pub fn write(&mut self, rank: Rank, address: Address, bytes: &[u8]) -> Result<(), EngineError> {
        self.replicas.at(rank, |core| core.write(rank, address, bytes))
    }

    /// Lets another owner take and fill all free memory until it is released. Gives its bytes.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn pressure(&mut self) -> Result<u64, EngineError> {
        self.replicas.sum(Core::pressure)
    }

    /// Frees what [`Engine::pressure`] took; what it wrote stays.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn release_pressure(&mut self) -> Result<(), EngineError> {
        self.replicas.each(Core::release_pressure)
    }

    /// Fills all free memory with garbage.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn poison_free(&mut self) -> Result<(), EngineError> {
        self.replicas.each(Core::poison_free)
    }

    /// Replays a graph on whatever its inputs hold, in whatever state the engine is. Over unmapped
    /// memory this is an illegal access that ends the engine.
    ///
    /// # Errors
    /// There is no such graph, or a device died.
    pub fn replay(&mut self, graph: &str) -> Result<(), EngineError> {
        self.replicas.each(|core| core.replay(graph))
    }

    /// A handle that ends every wait of this engine from another thread.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(self.replicas.cancel())
    }
}
