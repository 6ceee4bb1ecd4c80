//! Loads and updates: one transaction each.

use std::collections::BTreeSet;
use std::sync::Arc;

use coldproof_checkpoint::TensorRef;
use coldproof_contract::evidence::{Fact, ReceiptFact};
use coldproof_contract::transaction::{MachineError, Phase, Scope, State};
use coldproof_contract::words::{Generation, TransactionId};

use super::core::Core;
use super::{EngineError, Format, Promise};
use crate::faults;
use crate::loader::Load;
use crate::ranks::{Failure, Worker};

/// Names that a message lists before it only counts.
const LISTED: usize = 5;

impl From<MachineError> for EngineError {
    fn from(error: MachineError) -> Self {
        Self::refused(error.to_string())
    }
}

impl Core {
    /// Empties every cache after a load, for this generation.
    pub(crate) fn empty(&mut self, generation: Generation) -> Result<(), EngineError> {
        self.blocks.forget();
        self.encoder.forget();
        self.forget_host_tier()?;
        self.acknowledge(generation)
    }

    /// Opens an update that keeps its promise, or is refused.
    pub(crate) fn begin(&mut self, promise: &Promise) -> Result<TransactionId, EngineError> {
        self.check_loaded()?;
        self.open(promise)
    }

    /// Whether there is anything that could be updated.
    pub(super) fn check_loaded(&self) -> Result<(), EngineError> {
        if self.machine.generation() > Generation(0) {
            return Ok(());
        }
        Err(EngineError::refused("nothing is loaded that could be updated; call `load`"))
    }

    /// Whether a load or an update that promises this would be opened.
    pub(super) fn check_open(&mut self, promise: &Promise) -> Result<(), EngineError> {
        if self.machine.generation() > Generation(0) && !self.paused {
            return Err(EngineError::refused("the engine is serving; call `pause` before a load"));
        }
        if promise.format == Format::Kernel {
            self.check_shards(&promise.delivered)?;
        }
        self.admit(promise)?;
        let mut machine = self.machine;
        Ok(machine.begin(machine.next_id(), promise.scope())?)
    }

    /// Opens a load or an update.
    pub(super) fn open(&mut self, promise: &Promise) -> Result<TransactionId, EngineError> {
        self.check_open(promise)?;
        let (id, scope) = (self.machine.next_id(), promise.scope());
        self.start_transaction(id, scope, promise)?;
        Ok(id)
    }

