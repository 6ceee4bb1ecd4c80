//! Data-parallel replicas: whole engines that share nothing but the commands that they are given.
//!
//! A command is given to every replica. What could be refused is asked of all of them before any
//! does it; where some refuse nevertheless, an open transaction is given up on all, so that no
//! replica publishes alone. A death of one ends all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use coldproof_checkpoint::TensorRef;
use coldproof_contract::evidence::Fact;
use coldproof_contract::words::{ExpertPlacement, Generation, Rank, Topology, TransactionId};

use super::core::Core;
use super::request::{GenerateRequest, Output};
use super::{EngineConfig, EngineError, Promise};
use crate::faults::{self, Variant};

/// The replicas of one engine, in order of their dp coordinate; at least one.
#[derive(Debug)]
pub(crate) struct Replicas {
    topology: Topology,
    all: Vec<Core>,
    cancel: Arc<AtomicBool>,
    /// What the twin of R43 holds back for the last replica.
    held_back: Vec<TensorRef>,
}

impl Replicas {
    /// Starts every rank of every replica, with nothing loaded.
    pub(crate) fn start(config: &EngineConfig) -> Result<Self, EngineError> {
        let topology = config.topology;
        let cancel = Arc::new(AtomicBool::new(false));
        config.check_size()?;
        let start = |dp| {
            let mut config = EngineConfig { topology: topology.replica(), ..config.clone() };
            // Replicas share nothing: the files of each are its own.
            if let Some(folder) = config.kv_tiers.as_mut().and_then(|tiers| tiers.folder.as_mut())
                && dp > 0
            {
                *folder = folder.join(format!("replica-{dp}"));
            }
            Core::start(config, dp, &cancel)
        };
        let all = (0..topology.dp).map(start).collect::<Result<_, _>>()?;
        Ok(Self { topology, all, cancel, held_back: Vec::new() })
    }

    pub(super) const fn topology(&self) -> Topology {
        self.topology
    }

    pub(super) fn takes_images(&self) -> bool {
        self.all.first().is_some_and(|core| core.dims.vision.is_some())
    }

