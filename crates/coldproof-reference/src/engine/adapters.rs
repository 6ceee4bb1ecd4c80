//! Adapters by name: loading one, and which one a request is served with.

use std::sync::Arc;

use coldproof_checkpoint::Lora;

use super::EngineError;
use super::core::Core;
use super::request::{GenerateRequest, Mode};
use crate::caches::WeightsKey;

impl Core {
    /// Loads an adapter under a name, in the place of the one that has it. One that any rank
    /// refuses changes nothing.
    pub(crate) fn load_adapter(&mut self, name: &str, lora: &Arc<Lora>) -> Result<(), EngineError> {
        let (checked, rank) = (Arc::clone(lora), lora.adapter.rank);
        self.each(move |worker| worker.check_adapter(&checked))?;
        let of = name.to_owned();
        if let Err(error) = self.each(move |worker| worker.make_room(&of, rank)) {
            if !self.is_ended() {
                self.each(|worker| worker.give_room_back())?;
            }
            return Err(error);
        }
        let (of, written) = (name.to_owned(), Arc::clone(lora));
        self.each(move |worker| worker.write_adapter(&of, &written))?;
        self.adapters.insert(name.to_owned(), lora.adapter.content);
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
