//! Collectives between the ranks of one engine, which are threads.
//!
//! A collective is one exchange: every rank puts in its values and takes out everybody's; what is
//! made of them is computed by each rank alone, in rank order, so that all get the same bits. A
//! rank that is lost, late or elsewhere is an error that names the collective, never a hang.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting rank looks at its cancel flag.
const POLL: Duration = Duration::from_millis(10);

/// Why a collective did not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A rank ended or died.
    #[error("rank {rank} was lost; `{collective}` cannot complete")]
    Lost {
        /// What was waited for.
        collective: &'static str,
        /// The lost rank.
        rank: usize,
    },
    /// The deadline passed.
    #[error("ranks {missing:?} did not reach `{collective}` before the deadline")]
    Late {
        /// What was waited for.
        collective: &'static str,
        /// Ranks that had not arrived.
        missing: Vec<usize>,
    },
    /// The engine was told to stop.
    #[error("`{collective}` was cancelled")]
    Cancelled {
        /// What was waited for.
        collective: &'static str,
    },
    /// Two ranks meet in different collectives or with different sizes.
    #[error(
        "rank {rank} came to `{found}` of {found_len} values where others are in \
             `{collective}` of {expected_len}; all ranks must launch the same kernels"
    )]
    Mismatch {
        /// What the first rank came for.
        collective: &'static str,
        /// Its number of values.
        expected_len: usize,
        /// The rank that differs.
        rank: usize,
        /// What it came for.
        found: &'static str,
        /// Its number of values.
        found_len: usize,
    },
}

/// What every rank put in, in rank order.
pub type Contributions = Arc<Vec<Vec<f32>>>;

#[derive(Debug, Default)]
struct State {
    round: u64,
    /// What the current round is: the collective and how many values a rank puts in.
    tag: Option<(&'static str, usize)>,
    slots: Vec<Option<Vec<f32>>>,
    /// The result of the previous round. A round completes only after every rank came to it, so
    /// nobody still waits for an older result.
    result: Contributions,
    failed: Option<CollectiveError>,
    lost: Option<usize>,
}

#[derive(Debug)]
struct Group {
    state: Mutex<State>,
    changed: Condvar,
}

/// One rank's end of the group. Dropping it means that the rank is lost to the others.
#[derive(Debug)]
pub struct Collective {
    group: Arc<Group>,
    rank: usize,
    ranks: usize,
}

impl Collective {
    /// A group of `ranks` ends, in rank order.
    #[must_use]
    pub fn group(ranks: usize) -> Vec<Self> {
        let state = State { slots: vec![None; ranks], ..State::default() };
        let group = Arc::new(Group { state: Mutex::new(state), changed: Condvar::new() });
        (0..ranks).map(|rank| Self { group: Arc::clone(&group), rank, ranks }).collect()
    }

    /// The only end of a group of one.
    #[must_use]
    pub fn single() -> Self {
        let state = State { slots: vec![None], ..State::default() };
        let group = Arc::new(Group { state: Mutex::new(state), changed: Condvar::new() });
        Self { group, rank: 0, ranks: 1 }
    }

    /// This end's rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// Puts in `values` and takes out what every rank put in. All ranks must put in equally many.
    ///
    /// # Errors
    /// Any [`CollectiveError`]; the group is of no use after one, except after a cancel that only
    /// this rank saw.
    pub fn exchange(
        &self,
        collective: &'static str,
        values: Vec<f32>,
        deadline: Option<Instant>,
        cancel: &AtomicBool,
    ) -> Result<Contributions, CollectiveError> {
        if self.ranks == 1 {
            return Ok(Arc::new(vec![values]));
        }
        let mut state = self.lock();
        self.arrive(&mut state, collective, values)?;
        let round = state.round;
        if state.slots.iter().all(Option::is_some) {
            let all = state.slots.iter_mut().filter_map(Option::take).collect();
            state.result = Arc::new(all);
            state.round += 1;
            state.tag = None;
            self.group.changed.notify_all();
            return Ok(Arc::clone(&state.result));
        }
        self.wait(state, round, collective, deadline, cancel)
    }

    /// Tells the other ranks that this one is lost: their waits end at once.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.lost.get_or_insert(self.rank);
        self.group.changed.notify_all();
    }