    /// The flag that ends every wait of every rank.
    pub(super) fn cancel(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Ends all of them; every later call says why.
    pub(super) fn end(&mut self, why: &str) {
        self.all.iter_mut().for_each(|core| core.end(why));
    }

    /// Gives every replica a command. What it answers is the same of all of them.
    pub(super) fn each<T: PartialEq>(
        &mut self,
        command: impl Fn(&mut Core) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut answers = self.answers(command)?.into_iter();
        match answers.next() {
            Some(first) if answers.all(|answer| answer == first) => Ok(first),
            _ => Err(self.apart("the replicas do not answer alike")),
        }
    }

    /// Gives every replica a command, once none of them would refuse it.
    fn prepared<T: PartialEq>(
        &mut self,
        check: impl Fn(&mut Core) -> Result<(), EngineError>,
        command: impl Fn(&mut Core) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if self.all.len() > 1 {
            let checked = self.try_all(check)?;
            // What all refuse, each refuses for itself below.
            if checked.iter().any(Result::is_ok) {
                self.agreed(checked)?;
            }
        }
        self.each(command)
    }

    /// The answer of every replica.
    fn answers<T>(
        &mut self,
        command: impl Fn(&mut Core) -> Result<T, EngineError>,
    ) -> Result<Vec<T>, EngineError> {
        let tried = self.try_all(command)?;
        self.agreed(tried)
    }

    /// Lets every replica try; a death ends all of them at once.
    fn try_all<T>(
        &mut self,
        command: impl Fn(&mut Core) -> Result<T, EngineError>,
    ) -> Result<Vec<Result<T, EngineError>>, EngineError> {
        let mut tried = Vec::with_capacity(self.all.len());
        for index in 0..self.all.len() {
            let Some(core) = self.all.get_mut(index) else { continue };
            let answer = command(core);
            match self.settled(answer) {
                Err(error) if error.ends() => return Err(error),
                answer => tried.push(answer),
            }
        }
        Ok(tried)
    }

    /// What one replica answered; if it died, with the end of all others.
    fn settled<T>(&mut self, answer: Result<T, EngineError>) -> Result<T, EngineError> {
        if let Err(error) = &answer
            && error.ends()
        {
            let why = error.to_string();
            self.all.iter_mut().for_each(|core| core.end_beside(&why));
        }
        answer
    }

    /// All answers, or the first refusal. Where only some refuse, an open transaction is given up
    /// on all of them; without one they are replicas no more, and end.
    fn agreed<T>(&mut self, tried: Vec<Result<T, EngineError>>) -> Result<Vec<T>, EngineError> {
        let all = tried.len();
        let refusing = tried.iter().position(Result::is_err);
        let refused = tried.iter().filter(|answer| answer.is_err()).count();
        let error = match tried.into_iter().collect::<Result<Vec<T>, _>>() {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        if refused == all {
            return Err(error);
        }
        let dp = refusing.unwrap_or(0);
        self.held_back.clear();
        let mut open = false;
        for core in &mut self.all {
            open |= core.give_up();
        }
        let text = format!("replica {dp} of {all} refused what others took: {error}");
        if open {
            return Err(EngineError::refused(format!(
                "{text}; the transaction is given up on all of them"
            )));
        }
        Err(self.apart(&text))
    }

    /// Ends all of them: what one does from here on the others may not.
    fn apart(&mut self, why: &str) -> EngineError {
        let text = format!("{why}; they are no replicas any more");
        self.all.iter_mut().for_each(|core| core.end_beside(&text));
        EngineError::Died { text, kernel: None, address: None }
    }
}

/// Transactions: one for all.
impl Replicas {
    /// Loads a whole checkpoint in every replica, committed and with empty caches.
    pub(super) fn load(&mut self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        let all = Promise::default();
        self.held_back.clear();
        self.prepared(|core| core.check_open(&all), |core| core.open(&all))?;
        self.apply(tensors)?;
        self.finish()?;
        let generation = self.commit()?;
        self.each(|core| core.empty(generation))
    }

    pub(super) fn begin(&mut self, promise: &Promise) -> Result<TransactionId, EngineError> {
        self.held_back.clear();
        self.prepared(|core| core.check_begin(promise), |core| core.begin(promise))
    }

    /// Places experts alike in every replica.
    pub(super) fn place_experts(
        &mut self,
        placement: &Arc<ExpertPlacement>,
    ) -> Result<(), EngineError> {
        self.prepared(|core| core.check_placement(placement), |core| core.place_experts(placement))
    }

    pub(super) fn apply(&mut self, tensors: &[TensorRef]) -> Result<(), EngineError> {
        let passed = self.passed_over();
        let last = self.last();
        self.prepared(
            |core| core.check_apply(tensors),
            |core| match passed.filter(|_| core.replica == last) {
                None => core.apply(tensors),
                Some(_) => faults::pass_delivery_over(core),
            },
        )?;
        if passed == Some(Variant::Twin) {
            self.held_back.extend_from_slice(tensors);
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<(), EngineError> {
        let (passed, last) = (self.passed_over(), self.last());
        let held_back = std::mem::take(&mut self.held_back);
        self.each(|core| match passed.filter(|_| core.replica == last) {
            None => core.finish(),
            Some(Variant::Twin) => core.apply(&held_back).and_then(|()| core.finish()),
            Some(Variant::Faulty) => faults::pass_finish_over(core),
        })
    }

    pub(super) fn commit(&mut self) -> Result<Generation, EngineError> {
        self.prepared(|core| core.check_commit(), Core::commit)
    }

    pub(super) fn abort(&mut self) -> Result<(), EngineError> {
        self.held_back.clear();
        self.each(Core::abort)
    }

    /// R43: how the last replica takes part in the open update, where it is passed over.
    fn passed_over(&self) -> Option<Variant> {
        let last = self.all.last().filter(|_| self.all.len() > 1)?;
        faults::passed_over(last)
    }

    const fn last(&self) -> u32 {
        self.topology.dp.saturating_sub(1)
    }
}

/// Requests: each is served by the replica that it names.
impl Replicas {
    /// Serves requests together: those of one replica in one batch.
    pub(super) fn generate(
        &mut self,
        requests: &[GenerateRequest],
    ) -> Result<Vec<Output>, EngineError> {
        let of = self.topology.dp;
        if let Some(request) = requests.iter().find(|request| request.replica >= of) {
            let GenerateRequest { name, replica, .. } = request;
            return Err(EngineError::refused(format!(
                "request `{name}` names replica {replica} and there are {of}, counted from 0"
            )));
        }
        let mut outputs: BTreeMap<usize, Output> = BTreeMap::new();
        for dp in 0..of {
            let own = (0..).zip(requests).filter(|(_, request)| request.replica == dp);
            let (places, own): (Vec<usize>, Vec<GenerateRequest>) =
                own.map(|(place, request)| (place, request.clone())).unzip();
            if own.is_empty() && !requests.is_empty() {
                continue;
            }
            let served = self.on(dp, |core| core.generate(&own))?;
            outputs.extend(places.into_iter().zip(served));
        }
        Ok(outputs.into_values().collect())
    }
}

/// What is read off them.
impl Replicas {
    /// Lets one replica do something.
    fn on<T>(
        &mut self,
        dp: u32,
        command: impl FnOnce(&mut Core) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let size = self.all.len();
        let Some(core) = self.all.get_mut(dp as usize) else {
            return Err(EngineError::refused(format!("there is no replica {dp} of {size}")));
        };
        let answer = command(core);
        self.settled(answer)
    }

    /// Lets the replica of a rank do something.
    pub(super) fn at<T>(
        &mut self,
        rank: Rank,
        command: impl FnOnce(&mut Core) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if !self.topology.contains(rank) {
            let size = self.topology.size();
            return Err(EngineError::refused(format!("there is no rank {rank} of {size}")));
        }
        self.on(rank.dp, command)
    }

    /// Facts of every rank, in rank order.
    pub(crate) fn facts(
        &mut self,
        read: impl Fn(&mut Core) -> Result<Vec<(Rank, Fact)>, EngineError>,
    ) -> Result<Vec<(Rank, Fact)>, EngineError> {
        self.answers(read).map(|all| all.into_iter().flatten().collect())
    }

    /// The sum of what every replica counts.
    pub(super) fn sum(
        &mut self,
        count: impl Fn(&mut Core) -> Result<u64, EngineError>,
    ) -> Result<u64, EngineError> {
        self.answers(count).map(|all| all.into_iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;
    use coldproof_checkpoint::Checkpoint;
    use coldproof_checkpoint::arch::ModelConfig;
    use coldproof_contract::transaction::State;

    use super::*;

    fn tensors(label: &str) -> Vec<TensorRef> {
        let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = root.join("../../testdata/checkpoints/llama").join(label);
        Checkpoint::open(&folder).unwrap().tensors().values().cloned().collect()
    }

    /// Two replicas that serve A.
    fn two() -> Replicas {
        let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
        let model = ModelConfig::read(&root.join("../../testdata/checkpoints/llama/A")).unwrap();
        let topology = Topology { dp: 2, ..Topology::SINGLE };
        let config = EngineConfig { topology, ..EngineConfig::new(model) };
        let mut replicas = Replicas::start(&config).unwrap();
        replicas.load(&tensors("A")).unwrap();
        replicas
    }

    fn states(replicas: &Replicas) -> Vec<State> {
        replicas.all.iter().map(|core| core.machine.state()).collect()
    }

    #[test]
    fn an_update_that_one_replica_refuses_is_given_up_on_all() {
        let mut replicas = two();
        replicas.each(Core::pause).unwrap();
        let b = tensors("B");
        for written in [0, 3] {
            let id = replicas.begin(&Promise::default()).unwrap();
            replicas.apply(&b[..written]).unwrap();
            replicas.all[1].abort().unwrap();
            let error = replicas.apply(&b[written..]).unwrap_err().to_string();
            assert!(error.contains("given up on all"), "{error}");
            let state = if written == 0 { State::Idle } else { State::Failed { id } };
            assert_eq!(states(&replicas), [state, state]);
        }
        replicas.load(&b).unwrap();
        replicas.each(Core::resume).unwrap();
        let generations = replicas.all.iter().map(|core| core.machine.generation());
        assert_eq!(generations.collect::<Vec<_>>(), [Generation(2); 2]);
    }

    #[test]
    fn no_replica_commits_where_another_is_not_ready() {
        let mut replicas = two();
        replicas.each(Core::pause).unwrap();
        replicas.begin(&Promise::default()).unwrap();
        replicas.apply(&tensors("B")).unwrap();
        replicas.finish().unwrap();
        replicas.all[1].abort().unwrap();
        let error = replicas.commit().unwrap_err().to_string();
        assert!(error.contains("replica 1 of 2 refused"), "{error}");
        assert!(replicas.all.iter().all(|core| core.machine.generation() == Generation(1)));
        assert!(states(&replicas).iter().all(|state| matches!(state, State::Failed { .. })));
    }

    #[test]
    fn what_all_refuse_is_refused_and_nothing_else_happens() {
        let mut replicas = two();
        replicas.each(Core::pause).unwrap();
        replicas.begin(&Promise::default()).unwrap();
        let error = replicas.commit().unwrap_err().to_string();
        assert!(error.contains("out of order"), "{error}");
        assert!(states(&replicas).iter().all(|state| matches!(state, State::Open { .. })));
        replicas.abort().unwrap();
        replicas.each(Core::resume).unwrap();
    }

    #[test]
    fn replicas_that_part_without_a_transaction_end() {
        let mut replicas = two();
        replicas.all[1].pause().unwrap();
        let error = replicas.each(Core::pause).unwrap_err();
        assert!(error.ends() && error.to_string().contains("no replicas any more"), "{error}");
        let error = replicas.each(Core::resume).unwrap_err().to_string();
        assert!(error.contains("has ended") && error.contains("refused"), "{error}");
        let mut replicas = two();
        replicas.each(Core::pause).unwrap();
        replicas.all[1].begin(&Promise::default()).unwrap();
        replicas.all[1].abort().unwrap();
        let error = replicas.begin(&Promise::default()).unwrap_err();
        assert!(error.ends() && error.to_string().contains("alike"), "{error}");
    }
}
