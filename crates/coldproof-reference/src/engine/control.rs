//! Pause, sleep, wake, invalidate, resume, capture.

use coldproof_contract::transaction::{Residency, State};
use coldproof_contract::words::{Generation, Policy};

use super::EngineError;
use super::core::Core;
use crate::ranks::{Tiers, Worker};

/// The most requests of one batch that a captured graph holds.
pub const BATCH_MAX: u32 = 4;
/// Batch sizes that graphs are captured for.
const GRAPH_ROWS: [usize; 3] = [1, 2, BATCH_MAX as usize];

impl Core {
    /// Captures a decode graph for every batch size.
    pub(crate) fn capture(&mut self) -> Result<(), EngineError> {
        self.check_serving("capture")?;
        if !self.captured.is_empty() {
            return Err(EngineError::refused(
                "graphs are captured already; they are kept for good",
            ));
        }
        for rows in GRAPH_ROWS {
            self.each(move |worker| worker.capture(rows))?;
            self.captured.push(rows);
            self.graphs.capture_sizes.push(rows);
        }
        self.each(Worker::capture_draft)?;
        Ok(())
    }

    /// Admits no more requests. There are none in flight: calls are synchronous.
    pub(crate) fn pause(&mut self) -> Result<(), EngineError> {
        if self.paused {
            return Err(EngineError::refused("the engine is paused already"));
        }
        self.each(|_| Ok(()))?;
        self.paused = true;
        Ok(())
    }

    /// Gives device memory back. Level 1 keeps weights on the host, level 2 keeps nothing.
    pub(crate) fn sleep(&mut self, level: u8) -> Result<(), EngineError> {
        if !self.paused {
            return Err(EngineError::refused("the engine is serving; call `pause` before `sleep`"));
        }
        if !matches!(level, 1 | 2) {
            return Err(EngineError::refused(format!(
                "there is no sleep level {level}; use 1 or 2"
            )));
        }
        if self.machine.residency() != Residency::Awake {
            let residency = self.machine.residency();
            return Err(EngineError::refused(format!("the engine is {residency}; wake it first")));
        }
        self.machine.sleep(level == 1)?;
        self.each(move |worker| worker.sleep(level == 1))?;
        self.blocks.forget();
        self.encoder.forget();
        Ok(())
    }

    /// Takes memory for `weights`, then for `kv_cache`, at the old addresses.
    pub(crate) fn wake(&mut self, tag: &str) -> Result<(), EngineError> {
        let residency = self.machine.residency();
        match (tag, residency) {
            ("weights", Residency::Asleep) => {
                self.machine.wake(Residency::WeightsOnly)?;
                self.each(|worker| worker.wake_weights())?;
            }
            ("kv_cache", Residency::WeightsOnly) => {
                self.machine.wake(Residency::Awake)?;
                self.each(|worker| worker.wake_kv())?;
            }
            ("kv_cache", Residency::Asleep) => {
                return Err(EngineError::refused(
                    "the engine is asleep; wake `weights` before `kv_cache`",
                ));
            }
            ("weights" | "kv_cache", _) => {
                return Err(EngineError::refused(format!(
                    "`{tag}` is in memory already: the engine is {residency}"
                )));
            }
            _ => {
                return Err(EngineError::refused(format!(
                    "there is nothing to wake by tag `{tag}`; use `weights` or `kv_cache`"
                )));
            }
        }
        Ok(())
    }

    /// Lets every cache answer the committed generation.
    pub(crate) fn invalidate(&mut self) -> Result<(), EngineError> {
        if self.machine.state() != State::Idle {
            return Err(EngineError::refused(
                "caches are invalidated after a commit; finish and commit, or abort",
            ));
        }
        let generation = self.machine.generation();
        self.acknowledge(generation)
    }

    /// The prefix cache with its tiers, the encoder's and their slots are of this generation from
    /// here on.
    pub(super) fn acknowledge(&mut self, generation: Generation) -> Result<(), EngineError> {
        self.blocks.invalidate(generation);
        self.encoder.invalidate(generation);
        self.each(move |worker| {
            worker.tiers.iter_mut().for_each(Tiers::invalidate);
            for id in worker.slots.ids() {
                let slot = &mut worker.slots[id];
                if slot.spec.policy == Policy::Invalidate {
                    slot.epoch = generation;
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Admits requests again.
    pub(crate) fn resume(&mut self) -> Result<(), EngineError> {
        if !self.paused {
            return Err(EngineError::refused("the engine is serving already"));
        }
        self.check_whole("resume")?;
        let (weights, caches) = (self.machine.generation(), self.blocks.generation());
        if weights != caches {
            return Err(EngineError::refused(format!(
                "caches are of generation {} and weights of {}; call `invalidate` before `resume`",
                caches.0, weights.0
            )));
        }
        self.each(|_| Ok(()))?;
        self.paused = false;
        Ok(())
    }

    /// Whether requests may run.
    pub(super) fn check_serving(&mut self, event: &str) -> Result<(), EngineError> {
        if self.paused {
            return Err(EngineError::refused(format!(
                "{event} while the engine is paused; call `resume` first"
            )));
        }
        self.check_whole(event)
    }

    /// Whether one whole generation is in memory.
    pub(super) fn check_whole(&self, event: &str) -> Result<(), EngineError> {
        let residency = self.machine.residency();
        let why = match self.machine.state() {
            State::Failed { id } => {
                format!("transaction {} failed after its first write; load all weights again", id.0)
            }
            State::Open { id, .. } => {
                format!("transaction {} is open; commit or abort it", id.0)
            }
            State::Idle if residency != Residency::Awake => {
                format!("the engine is {residency}; wake it first")
            }
            State::Vacant if self.machine.generation() == Generation(0) => {
                "nothing is loaded; call `load` first".to_owned()
            }
            State::Vacant => {
                "the weights were discarded by sleep level 2; load all weights again".to_owned()
            }
            State::Idle => return Ok(()),
        };
        Err(EngineError::refused(format!("{event} is refused: {why}")))
    }
}
