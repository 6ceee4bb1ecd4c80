//! Drives one arm: every command is a step with a deadline, and leaves its evidence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coldproof_contract::digest;
use coldproof_contract::evidence::{
    ApplicationFact, ArmHeader, Fact, LogitsFact, LogitsRow, PhaseFact, RequestStage, StepFact,
    StepOutcome,
};
use coldproof_contract::words::{CheckpointLabel, ExpertPlacement, Rank, StepName};

use crate::census::Graphs;
use crate::engine::{Capabilities, EngineError, EngineUnderTest, GenerateRequest, Output, Reply};
use crate::orders::Orders;
use crate::recorder::{ArmCursor, Recorder};

/// Vocabularies up to this size are recorded bit for bit.
const FULL_ROW_MAX: usize = 4_096;
/// Deadlines of replays are multiples of this.
const QUANTUM: Duration = Duration::from_secs(3);
/// Of larger ones, this many of the largest logits.
const TOP: usize = 64;

/// The arm ended before its plan did. The evidence says how.
#[derive(Debug)]
pub struct ArmEnded;

/// What a lane's part of an arm returns.
pub type ArmResult<T> = Result<T, ArmEnded>;

/// An engine and its place in the evidence.
pub struct Driver<'a, 'p> {
    engine: Box<dyn EngineUnderTest>,
    recorder: &'a mut Recorder<'p>,
    cursor: ArmCursor,
    /// Replicas, each of which every request is served by.
    replicas: u32,
    deadline: Duration,
    slowest_serve: Duration,
    hello: Capabilities,
    /// What the phase began at, and after an update that the engine refused the same.
    from: Option<CheckpointLabel>,
    refused: Option<CheckpointLabel>,
    /// Whether the memory of the KV cache was given back and not taken again.
    pub(crate) asleep: bool,
    /// Graphs as they were last counted; none before a capture.
    pub(crate) graphs: Option<Graphs>,
    /// Orders of packed slots.
    pub(crate) orders: Arc<Orders>,
    /// What the cold load of this arm was seen to apply.
    pub(crate) applied: Vec<(Rank, ApplicationFact)>,
    /// Where experts are, where the lane ordered it.
    pub(crate) placement: Option<ExpertPlacement>,
    /// Steps that every update leaves out.
    pub(crate) skipped: &'a [StepName],
}

impl<'a, 'p> Driver<'a, 'p> {
    /// Takes an engine that was just started for this arm.
    pub(crate) fn new(
        engine: Box<dyn EngineUnderTest>,
        recorder: &'a mut Recorder<'p>,
        arm: &ArmHeader,
        deadline: Duration,
        orders: Arc<Orders>,
        skipped: &'a [StepName],
    ) -> Self {
        let cursor = ArmCursor::new(&arm.arm, recorder);
        let hello = Capabilities::unknown();
        let slowest_serve = Duration::ZERO;
        Self {
            engine,
            recorder,
            cursor,
            replicas: arm.topology.dp,
            deadline,
            slowest_serve,
            hello,
            from: None,
            refused: None,
            asleep: false,
            graphs: None,
            orders,
            applied: Vec::new(),
            placement: None,
            skipped,
        }
    }

    /// Asks the engine what it can do, as the arm's first step.
    ///
    /// # Errors
    /// As [`Driver::step`]; `started` where the engine could not be started.
    pub fn hello(&mut self, started: Reply<()>) -> ArmResult<Capabilities> {
        let hello =
            self.step(StepName::Start, |engine| started.and_then(|()| engine.capabilities()))?;
        self.hello = hello.clone();
        Ok(hello)
    }

    /// What the engine says it can do; before its hello nothing.
    #[must_use]
    pub const fn can(&self) -> &Capabilities {
        &self.hello
    }

    /// Names what follows.
    pub fn phase(&mut self, phase: &str, at: &CheckpointLabel, from: Option<&CheckpointLabel>) {
        self.from = from.cloned();
        let (phase, at) = (phase.to_owned(), at.clone());
        self.label(PhaseFact { phase, at, from: from.cloned(), refused: false });
    }

    fn label(&mut self, fact: PhaseFact) {
        self.cursor.next_step();
        self.record(Rank::default(), Fact::Phase(fact));
    }

