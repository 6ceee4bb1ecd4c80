//! Collects events in the order that evidence files have.

use std::collections::BTreeMap;
use std::time::Instant;

use coldproof_contract::evidence::{Event, Fact};
use coldproof_contract::words::Rank;

/// Told what is going on, for a progress bar.
pub trait Progress {
    /// A step of an arm begins.
    fn step(&mut self, arm: &str, step: &str);
    /// Something that the user should know at once.
    fn note(&mut self, text: &str);
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _arm: &str, _step: &str) {}
    fn note(&mut self, _text: &str) {}
}

/// All events of a run.
pub struct Recorder<'p> {
    began: Instant,
    events: Vec<Event>,
    progress: &'p mut dyn Progress,
}

impl<'p> Recorder<'p> {
    /// An empty recorder.
    pub fn new(progress: &'p mut dyn Progress) -> Self {
        Self { began: Instant::now(), events: Vec::new(), progress }
    }

    /// The progress display.
    pub fn progress(&mut self) -> &mut dyn Progress {
        self.progress
    }

    /// The events, sorted by (arm, step, rank, seq) with arms in the order of `arms`.
    #[must_use]
    pub fn finish(mut self, arms: &[String]) -> Vec<Event> {
        let order: BTreeMap<&str, usize> =
            arms.iter().enumerate().map(|(index, arm)| (arm.as_str(), index)).collect();
        self.events.sort_by_key(|event| {
            let arm = order.get(event.arm.as_str()).copied().unwrap_or(usize::MAX);
            (arm, event.step, event.rank, event.seq)
        });
        self.events
    }
}

/// One arm's place in the recorder.
#[derive(Debug)]
pub struct ArmCursor {
    arm: String,
    step: u32,
    seq: BTreeMap<Rank, u64>,
    first: usize,
}

impl ArmCursor {
    /// The beginning of an arm.
    #[must_use]
    pub fn new(arm: &str, recorder: &Recorder<'_>) -> Self {
        Self { arm: arm.to_owned(), step: 0, seq: BTreeMap::new(), first: recorder.events.len() }
    }

    /// The arm's name.
    #[must_use]
    pub fn arm(&self) -> &str {
        &self.arm
    }

    /// Begins the next step.
    pub fn next_step(&mut self) {
        self.step += 1;
        self.seq.clear();
    }

    /// Records a fact of the present step.
    pub fn record(&mut self, recorder: &mut Recorder<'_>, rank: Rank, fact: Fact) {
        let seq = self.seq.entry(rank).or_default();
        let t = u64::try_from(recorder.began.elapsed().as_nanos()).ok();
        recorder.events.push(Event {
            arm: self.arm.clone(),
            step: self.step,
            rank,
            seq: *seq,
            t,
            fact,
        });
        *seq += 1;
    }

    /// Drops allocator events of this arm that no captured or registered address can depend on,
    /// so that activations do not fill the evidence.
    pub fn prune_allocations(&self, recorder: &mut Recorder<'_>) {
        crate::prune::allocations(&mut recorder.events, self.first, &self.arm);
    }
}
