//! Adapters by name: loading one, and which one a request is served with.

use std::sync::Arc;

use coldproof_checkpoint::Lora;
use coldproof_contract::transaction::Scope;
use coldproof_contract::words::TransactionId;

use super::core::Core;
use super::request::{GenerateRequest, Mode};
use super::{EngineError, Promise};
use crate::caches::WeightsKey;
use crate::ranks::Worker;

impl Core {
    /// Loads an adapter under a name, in the place of the one that has it: a transaction of its
    /// own, between two requests. One that any rank refuses changes nothing.
    pub(crate) fn load_adapter(&mut self, name: &str, lora: &Arc<Lora>) -> Result<(), EngineError> {
        let adapters = vec![(name.to_owned(), Arc::clone(lora))];
        let promise = Promise { adapters, ..Promise::default() };
        self.admit(&promise)?;
        self.start_transaction(self.machine.next_id(), Scope::Adapters, &promise)?;
        self.apply_adapter(name)?;
        self.finish()?;
        self.commit().map(drop)
    }

    /// Takes room for every adapter that is promised, on all ranks or on none.
    pub(super) fn make_rooms(&mut self, promise: &Promise) -> Result<(), EngineError> {
        if promise.adapters.is_empty() {
            return Ok(());
        }
        let rooms: Vec<(String, u64)> = (promise.adapters.iter())
            .map(|(name, lora)| (name.clone(), lora.adapter.rank))
            .collect();
        let made = self.each(move |worker| {
            rooms.iter().try_for_each(|(name, rank)| worker.make_room(name, *rank))
        });
        if let Err(error) = made {
            if !self.is_ended() {
                self.each(Worker::give_rooms_back)?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Writes an adapter that the open transaction promised. It is served with all else that the
    /// transaction delivers, or not at all.
    pub(crate) fn apply_adapter(&mut self, name: &str) -> Result<(), EngineError> {
        let id = self.writable("apply_adapter")?;
        let written = self.apply_adapter_to(id, name);
        written.map_err(|error| self.fail(id, error))
    }

    fn apply_adapter_to(&mut self, id: TransactionId, name: &str) -> Result<(), EngineError> {
        let refused = |text: String| Err(EngineError::refused(text));
        let Some(lora) = self.promise.adapter(name).cloned() else {
            return refused(format!(
                "the adapter `{name}` was not promised when the transaction began; promise it or \
                 leave it out"
            ));
        };
        let name = name.to_owned();
        let own = name.clone();
        let twice = self.each(move |worker| Ok(worker.load()?.adapters.contains(&own)))?;
        if twice.contains(&true) {
            return refused(format!(
                "the adapter `{name}` comes twice in this transaction; send it once"
            ));
        }
        self.machine.apply(id)?;
        self.each(move |worker| worker.apply_adapter(&name, &lora))?;
        Ok(())
    }

    /// What blocks of this request's prefix are keyed by.
    pub(super) fn weights_key(&self, request: &GenerateRequest) -> WeightsKey {
        let adapter = request.adapter.as_deref();
        let known = adapter.and_then(|name| Some((name, *self.adapters.get(name)?)));
        self.blocks.weights_key(self.machine.generation(), known)
    }

    /// Whether every adapter that is asked for is loaded.
    pub(super) fn check_adapters(&self, requests: &[GenerateRequest]) -> Result<(), EngineError> {
        let asked =
            requests.iter().filter_map(|request| Some((request, request.adapter.as_ref()?)));
        for (request, adapter) in asked {
            if !self.adapters.contains_key(adapter) {
                return Err(EngineError::refused(format!(
                    "request `{}` asks for the adapter `{adapter}`, which is not loaded; load it \
                     under that name",
                    request.name
                )));
            }
        }
        Ok(())
    }
}

/// Requests that replay a captured graph: graphs are of the base model alone.
pub(super) fn replays(request: &GenerateRequest) -> bool {
    request.mode == Mode::Graph && request.adapter.is_none()
}

/// A step's requests in groups of one adapter each, in the order of their first requests.
pub(super) fn by_adapter<T>(
    stepping: Vec<T>,
    adapter: impl Fn(&T) -> Option<String>,
) -> Vec<(Option<String>, Vec<T>)> {
    let mut groups: Vec<(Option<String>, Vec<T>)> = Vec::new();
    for one in stepping {
        let of = adapter(&one);
        match groups.iter_mut().find(|(adapter, _)| *adapter == of) {
            Some((_, group)) => group.push(one),
            None => groups.push((of, vec![one])),
        }
    }
    groups
}
