//! The transaction of one engine: BEGIN, APPLY, FINALIZE, VERIFY, then COMMIT or ABORT.
//!
//! An engine keeps one machine and asks it before each risky call: the machine records the write
//! before the write happens, so that a crash in the middle of it is a failure and not a success.

use std::fmt;

use crate::words::{Generation, TransactionId};

/// Where an engine's weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Weights and caches are in device memory.
    Awake,
    /// Weights are in device memory, the KV cache is not.
    WeightsOnly,
    /// Neither is.
    Asleep,
    /// Nobody knows, for example after a wake that failed halfway.
    Unknown,
}

impl Residency {
    const fn holds_weights(self) -> bool {
        matches!(self, Self::Awake | Self::WeightsOnly)
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Awake => "awake",
            Self::WeightsOnly => "awake without a kv cache",
            Self::Asleep => "asleep",
            Self::Unknown => "in an unknown residency",
        })
    }
}

/// How much a transaction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every weight.
    Full,
    /// Some weights; the others keep the old generation's bytes.
    Partial,
    /// Adapters alone: the weights keep their bytes, and their generation with them.
    Adapters,
}

/// What the weights are before a transaction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// One whole generation.
    Whole,
    /// Nothing: none was loaded yet, or a sleep discarded them.
    Vacant,
    /// Parts of several generations: an update failed.
    Mixed,
}

/// How far an open transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing has been written.
    Begun,
    /// Something has been, or is being, written.
    Applying,
    /// Post-load runs; no write is accepted any more.
    Finalizing,
    /// Nothing changes any more; what was written is being checked.
    Verifying,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begun => "begun",
            Self::Applying => "applying",
            Self::Finalizing => "finalizing",
            Self::Verifying => "verifying",
        })
    }
}

/// What an engine's machine is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No transaction is open; the weights are one whole generation.
    Idle,
    /// No transaction is open and there are no weights. Only a full load leads out.
    Vacant,
    /// A transaction is open.
    Open {
        /// Which.
        id: TransactionId,
        /// How far it is.
        phase: Phase,
        /// How much it writes.
        scope: Scope,
        /// What the weights were when it began.
        base: Base,
    },
    /// A transaction failed after its first write. Only a full load leads out.
    Failed {
        /// Which.
        id: TransactionId,
    },
}

/// An event that the machine refuses. Nothing changes by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// An id that was used, or skipped over.
    #[error("transaction {} cannot begin: ids rise, and {} was the last", id.0, last.0)]
    IdNotRising {
        /// The id.
        id: TransactionId,
        /// The last id that began.
        last: TransactionId,
    },
    /// Another transaction, or the same one, is open.
    #[error("transaction {} cannot begin: {} is open ({phase}); finish or abort it", id.0, open.0)]
    AlreadyOpen {
        /// The id.
        id: TransactionId,
        /// The open one.
        open: TransactionId,
        /// How far that is.
        phase: Phase,
    },
    /// An event for a transaction that is over.
    #[error("{event} of transaction {} came late: it is over", id.0)]
    Late {
        /// `apply`, `finalize`, …
        event: &'static str,
        /// The id.
        id: TransactionId,
    },
    /// An event for a transaction that never began.
    #[error("{event} of transaction {}: it never began", id.0)]
    NeverBegan {
        /// `apply`, `finalize`, …
        event: &'static str,
        /// The id.
        id: TransactionId,
    },
    /// An event out of its order.
    #[error("{event} of transaction {} is out of order: it is {phase}", id.0)]
    Order {
        /// `apply`, `finalize`, …
        event: &'static str,
        /// The id.
        id: TransactionId,
        /// How far the transaction is.
        phase: Phase,
    },
    /// The weights are not in memory.
    #[error("{event} needs the weights in memory and the engine is {residency}; wake it first")]
    Residency {
        /// `begin`, `apply`, …
        event: &'static str,
        /// Where the weights are.
        residency: Residency,
    },
    /// The engine would change residency in the middle of a transaction.
    #[error("{event} is refused while transaction {} is {phase}; finish or abort it", open.0)]
    Busy {
        /// `sleep` or `wake`.
        event: &'static str,
        /// The open transaction.
        open: TransactionId,
        /// How far that is.
        phase: Phase,
    },
    /// Weights of two generations are mixed.
    #[error("transaction {} failed after its first write; only a full load leads on", failed.0)]
    Failed {
        /// The transaction that failed.
        failed: TransactionId,
    },
    /// An update of nothing.
    #[error("transaction {} is no full load and there are no weights; load all of them", id.0)]
    Vacant {
        /// The id.
        id: TransactionId,
    },
    /// No generation follows.
    #[error("the generation after {} does not fit 64 bits", last.0)]
    GenerationsExhausted {
        /// The last generation.
        last: Generation,
    },
}