    /// If the arm ended because the engine refused an update: what it served before, as the label
    /// of what follows.
    pub fn refused(&mut self) -> bool {
        let Some(at) = self.refused.take() else { return false };
        let phase = format!("{at} again");
        self.label(PhaseFact { phase, at, from: None, refused: true });
        true
    }

    /// Records a fact of the present step.
    pub fn record(&mut self, rank: Rank, fact: Fact) {
        self.cursor.record(self.recorder, rank, fact);
    }

    /// One step: begins it, runs `command`, drains what the engine claims and what the probe saw,
    /// ends it.
    ///
    /// # Errors
    /// The engine refused, hung or died; it is recorded, and the arm is over.
    pub fn step<T>(
        &mut self,
        name: StepName,
        command: impl FnOnce(&mut dyn EngineUnderTest) -> Reply<T>,
    ) -> ArmResult<T> {
        self.cursor.next_step();
        self.recorder.progress().step(self.cursor.arm(), name.name());
        self.record(Rank::default(), Fact::Step(StepFact { name, outcome: None }));
        let deadline = self.deadline_of(name);
        let began = Instant::now();
        let result = self.engine.set_deadline(deadline).and_then(|()| command(&mut *self.engine));
        if name == StepName::Serve && result.is_ok() {
            self.slowest_serve = self.slowest_serve.max(began.elapsed());
        }
        let drained = self.drain(name);
        let error = result.as_ref().err().cloned().or(drained.err());
        if matches!(name, StepName::Update | StepName::Finalize)
            && matches!(error, Some(EngineError::Refused { .. }))
        {
            self.refused = self.from.clone();
        }
        self.asleep = match (name, &error) {
            (StepName::Sleep, None) => true,
            (StepName::WakeKv, None) => false,
            _ => self.asleep,
        };
        let outcome = error.as_ref().map_or(StepOutcome::Ok, outcome_of);
        self.record(Rank::default(), Fact::Step(StepFact { name, outcome: Some(outcome) }));
        match error {
            None => result.map_err(|_| ArmEnded),
            Some(_) => Err(ArmEnded),
        }
    }

    /// A replay that takes twenty times as long as any before it hangs; nothing waits longer than
    /// the run's deadline. Whole quanta, so that the evidence does not depend on the load of the
    /// machine.
    fn deadline_of(&self, name: StepName) -> Duration {
        match name {
            StepName::Serve | StepName::Control if !self.slowest_serve.is_zero() => {
                let quanta = (self.slowest_serve * 20).as_millis() / QUANTUM.as_millis() + 1;
                let quanta = u32::try_from(quanta).unwrap_or(u32::MAX);
                QUANTUM.saturating_mul(quanta).min(self.deadline)
            }
            _ => self.deadline,
        }
    }

    fn drain(&mut self, step: StepName) -> Reply<()> {
        // After the engine's end the probe may still know the allocator's last events.
        let mut facts = Vec::new();
        let claims = self.engine.drain_claims().map(|drained| facts.extend(drained));
        let log = self.engine.allocator_log().map(|drained| facts.extend(drained));
        let launches = self.engine.launches().map(|drained| {
            facts.extend(drained.into_iter().map(|(rank, fact)| (rank, Fact::Launch(fact))));
        });
        for (rank, fact) in facts {
            if let (StepName::Load, Fact::Application(applied)) = (step, &fact) {
                self.applied.push((rank, applied.clone()));
            }
            self.record(rank, fact);
        }
        claims.and(log).and(launches)
    }

    /// Records what the engine claims now. It is no step of its own, but one that fails is: an
    /// engine that dies meanwhile must not vanish from the evidence.
    ///
    /// # Errors
    /// As [`Driver::step`].
    pub fn claims(&mut self) -> ArmResult<Vec<(Rank, Fact)>> {
        let claims = match self.engine.claims() {
            Ok(claims) => claims,
            Err(error) => return self.step(StepName::ReadBack, |_| Err(error)),
        };
        for (rank, fact) in &claims {
            self.record(*rank, fact.clone());
        }
        Ok(claims)
    }

    /// Serves one request on every replica, as a step each, and records its outputs.
    ///
    /// # Errors
    /// As [`Driver::step`].
    pub fn serve(&mut self, request: &GenerateRequest, repeat: u32) -> ArmResult<()> {
        for request in (0..self.replicas).map(|replica| request.on(replica)) {
            let output = self.step(StepName::Serve, |engine| engine.generate(&request))?;
            self.outputs(&request, repeat, 1, &output);
        }
        Ok(())
    }

