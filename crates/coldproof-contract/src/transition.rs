//! The eight steps of a transition: which may follow which.

use crate::words::StepName;

/// What may follow each step. `None` is the end, or the pause of the next transition.
///
/// Sleep and both wakes come together or not at all: [`check`] sees to that.
pub const FOLLOWS: [(StepName, &[Option<StepName>]); 8] = [
    (StepName::Pause, &[Some(StepName::Sleep), Some(StepName::Update)]),
    (StepName::Sleep, &[Some(StepName::WakeWeights)]),
    (StepName::WakeWeights, &[Some(StepName::Update)]),
    (StepName::Update, &[Some(StepName::Finalize)]),
    (StepName::Finalize, &[Some(StepName::WakeKv), Some(StepName::Invalidate)]),
    (StepName::WakeKv, &[Some(StepName::Invalidate)]),
    (StepName::Invalidate, &[Some(StepName::Resume)]),
    (StepName::Resume, &[None]),
];

/// A step out of order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// The first step is not the pause.
    #[error("a transition begins with pause, not with {step}")]
    Begin {
        /// The first step.
        step: StepName,
    },
    /// A step that may not follow the one before.
    #[error("{step} may not follow {after}; {} may", names(allowed))]
    Order {
        /// The step.
        step: StepName,
        /// The step before it.
        after: StepName,
        /// What may follow that.
        allowed: Vec<StepName>,
    },
    /// The transition ends too soon.
    #[error("the transition ends after {after}; {} must follow", names(allowed))]
    Unfinished {
        /// The last step.
        after: StepName,
        /// What may follow it.
        allowed: Vec<StepName>,
    },
    /// An engine that did not sleep was woken.
    #[error("{step} without a sleep before it")]
    WakeWithoutSleep {
        /// `wake_kv`.
        step: StepName,
    },
    /// An engine that slept was not woken.
    #[error("the engine slept and {missing} was left out before {step}")]
    SleepWithoutWake {
        /// The wake that is missing.
        missing: StepName,
        /// The step that came instead.
        step: StepName,
    },
}

impl TransitionError {
    /// The step that was left out, where leaving it out is all that is wrong.
    #[must_use]
    pub fn left_out(&self) -> Option<StepName> {
        let Self::Order { step, allowed, .. } = self else { return None };
        let [missing] = allowed[..] else { return None };
        followers(missing).contains(&Some(*step)).then_some(missing)
    }
}

fn names(steps: &[StepName]) -> String {
    steps.iter().map(|step| step.name()).collect::<Vec<_>>().join(" or ")
}

fn followers(step: StepName) -> &'static [Option<StepName>] {
    FOLLOWS.iter().find(|(known, _)| *known == step).map_or(&[], |(_, followers)| followers)
}

/// Judges one or more whole transitions. Steps that belong to none (serve, read back, …) may come
/// anywhere. After an error the order is judged from the wrong step on, so that one step out of
/// place is one or two errors and not a cascade.
#[must_use]
pub fn check(steps: &[StepName]) -> Vec<TransitionError> {
    let mut errors = Vec::new();
    let mut before: Option<StepName> = None;
    let mut slept = false;
    let in_table = steps.iter().copied().filter(|step| StepName::TRANSITION.contains(step));
    for step in in_table {
        errors.extend(check_step(before, step, slept));
        slept = match step {
            StepName::Pause => false,
            StepName::Sleep => true,
            _ => slept,
        };
        before = Some(step);
    }
    if let Some(after) = before.filter(|&step| !followers(step).contains(&None)) {
        errors.push(TransitionError::Unfinished { after, allowed: allowed(after, slept) });
    }
    errors
}