/// The state of one engine between generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    state: State,
    residency: Residency,
    last: TransactionId,
    generation: Generation,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// An awake engine with nothing loaded (generation 0).
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Vacant,
            residency: Residency::Awake,
            last: TransactionId(0),
            generation: Generation(0),
        }
    }

    /// What it is in.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Where the weights are.
    #[must_use]
    pub const fn residency(&self) -> Residency {
        self.residency
    }

    /// The last committed generation.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The id that the next transaction may have.
    #[must_use]
    pub const fn next_id(&self) -> TransactionId {
        TransactionId(self.last.0.saturating_add(1))
    }

    /// Whether requests may run: one whole generation is loaded, all of it and the caches are in
    /// memory, and nothing is being written.
    #[must_use]
    pub const fn may_serve(&self) -> bool {
        let whole = match self.state {
            State::Idle => true,
            State::Open { phase, base, .. } => {
                matches!(phase, Phase::Begun) && matches!(base, Base::Whole)
            }
            State::Vacant | State::Failed { .. } => false,
        };
        whole && matches!(self.residency, Residency::Awake)
    }

    /// Opens a transaction. Ids rise; gaps are legal.
    ///
    /// # Errors
    /// Another is open, the id does not rise, the weights' memory is not there, or a partial update
    /// of weights that are mixed or gone.
    pub fn begin(&mut self, id: TransactionId, scope: Scope) -> Result<(), MachineError> {
        if let State::Open { id: open, phase, .. } = self.state {
            return Err(MachineError::AlreadyOpen { id, open, phase });
        }
        if id <= self.last {
            return Err(MachineError::IdNotRising { id, last: self.last });
        }
        self.check_residency("begin")?;
        let base = match (self.state, scope) {
            (State::Failed { id: failed }, Scope::Partial | Scope::Adapters) => {
                return Err(MachineError::Failed { failed });
            }
            (State::Vacant, Scope::Partial | Scope::Adapters) => {
                return Err(MachineError::Vacant { id });
            }
            (State::Failed { .. }, Scope::Full) => Base::Mixed,
            (State::Vacant, Scope::Full) => Base::Vacant,
            (State::Idle | State::Open { .. }, _) => Base::Whole,
        };
        self.last = id;
        self.state = State::Open { id, phase: Phase::Begun, scope, base };
        Ok(())
    }

    /// Announces a write. Call it before the write: from here on a failure is terminal.
    ///
    /// # Errors
    /// A transaction that is not open, or one that is past its writes.
    pub fn apply(&mut self, id: TransactionId) -> Result<(), MachineError> {
        self.step("apply", id, &[Phase::Begun, Phase::Applying], Phase::Applying)
    }

    /// Announces post-load: no write is accepted any more. What post-load itself writes counts as
    /// written, so an abort from here on is a failure.
    ///
    /// # Errors
    /// A transaction that is not open, or is finalizing or further.
    pub fn finalize(&mut self, id: TransactionId) -> Result<(), MachineError> {
        self.step("finalize", id, &[Phase::Begun, Phase::Applying], Phase::Finalizing)
    }

    /// Announces the check of what was written.
    ///
    /// # Errors
    /// A transaction that is not open, or is not finalizing.
    pub fn verify(&mut self, id: TransactionId) -> Result<(), MachineError> {
        self.step("verify", id, &[Phase::Finalizing], Phase::Verifying)
    }

    /// Closes a verified transaction and returns the generation that is served from here on.
    ///
    /// # Errors
    /// A transaction that is not open, or is not verifying.
    pub fn commit(&mut self, id: TransactionId) -> Result<Generation, MachineError> {
        let (phase, scope, _) = self.open("commit", id)?;
        if phase != Phase::Verifying {
            return Err(MachineError::Order { event: "commit", id, phase });
        }
        if scope != Scope::Adapters {
            let last = self.generation;
            let next = last.0.checked_add(1).ok_or(MachineError::GenerationsExhausted { last })?;
            self.generation = Generation(next);
        }
        self.state = State::Idle;
        Ok(self.generation)
    }

    /// Gives a transaction up. Before the first write the engine is what it was; after it, the
    /// engine has failed.
    ///
    /// # Errors
    /// A transaction that is not open.
    pub fn abort(&mut self, id: TransactionId) -> Result<State, MachineError> {
        let (phase, _, base) = self.open("abort", id)?;
        self.state = match (phase, base) {
            (Phase::Begun, Base::Whole) => State::Idle,
            (Phase::Begun, Base::Vacant) => State::Vacant,
            _ => State::Failed { id },
        };
        Ok(self.state)
    }

    /// The weights leave device memory; `keeps` says whether a copy of them remains elsewhere and
    /// comes back on wake. Without one, only a full load leads on.
    ///
    /// # Errors
    /// A transaction is open.
    pub fn sleep(&mut self, keeps: bool) -> Result<(), MachineError> {
        self.check_idle("sleep")?;
        if !keeps && self.state == State::Idle {
            self.state = State::Vacant;
        }
        self.residency = Residency::Asleep;
        Ok(())
    }

    /// A wake brought the engine to `residency`; [`Residency::Unknown`] where it failed halfway.
    /// The KV cache may come back while a transaction is open, weights may not.
    ///
    /// # Errors
    /// A transaction is open.
    pub fn wake(&mut self, residency: Residency) -> Result<(), MachineError> {
        if !(self.residency.holds_weights() && residency.holds_weights()) {
            self.check_idle("wake")?;
        }
        self.residency = residency;
        Ok(())
    }

    fn step(
        &mut self,
        event: &'static str,
        id: TransactionId,
        from: &[Phase],
        to: Phase,
    ) -> Result<(), MachineError> {
        let (phase, scope, base) = self.open(event, id)?;
        if !from.contains(&phase) {
            return Err(MachineError::Order { event, id, phase });
        }
        self.check_residency(event)?;
        self.state = State::Open { id, phase: to, scope, base };
        Ok(())
    }

    fn open(
        &self,
        event: &'static str,
        id: TransactionId,
    ) -> Result<(Phase, Scope, Base), MachineError> {
        match self.state {
            State::Open { id: open, phase, scope, base } if open == id => Ok((phase, scope, base)),
            State::Failed { id: failed } if failed == id => Err(MachineError::Failed { failed }),
            _ if id > self.last || id == TransactionId(0) => {
                Err(MachineError::NeverBegan { event, id })
            }
            _ => Err(MachineError::Late { event, id }),
        }
    }

    fn check_residency(&self, event: &'static str) -> Result<(), MachineError> {
        if self.residency.holds_weights() {
            Ok(())
        } else {
            Err(MachineError::Residency { event, residency: self.residency })
        }
    }

    const fn check_idle(&self, event: &'static str) -> Result<(), MachineError> {
        match self.state {
            State::Open { id: open, phase, .. } => Err(MachineError::Busy { event, open, phase }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TransactionId = TransactionId(1);
    const TWO: TransactionId = TransactionId(2);

    fn loaded() -> Machine {
        let mut machine = Machine::new();
        run(&mut machine, ONE).unwrap();
        machine
    }

    fn run(machine: &mut Machine, id: TransactionId) -> Result<Generation, MachineError> {
        machine.begin(id, Scope::Full)?;
        machine.apply(id)?;
        machine.apply(id)?;
        machine.finalize(id)?;
        machine.verify(id)?;
        machine.commit(id)
    }

    #[test]
    fn a_whole_transaction_makes_one_generation() {
        let mut machine = Machine::new();
        assert!(!machine.may_serve());
        assert_eq!(run(&mut machine, ONE), Ok(Generation(1)));
        assert!(machine.may_serve());
        assert_eq!(run(&mut machine, TransactionId(7)), Ok(Generation(2)));
    }

    #[test]
    fn starts_and_finishes_come_once() {
        let mut machine = loaded();
        let again = MachineError::IdNotRising { id: ONE, last: ONE };
        assert_eq!(machine.begin(ONE, Scope::Full), Err(again));
        machine.begin(TWO, Scope::Full).unwrap();
        let open = MachineError::AlreadyOpen { id: TWO, open: TWO, phase: Phase::Begun };
        assert_eq!(machine.begin(TWO, Scope::Full), Err(open));
        machine.finalize(TWO).unwrap();
        let order = |event, phase| MachineError::Order { event, id: TWO, phase };
        assert_eq!(machine.finalize(TWO), Err(order("finalize", Phase::Finalizing)));
        assert_eq!(machine.commit(TWO), Err(order("commit", Phase::Finalizing)));
        machine.verify(TWO).unwrap();
        machine.commit(TWO).unwrap();
        assert_eq!(machine.commit(TWO), Err(MachineError::Late { event: "commit", id: TWO }));
    }

    #[test]
    fn late_early_and_foreign_chunks_are_told_apart() {
        let mut machine = loaded();
        machine.begin(TWO, Scope::Full).unwrap();
        assert_eq!(machine.apply(ONE), Err(MachineError::Late { event: "apply", id: ONE }));
        let three = TransactionId(3);
        let never = MachineError::NeverBegan { event: "apply", id: three };
        assert_eq!(machine.apply(three), Err(never));
        machine.apply(TWO).unwrap();
        machine.finalize(TWO).unwrap();
        let order = MachineError::Order { event: "apply", id: TWO, phase: Phase::Finalizing };
        assert_eq!(machine.apply(TWO), Err(order));
    }

    #[test]
    fn an_abort_before_the_first_write_leaves_the_old_generation() {
        let mut machine = loaded();
        machine.begin(TWO, Scope::Partial).unwrap();
        assert!(machine.may_serve());
        assert_eq!(machine.abort(TWO), Ok(State::Idle));
        assert!(machine.may_serve());
        assert_eq!(machine.generation(), Generation(1));
    }

    #[test]
    fn after_the_first_write_only_a_full_load_leads_on() {
        let mut machine = loaded();
        machine.begin(TWO, Scope::Partial).unwrap();
        machine.apply(TWO).unwrap();
        assert!(!machine.may_serve());
        assert_eq!(machine.abort(TWO), Ok(State::Failed { id: TWO }));
        assert!(!machine.may_serve());
        let failed = MachineError::Failed { failed: TWO };
        assert_eq!(machine.begin(TransactionId(3), Scope::Partial), Err(failed.clone()));
        assert_eq!(machine.apply(TWO), Err(failed));
        assert_eq!(run(&mut machine, TransactionId(4)), Ok(Generation(2)));
        assert!(machine.may_serve());
    }

    #[test]
    fn adapters_alone_leave_the_generation_and_fail_as_all_others() {
        let mut machine = loaded();
        machine.begin(TWO, Scope::Adapters).unwrap();
        machine.apply(TWO).unwrap();
        machine.finalize(TWO).unwrap();
        machine.verify(TWO).unwrap();
        assert_eq!(machine.commit(TWO), Ok(Generation(1)));
        let three = TransactionId(3);
        machine.begin(three, Scope::Adapters).unwrap();
        machine.apply(three).unwrap();
        assert_eq!(machine.abort(three), Ok(State::Failed { id: three }));
        let failed = MachineError::Failed { failed: three };
        assert_eq!(machine.begin(TransactionId(4), Scope::Adapters), Err(failed));
        let vacant = MachineError::Vacant { id: ONE };
        assert_eq!(Machine::new().begin(ONE, Scope::Adapters), Err(vacant));
    }

    #[test]
    fn an_abandoned_repair_is_still_a_failure() {
        let mut machine = loaded();
        machine.begin(TWO, Scope::Full).unwrap();
        machine.apply(TWO).unwrap();
        machine.abort(TWO).unwrap();
        let three = TransactionId(3);
        machine.begin(three, Scope::Full).unwrap();
        assert!(!machine.may_serve());
        assert_eq!(machine.abort(three), Ok(State::Failed { id: three }));
    }

    #[test]
    fn an_engine_without_its_weights_takes_no_update() {
        let mut machine = loaded();
        for residency in [Residency::Asleep, Residency::Unknown] {
            machine.wake(residency).unwrap();
            let refused = MachineError::Residency { event: "begin", residency };
            assert_eq!(machine.begin(TWO, Scope::Full), Err(refused));
            assert!(!machine.may_serve());
        }
        machine.wake(Residency::WeightsOnly).unwrap();
        machine.begin(TWO, Scope::Full).unwrap();
        assert!(!machine.may_serve());
    }

    #[test]
    fn a_sleep_that_discards_weights_needs_a_full_load() {
        let mut machine = loaded();
        machine.sleep(true).unwrap();
        machine.wake(Residency::Awake).unwrap();
        assert!(machine.may_serve());
        machine.sleep(false).unwrap();
        machine.wake(Residency::Awake).unwrap();
        assert!(!machine.may_serve());
        let vacant = MachineError::Vacant { id: TWO };
        assert_eq!(machine.begin(TWO, Scope::Partial), Err(vacant));
        machine.begin(TWO, Scope::Full).unwrap();
        assert_eq!(machine.abort(TWO), Ok(State::Vacant));
        assert_eq!(run(&mut machine, TransactionId(3)), Ok(Generation(2)));
        assert!(machine.may_serve());
    }

    #[test]
    fn weights_stay_in_memory_while_a_transaction_is_open() {
        let mut machine = loaded();
        machine.wake(Residency::WeightsOnly).unwrap();
        machine.begin(TWO, Scope::Full).unwrap();
        let busy = |event| MachineError::Busy { event, open: TWO, phase: Phase::Begun };
        assert_eq!(machine.sleep(true), Err(busy("sleep")));
        assert_eq!(machine.wake(Residency::Unknown), Err(busy("wake")));
        assert_eq!(machine.wake(Residency::Awake), Ok(()));
    }
}
