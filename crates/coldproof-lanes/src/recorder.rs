//! Collects events in the order that evidence files have.

use std::collections::BTreeMap;
use std::time::Instant;

use coldproof_contract::evidence::{ArmHeader, Event, Fact};
use coldproof_contract::words::Rank;

/// Told what is going on, for a progress bar, by every lane that runs.
pub trait Progress: Sync {
    /// A step of an arm begins.
    fn step(&self, arm: &str, step: &str);
    /// Something that the user should know at once.
    fn note(&self, text: &str);
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _arm: &str, _step: &str) {}
    fn note(&self, _text: &str) {}
}

/// The events of a lane.
pub struct Recorder<'p> {
    began: Instant,
    events: Vec<Event>,
    progress: &'p dyn Progress,
}

impl<'p> Recorder<'p> {
    /// An empty recorder of a run that began then.
    pub fn new(began: Instant, progress: &'p dyn Progress) -> Self {
        Self { began, events: Vec::new(), progress }
    }

    /// The progress display.
    #[must_use]
    pub const fn progress(&self) -> &'p dyn Progress {
        self.progress
    }

    /// The events, in the order in which they came.
    #[must_use]
    pub fn finish(self) -> Vec<Event> {
        self.events
    }
}

/// Sorts by (arm, step, rank, seq), with arms in the order of `arms`.
pub fn sort(events: &mut [Event], arms: &[ArmHeader]) {
    let order: BTreeMap<&str, usize> =
        arms.iter().enumerate().map(|(index, header)| (header.arm.as_str(), index)).collect();
    events.sort_by_key(|event| {
        let arm = order.get(event.arm.as_str()).copied().unwrap_or(usize::MAX);
        (arm, event.step, event.rank, event.seq)
    });
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
