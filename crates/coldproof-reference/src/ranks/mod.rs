//! Ranks: threads that share nothing but their collectives and are told what to do one by one.

mod failure;
mod placement;
mod step;
mod tiers;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) use failure::Failure;
pub(crate) use placement::expert_layers;
pub(crate) use step::{Computed, Step, StepImage};
pub(crate) use tiers::{TierConfig, TierKeys, Tiers};
pub(crate) use worker::{Worker, WorkerConfig};

/// How long a rank may take to notice that it was cancelled, before its thread is left behind.
const GRACE: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The ranks of one engine.
#[derive(Debug)]
pub(crate) struct Ranks {
    senders: Vec<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    cancel: Arc<AtomicBool>,
}

impl Ranks {
    /// One thread for each worker. `cancel` is the flag that their devices watch.
    pub(crate) fn start(
        workers: Vec<Worker>,
        cancel: Arc<AtomicBool>,
    ) -> Result<Self, std::io::Error> {
        let mut ranks = Self { senders: Vec::new(), threads: Vec::new(), cancel };
        for (rank, mut worker) in workers.into_iter().enumerate() {
            let (sender, jobs) = channel::<Job>();
            let thread = std::thread::Builder::new().name(format!("rank-{rank}"));
            ranks.threads.push(thread.spawn(move || {
                for job in jobs {
                    job(&mut worker);
                }
            })?);
            ranks.senders.push(sender);
        }
        Ok(ranks)
    }

    /// Lets every rank do the same, and gives their answers in rank order, or the failure that is
    /// nearest to the cause.
    pub(crate) fn each<T, F>(&self, deadline: Duration, call: F) -> Result<Vec<T>, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Worker) -> Result<T, Failure> + Send + Sync + 'static,
    {
        let until = Instant::now() + deadline;
        let call = Arc::new(call);
        let mut answers = Vec::with_capacity(self.senders.len());
        for sender in &self.senders {
            let (answer, receiver) = channel();
            let call = Arc::clone(&call);
            let job: Job = Box::new(move |worker: &mut Worker| {
                worker.device.set_deadline(Some(until));
                // Nobody listens any more where the engine was ended meanwhile.
                let _ = answer.send(call(worker));
            });
            // A thread that is gone is noticed below, by its closed answer channel.
            let _ = sender.send(job);
            answers.push(receiver);
        }
        self.collect(answers, until)
    }

    /// Lets one rank do something.
    pub(crate) fn one<T, F>(&self, rank: usize, deadline: Duration, call: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: FnOnce(&mut Worker) -> Result<T, Failure> + Send + 'static,
    {
        let Some(sender) = self.senders.get(rank) else { return Err(Failure::Lost { rank }) };
        let (answer, receiver) = channel();
        let until = Instant::now() + deadline;
        let job: Job = Box::new(move |worker: &mut Worker| {
            worker.device.set_deadline(Some(until));
            let _ = answer.send(call(worker));
        });
        let _ = sender.send(job);
        wait(&receiver, until + GRACE, rank)?
    }

    fn collect<T>(
        &self,
        answers: Vec<Receiver<Result<T, Failure>>>,
        until: Instant,
    ) -> Result<Vec<T>, Failure> {
        let mut done = Vec::with_capacity(answers.len());
        let mut failures = Vec::new();
        for (rank, receiver) in answers.iter().enumerate() {
            // A kernel that waits ends itself at the deadline and says where it stood, so the
            // grace is for its answer.
            match wait(receiver, until + GRACE, rank) {
                Ok(Ok(answer)) => done.push(answer),
                Ok(Err(failure)) | Err(failure) => {
                    if matches!(failure, Failure::Late { .. }) {
                        self.cancel();
                    }
                    failures.push(failure);
                }
            }
        }
        match failures.into_iter().min_by_key(Failure::distance) {
            Some(failure) => Err(failure),
            None => Ok(done),
        }
    }

    /// Ends every wait of every rank.
    pub(crate) fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Ends the threads; one that does not notice in time is left behind, cancelled.
    pub(crate) fn end(&mut self) {
        self.cancel();
        self.senders.clear();
        let until = Instant::now() + GRACE;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // A panic was already reported as a lost rank.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.end();
    }
}

fn wait<T>(
    receiver: &Receiver<Result<T, Failure>>,
    until: Instant,
    rank: usize,
) -> Result<Result<T, Failure>, Failure> {
    match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(answer) => Ok(answer),
        Err(RecvTimeoutError::Timeout) => Err(Failure::Late { rank }),
        Err(RecvTimeoutError::Disconnected) => Err(Failure::Lost { rank }),
    }
}