fn check_step(before: Option<StepName>, step: StepName, slept: bool) -> Option<TransitionError> {
    let Some(after) = before.filter(|&step| !followers(step).contains(&None)) else {
        return (step != StepName::Pause).then_some(TransitionError::Begin { step });
    };
    if !followers(after).contains(&Some(step)) {
        let allowed = allowed(after, slept);
        return Some(TransitionError::Order { step, after, allowed });
    }
    match (after, step) {
        (StepName::Finalize, StepName::WakeKv) if !slept => {
            Some(TransitionError::WakeWithoutSleep { step })
        }
        (StepName::Finalize, StepName::Invalidate) if slept => {
            Some(TransitionError::SleepWithoutWake { missing: StepName::WakeKv, step })
        }
        _ => None,
    }
}

fn allowed(after: StepName, slept: bool) -> Vec<StepName> {
    let fits = |step: &StepName| match (after, step) {
        (StepName::Finalize, StepName::WakeKv) => slept,
        (StepName::Finalize, StepName::Invalidate) => !slept,
        _ => true,
    };
    followers(after).iter().flatten().copied().filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use StepName as S;

    use super::*;

    const SHORT: [S; 5] = [S::Pause, S::Update, S::Finalize, S::Invalidate, S::Resume];

    #[test]
    fn both_whole_transitions_pass_also_twice_and_among_other_steps() {
        assert_eq!(check(&S::TRANSITION), []);
        assert_eq!(check(&SHORT), []);
        let twice: Vec<S> = S::TRANSITION.into_iter().chain(SHORT).collect();
        assert_eq!(check(&twice), []);
        let among: Vec<S> = SHORT.into_iter().flat_map(|step| [step, S::ReadBack]).collect();
        assert_eq!(check(&among), []);
        assert_eq!(check(&[]), []);
    }

    #[test]
    fn every_other_subset_of_the_steps_fails() {
        for mask in 1_u32..256 {
            let chosen = (0..8).filter(|bit| mask >> bit & 1 == 1);
            let steps: Vec<S> = chosen.map(|bit| S::TRANSITION[bit]).collect();
            let whole = steps == S::TRANSITION || steps == SHORT;
            assert_eq!(check(&steps).is_empty(), whole, "{steps:?}");
        }
    }

    #[test]
    fn every_exchange_of_two_steps_fails() {
        for a in 0..8 {
            for b in a + 1..8 {
                let mut steps = S::TRANSITION;
                steps.swap(a, b);
                assert_ne!(check(&steps), [], "{steps:?}");
            }
        }
    }

    #[test]
    fn errors_name_what_should_have_come() {
        let early = check(&[S::Pause, S::Update, S::Invalidate, S::Resume]);
        let order = TransitionError::Order {
            step: S::Invalidate,
            after: S::Update,
            allowed: vec![S::Finalize],
        };
        assert_eq!(early, [order]);
        let half = check(&[S::Pause, S::Update, S::Finalize, S::WakeKv, S::Invalidate, S::Resume]);
        assert_eq!(half, [TransitionError::WakeWithoutSleep { step: S::WakeKv }]);
        let open = check(&SHORT[..4]);
        let unfinished =
            TransitionError::Unfinished { after: S::Invalidate, allowed: vec![S::Resume] };
        assert_eq!(open, [unfinished]);
    }

    #[test]
    fn one_step_that_was_left_out_is_named_and_an_exchange_leaves_none_out() {
        let left_out = |steps: &[S]| check(steps).iter().filter_map(|e| e.left_out()).next();
        assert_eq!(left_out(&[S::Pause, S::Update, S::Finalize, S::Resume]), Some(S::Invalidate));
        let slept = [&S::TRANSITION[..6], &S::TRANSITION[7..]].concat();
        assert_eq!(left_out(&slept), Some(S::Invalidate));
        assert_eq!(left_out(&[S::Pause, S::Update, S::Invalidate, S::Resume]), Some(S::Finalize));
        assert_eq!(left_out(&[S::Pause, S::Update, S::Resume]), None, "two are missing");
        assert_eq!(left_out(&[S::Pause, S::Finalize, S::Update]), None);
        assert_eq!(left_out(&SHORT), None);
        assert_eq!(left_out(&SHORT[..4]), None);
    }
}