    fn arrive(
        &self,
        state: &mut State,
        collective: &'static str,
        values: Vec<f32>,
    ) -> Result<(), CollectiveError> {
        refuse(state, collective)?;
        let found = (collective, values.len());
        let (expected, expected_len) = *state.tag.get_or_insert(found);
        if (expected, expected_len) != found {
            let error = CollectiveError::Mismatch {
                collective: expected,
                expected_len,
                rank: self.rank,
                found: collective,
                found_len: values.len(),
            };
            return Err(self.fail(state, error));
        }
        state.slots[self.rank] = Some(values);
        Ok(())
    }

    fn wait(
        &self,
        mut state: MutexGuard<'_, State>,
        round: u64,
        collective: &'static str,
        deadline: Option<Instant>,
        cancel: &AtomicBool,
    ) -> Result<Contributions, CollectiveError> {
        loop {
            if state.round != round {
                return Ok(Arc::clone(&state.result));
            }
            refuse(&state, collective)?;
            if cancel.load(Ordering::Relaxed) {
                let error = CollectiveError::Cancelled { collective };
                return Err(self.fail(&mut state, error));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let absent = state.slots.iter().enumerate().filter(|(_, slot)| slot.is_none());
                let missing = absent.map(|(rank, _)| rank).collect();
                return Err(self.fail(&mut state, CollectiveError::Late { collective, missing }));
            }
            let pause = left.map_or(POLL, |left| left.min(POLL));
            let woken = self.group.changed.wait_timeout(state, pause);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fail(&self, state: &mut State, error: CollectiveError) -> CollectiveError {
        state.failed.get_or_insert_with(|| error.clone());
        self.group.changed.notify_all();
        error
    }

    /// The state is valid after any panic: every change to it is a single assignment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.group.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Collective {
    fn drop(&mut self) {
        self.abandon();
    }
}

fn refuse(state: &State, collective: &'static str) -> Result<(), CollectiveError> {
    if let Some(error) = &state.failed {
        return Err(error.clone());
    }
    state.lost.map_or(Ok(()), |rank| Err(CollectiveError::Lost { collective, rank }))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    #[test]
    fn every_rank_gets_all_values_in_rank_order_round_after_round() {
        let ends = Collective::group(4);
        thread::scope(|scope| {
            for end in &ends {
                scope.spawn(move || {
                    for round in 0..200u16 {
                        let value = f32::from(round) * 10.0 + end.rank() as f32;
                        let all = end.exchange("x", vec![value], None, &never()).unwrap();
                        let base = f32::from(round) * 10.0;
                        assert_eq!(*all, [0.0, 1.0, 2.0, 3.0].map(|rank| vec![base + rank]));
                    }
                });
            }
        });
    }

    #[test]
    fn a_late_rank_is_named() {
        let ends = Collective::group(3);
        thread::scope(|scope| {
            for end in &ends[..2] {
                scope.spawn(move || {
                    let deadline = Instant::now() + Duration::from_millis(100);
                    let error = end.exchange("all-reduce", vec![], Some(deadline), &never());
                    let missing = vec![2];
                    let late = CollectiveError::Late { collective: "all-reduce", missing };
                    assert_eq!(error, Err(late));
                });
            }
        });
    }

    #[test]
    fn a_lost_rank_frees_those_that_wait() {
        let mut ends = Collective::group(2);
        let lost = ends.pop().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| ends[0].exchange("gather", vec![], None, &never()));
            drop(lost);
            let error = CollectiveError::Lost { collective: "gather", rank: 1 };
            assert_eq!(waiting.join().unwrap(), Err(error));
        });
    }

    #[test]
    fn a_cancel_of_one_frees_all() {
        let ends = Collective::group(3);
        let cancel = AtomicBool::new(false);
        thread::scope(|scope| {
            let first = scope.spawn(|| ends[0].exchange("x", vec![], None, &cancel));
            let second = scope.spawn(|| ends[1].exchange("x", vec![], None, &never()));
            cancel.store(true, Ordering::Relaxed);
            let cancelled = Err(CollectiveError::Cancelled { collective: "x" });
            assert_eq!(first.join().unwrap(), cancelled);
            assert_eq!(second.join().unwrap(), cancelled);
        });
    }

    #[test]
    fn ranks_in_different_collectives_are_told_apart() {
        let ends = Collective::group(2);
        thread::scope(|scope| {
            for end in &ends {
                scope.spawn(move || {
                    let name = ["all-reduce", "gather"][end.rank()];
                    let error = end.exchange(name, vec![0.0], None, &never());
                    assert!(matches!(error, Err(CollectiveError::Mismatch { .. })));
                });
            }
        });
    }
}