    /// Serves requests together on every replica, as a step each, and records the outputs of each.
    ///
    /// # Errors
    /// As [`Driver::step`].
    pub fn serve_batch(&mut self, requests: &[GenerateRequest]) -> ArmResult<()> {
        let batch = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        for replica in 0..self.replicas {
            let own: Vec<_> = requests.iter().map(|request| request.on(replica)).collect();
            let outputs = self.step(StepName::Serve, |engine| engine.generate_batch(&own))?;
            for (request, output) in own.iter().zip(&outputs) {
                self.outputs(request, 0, batch, output);
            }
        }
        Ok(())
    }

    fn outputs(&mut self, request: &GenerateRequest, repeat: u32, batch: u32, output: &Output) {
        let drafts = Some(&output.draft_rows).filter(|rows| !rows.is_empty());
        let drafts = drafts.map(|rows| (Some(RequestStage::Draft), rows));
        for (stage, rows) in std::iter::once((None, &output.rows)).chain(drafts) {
            let fact = LogitsFact {
                request: request.name.clone(),
                mode: request.mode.name().to_owned(),
                adapter: request.adapter.clone(),
                repeat,
                stage,
                batch,
                rows: rows.iter().map(|(position, row)| logits_row(*position, row)).collect(),
                tokens: if stage.is_none() { output.greedy.clone() } else { Vec::new() },
            };
            self.record(Rank::first_of(request.replica), Fact::Logits(fact));
        }
    }

    /// Direct access, for observation inside a step's closure or between steps.
    pub fn engine(&mut self) -> &mut dyn EngineUnderTest {
        &mut *self.engine
    }

    /// Tells the user something.
    pub fn note(&mut self, text: &str) {
        self.recorder.progress().note(text);
    }

    /// Ends the engine and closes the arm.
    pub fn finish(mut self) {
        self.engine.shutdown();
        self.cursor.prune_allocations(self.recorder);
    }
}

fn outcome_of(error: &EngineError) -> StepOutcome {
    match error {
        EngineError::Refused { text } => StepOutcome::Error { text: text.clone() },
        EngineError::Unsupported { what } => StepOutcome::Unsupported { what: what.clone() },
        EngineError::Timeout { deadline_ms, kernel, address } => StepOutcome::Timeout {
            deadline_ms: *deadline_ms,
            kernel: kernel.clone(),
            address: *address,
        },
        EngineError::Died { text, kernel, address } => {
            StepOutcome::Died { text: text.clone(), kernel: kernel.clone(), address: *address }
        }
    }
}

/// A row as evidence has it.
#[must_use]
pub fn logits_row(position: u32, row: &[f32]) -> LogitsRow {
    let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect();
    let digest = digest::content(&bytes);
    if row.len() <= FULL_ROW_MAX {
        let bits = row.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
        return LogitsRow { position, digest, bits: Some(bits), top: Vec::new() };
    }
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
    let top =
        order.into_iter().take(TOP).map(|token| (token, row[token as usize].to_bits())).collect();
    LogitsRow { position, digest, bits: None, top }
}

#[cfg(test)]
mod tests {
    use coldproof_contract::evidence::LaneName;
    use coldproof_contract::words::Topology;

    use super::*;
    use crate::adapters::Absent;
    use crate::recorder::Silent;

    #[test]
    fn claims_that_an_engine_does_not_make_are_a_step_that_failed() {
        let mut recorder = Recorder::new(Instant::now(), &Silent);
        let arm = ArmHeader::new("warm", LaneName::Differential, Topology::SINGLE, None);
        let deadline = Duration::from_secs(1);
        let mut driver =
            Driver::new(Box::new(Absent), &mut recorder, &arm, deadline, Arc::default(), &[]);
        driver.claims().unwrap_err();
        let events = recorder.finish();
        let failed = events.iter().filter(|event| {
            let Fact::Step(step) = &event.fact else { return false };
            step.name == StepName::ReadBack
                && matches!(step.outcome, Some(StepOutcome::Error { .. }))
        });
        assert_eq!(failed.count(), 1);
    }
}