    /// Whether every rank can keep the promise.
    pub(super) fn admit(&mut self, promise: &Promise) -> Result<(), EngineError> {
        let names: Vec<&String> = promise.adapters.iter().map(|(name, _)| name).collect();
        if let Some(name) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            let name = name.1;
            return Err(EngineError::refused(format!(
                "the adapter `{name}` is promised twice; a name has one adapter"
            )));
        }
        let kept = promise.clone();
        self.each(move |worker| worker.admit_promise(&kept))?;
        Ok(())
    }

    /// Opens the machine and every rank's load. What is refused changes nothing.
    pub(super) fn start_transaction(
        &mut self,
        id: TransactionId,
        scope: Scope,
        promise: &Promise,
    ) -> Result<(), EngineError> {
        self.machine.begin(id, scope)?;
        if let Err(error) = self.make_rooms(promise) {
            self.machine.abort(id)?;
            return Err(error);
        }
        self.promise = promise.clone();
        self.tiers.iter_mut().for_each(|tiers| tiers.identity.begin(scope != Scope::Full));
        let (before, format) = (self.machine.generation(), promise.format);
        let reload = before > Generation(0);
        let generation = if scope == Scope::Adapters { before } else { Generation(before.0 + 1) };
        self.each(move |worker| worker.begin(Load::new(id, generation, reload, scope), format))?;
        Ok(())
    }

    /// Writes a bucket of tensors. A tensor that is refused fails the transaction, for good once
    /// anything was written.
    pub(crate) fn apply(&mut self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        let id = self.writable("apply")?;
        if tensors.is_empty() {
            return Ok(());
        }
        let written = self.apply_to(id, tensors);
        written.map_err(|error| self.fail(id, error))
    }

    fn apply_to(&mut self, id: TransactionId, tensors: &[TensorRef]) -> Result<(), EngineError> {
        self.admit_bucket(tensors)?;
        self.machine.apply(id)?;
        let format = self.promise.format;
        for tensor in tensors {
            let bytes = tensor.read().map_err(|error| EngineError::refused(error.to_string()))?;
            self.tiers.iter_mut().for_each(|tiers| tiers.identity.saw(&tensor.name, &bytes));
            let (name, bytes) = (tensor.name.clone(), Arc::new(bytes));
            self.each(move |worker| match format {
                Format::Checkpoint => worker.apply(&name, &bytes),
                Format::Kernel => worker.apply_kernel(&name, &bytes),
            })?;
        }
        Ok(())
    }

    /// Whether every rank would write these tensors.
    pub(super) fn admit_bucket(&mut self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        self.check_promise(tensors)?;
        let (bucket, format) = (tensors.to_vec(), self.promise.format);
        self.each(move |worker| match format {
            Format::Checkpoint => worker.admit(&bucket),
            Format::Kernel => worker.admit_kernel(&bucket),
        })?;
        Ok(())
    }

    fn check_promise(&self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        if self.promise.delivered.is_empty() && self.promise.preserved.is_empty() {
            return Ok(());
        }
        let promised = &self.promise.delivered;
        let stray = tensors.iter().find(|tensor| !promised.contains(&tensor.name));
        stray.map_or(Ok(()), |tensor| {
            let name = &tensor.name;
            Err(EngineError::refused(format!(
                "`{name}` was not promised when the transaction began; promise it or leave it out"
            )))
        })
    }

    /// Post-load of every layer, once everything arrived.
    pub(crate) fn finish(&mut self) -> Result<(), EngineError> {
        let id = self.writable("finish")?;
        let finished = self.finish_open(id);
        finished.map_err(|error| self.fail(id, error))
    }

    fn finish_open(&mut self, id: TransactionId) -> Result<(), EngineError> {
        let promise = self.promise.clone();
        let format = promise.format;
        self.each(move |worker| {
            worker.check_complete(&promise)?;
            faults::forget_preserved(worker, &promise.preserved)
        })?;
        self.machine.finalize(id)?;
        match format {
            _ if self.leaves_weights() => Vec::new(),
            Format::Checkpoint => self.each(Worker::post_load)?,
            Format::Kernel => self.each(faults::pack_again)?,
        };
        Ok(self.machine.verify(id)?)
    }

    /// Makes what was finished the generation that is served.
    pub(crate) fn commit(&mut self) -> Result<Generation, EngineError> {
        let id = self.open_id("commit")?;
        let weights = !self.leaves_weights();
        let generation = self.machine.commit(id)?;
        self.tiers.iter_mut().for_each(|tiers| tiers.identity.commit());
        self.each(|worker| worker.close(true))?;
        for (name, lora) in std::mem::take(&mut self.promise).adapters {
            self.adapters.insert(name, lora.adapter.content);
        }
        if weights && generation > Generation(1) {
            self.graphs.update(&self.faults);
        }
        Ok(generation)
    }

    /// Gives the open transaction up.
    pub(crate) fn abort(&mut self) -> Result<(), EngineError> {
        let id = self.open_id("abort")?;
        let state = self.machine.abort(id)?;
        self.drop_promise(state);
        self.each(|worker| worker.close(false))?;
        Ok(())
    }

    /// What was promised comes no more. Of an engine that failed, nobody knows what adapters of
    /// those names hold.
    fn drop_promise(&mut self, state: State) {
        let promise = std::mem::take(&mut self.promise);
        if matches!(state, State::Failed { .. }) {
            self.adapters.retain(|name, _| promise.adapter(name).is_none());
        }
    }

    /// Whether the open transaction is of adapters alone.
    fn leaves_weights(&self) -> bool {
        matches!(self.machine.state(), State::Open { scope: Scope::Adapters, .. })
    }

    /// The open transaction, if it still takes writes. A late call changes nothing.
    pub(super) fn writable(&self, event: &'static str) -> Result<TransactionId, EngineError> {
        match self.machine.state() {
            State::Open { id, phase: phase @ (Phase::Finalizing | Phase::Verifying), .. } => {
                Err(MachineError::Order { event, id, phase }.into())
            }
            _ => self.open_id(event),
        }
    }

    pub(super) fn open_id(&self, event: &str) -> Result<TransactionId, EngineError> {
        match self.machine.state() {
            State::Open { id, .. } => Ok(id),
            State::Idle | State::Vacant => Err(EngineError::refused(format!(
                "{event} without a transaction; call `begin` first"
            ))),
            State::Failed { id } => Err(MachineError::Failed { failed: id }.into()),
        }
    }

    /// The transaction is given up because of `error`, which is what the caller hears.
    pub(super) fn fail(&mut self, id: TransactionId, error: EngineError) -> EngineError {
        // The machine refuses only an abort of what is not open; then there is nothing to do.
        let _ = self.machine.abort(id);
        self.drop_promise(self.machine.state());
        if !self.is_ended() {
            let _ = self.each(|worker| worker.close(false));
        }
        error
    }
}

impl Worker {
    fn begin(&mut self, load: Load, format: Format) -> Result<(), Failure> {
        let weights = load.scope != Scope::Adapters;
        self.load = Some(load);
        match format {
            Format::Checkpoint if weights => self.expect_post_load(),
            Format::Checkpoint | Format::Kernel => Ok(()),
        }
    }

    /// Whether a bucket may be written: every name, type, shape and length fits, and nothing comes
    /// twice.
    pub(super) fn admit(&mut self, tensors: &[TensorRef]) -> Result<(), Failure> {
        let mut names = BTreeSet::new();
        let mut parts = BTreeSet::new();
        for tensor in tensors {
            self.catalogue.admit(tensor)?;
            let name = tensor.name.as_str();
            let filled = self.catalogue.source(name).map(|source| source.parts.clone());
            let filled = filled.unwrap_or_default();
            let before = self.load()?.filled_by(&filled).map(str::to_owned);
            let within = filled.iter().any(|part| !parts.insert(*part));
            if !names.insert(name) || within || self.load()?.received(name) {
                return Err(twice(name, name));
            }
            if let Some(before) = before {
                return Err(twice(name, &before));
            }
        }
        Ok(())
    }

    /// Whether everything that the model needs, and everything that was promised, arrived.
    fn check_complete(&mut self, promise: &Promise) -> Result<(), Failure> {
        let load = self.load()?;
        if let Some((name, _)) = promise.adapters.iter().find(|(n, _)| !load.adapters.contains(n)) {
            return Err(Failure::Refused(format!(
                "the adapter `{name}` was promised and did not arrive; load again"
            )));
        }
        if load.scope == Scope::Adapters {
            return Ok(());
        }
        let preserved = self.catalogue.parts_of(&promise.preserved);
        let missing = match promise.format {
            Format::Checkpoint => load.missing(self.catalogue.parts(), &preserved),
            Format::Kernel => Vec::new(),
        };
        if !missing.is_empty() {
            let listed = missing.iter().take(LISTED).map(|name| format!("`{name}`"));
            let listed = listed.collect::<Vec<_>>().join(", ");
            let rest = missing.len().saturating_sub(LISTED);
            let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            return Err(Failure::Refused(format!(
                "{} sources are missing: {listed}{more}; load all of them again",
                missing.len()
            )));
        }
        let absent = promise.delivered.iter().find(|name| !load.received(name));
        absent.map_or(Ok(()), |name| {
            Err(Failure::Refused(format!("`{name}` was promised and did not arrive; load again")))
        })
    }

    /// Ends the load and gives this rank's receipt of it.
    fn close(&mut self, committed: bool) -> Result<(), Failure> {
        self.close_adapters(committed)?;
        let Some(load) = self.load.take() else { return Ok(()) };
        if committed {
            self.claim("generation", &load.generation.0.to_string());
        }
        let generation = if committed { load.generation } else { load.before() };
        self.claims.push(Fact::Receipt(ReceiptFact {
            transaction: load.transaction,
            generation,
            applications: load.applications,
            buffered: load.buffered(),
            unrouted: load.unrouted,
            committed,
        }));
        Ok(())
    }
}

pub(super) fn twice(name: &str, before: &str) -> Failure {
    Failure::Refused(if name == before {
        format!("`{name}` comes twice in this transaction; send each source once")
    } else {
        format!("`{name}` fills what `{before}` filled already; send one spelling of each source")
    })
}
