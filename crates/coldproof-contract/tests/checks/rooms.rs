//! A property for each room: whatever a legal run looks like, it raises nothing, and one fault of
//! the room raises its code at its object, and nothing else.
//!
//! A run that breaks one is kept in `proptest-regressions/` and tried first.

use std::collections::BTreeMap;

use coldproof_contract::evidence::{AllocFact, Event, Fact, FreeFact};
use coldproof_contract::words::{Address, Fragment, Rank, Span, StepName, StorageId};
use proptest::prelude::*;

use crate::strikes::{CACHES, DERIVED, LIFECYCLE, NAMES, Place, ROUTING, STATE, STORAGE, Strike};
use crate::support::{Run, assert_silent, correct_at, model};

/// What may vary without being wrong.
#[derive(Clone, Debug)]
struct Legal {
    tp: u32,
    /// Applications that come in two chunks: which, and where it is cut.
    chunks: Vec<(usize, u64)>,
    /// The order of applications and of registrations.
    order: u64,
    /// Blocks that no graph captured: the arm, where they lie, whether they are freed again.
    strangers: Vec<(usize, u64, bool)>,
    /// Rows that are computed beyond the least, in each request after the update.
    rows: u64,
    /// Entries of the new generation.
    entries: u64,
    /// The value of the configuration, the same everywhere.
    configured: u32,
    /// Names that may be absent, and are.
    optional: Vec<u8>,
}

fn legal() -> impl Strategy<Value = Legal> {
    (
        1_u32..3,
        prop::collection::vec((any::<usize>(), 0_u64..5), 0..40),
        any::<u64>(),
        prop::collection::vec((any::<usize>(), 0_u64..64, any::<bool>()), 0..6),
        0_u64..100,
        0_u64..5,
        any::<u32>(),
        prop::collection::vec(any::<u8>(), 0..3),
    )
        .prop_map(|(tp, chunks, order, strangers, rows, entries, configured, optional)| {
            Legal { tp, chunks, order, strangers, rows, entries, configured, optional }
        })
}

impl Legal {
    fn run(&self) -> Run {
        let mut run = correct_at(self.tp);
        for &(which, at) in &self.chunks {
            cut(&mut run, which, at);
        }
        shuffle(&mut run, self.order, |fact| matches!(fact, Fact::Application(_)));
        shuffle(&mut run, self.order, |fact| matches!(fact, Fact::Slot(_)));
        for &(arm, at, freed) in &self.strangers {
            stranger(&mut run, arm, at, freed);
        }
        for event in &mut run.events {
            self.vary(event);
        }
        run
    }

    fn vary(&self, event: &mut Event) {
        match &mut event.fact {
            Fact::State(state) => state.value = self.configured.to_string(),
            Fact::Cache(cache) => cache.entries = self.entries,
            // Before the update there must be a hit; after it more may be computed, never less.
            Fact::Launch(launch) if event.arm == "caches" && launch.rows > 2 => {
                launch.rows += self.rows;
            }
            Fact::Manifest(manifest) => {
                let names = self.optional.iter().map(|name| format!("optional.{name}"));
                manifest.allowed_missing.extend(names);
            }
            _ => {}
        }
    }
}

/// Cuts one application in two along its first axis; one part may be empty.
fn cut(run: &mut Run, which: usize, at: u64) {
    let applications = |event: &Event| matches!(event.fact, Fact::Application(_));
    let all: Vec<usize> =
        (0..run.events.len()).filter(|&index| applications(&run.events[index])).collect();
    let index = all[which % all.len()];
    let mut second = run.events[index].clone();
    let (Fact::Application(one), Fact::Application(two)) =
        (&mut run.events[index].fact, &mut second.fact)
    else {
        return;
    };
    let parts = |fragment: &Fragment| {
        let Span { start, end } = fragment.0[0];
        let middle = start + at % (end - start + 1);
        [Span::new(start, middle), Span::new(middle, end)]
            .map(|span| fragment.clone().with(0, span))
    };
    [one.source_fragment, two.source_fragment] = parts(&one.source_fragment);
    [one.slot_fragment, two.slot_fragment] = parts(&one.slot_fragment);
    run.events.insert(index, second);
}

/// Puts facts of one kind in another order, within each step of each rank.
fn shuffle(run: &mut Run, mut seed: u64, of: impl Fn(&Fact) -> bool) {
    let mut groups: BTreeMap<(String, u32, Rank), Vec<usize>> = BTreeMap::new();
    for (index, event) in run.events.iter().enumerate() {
        if of(&event.fact) {
            let key = (event.arm.clone(), event.step, event.rank);
            groups.entry(key).or_default().push(index);
        }
    }
    for places in groups.values() {
        for last in (1..places.len()).rev() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            run.events.swap(places[last], places[(seed >> 33) as usize % (last + 1)]);
        }
    }
}

/// A block that nothing of the model lies in is handed out, and perhaps taken back.
fn stranger(run: &mut Run, arm: usize, at: u64, freed: bool) {
    let arm = run.header.arms[arm % run.header.arms.len()].arm.clone();
    let (storage, address) = (StorageId(1_000 + at), Address(0x1_8000 + at * model::BYTES));
    let known = |event: &Event| match &event.fact {
        Fact::Alloc(block) => event.arm == arm && block.address == address,
        _ => false,
    };
    if run.events.iter().any(known) {
        return;
    }
    let block = AllocFact {
        storage,
        address,
        bytes: model::BYTES,
        region: "weights".to_owned(),
        purpose: "activations".to_owned(),
    };
    let mut facts = vec![Fact::Alloc(block)];
    if freed {
        facts.push(Fact::Free(FreeFact { storage, address }));
    }
    run.phase(&arm, "before").add(StepName::Load, Rank::default(), facts);
}

fn fault(strikes: &'static [Strike]) -> impl Strategy<Value = (Legal, Strike, Place)> {
    let place = (any::<usize>(), any::<usize>(), 0_u32..4, 0_usize..1_000)
        .prop_map(|(update, slot, rank, amount)| Place { update, slot, rank, amount });
    (legal(), prop::sample::select(strikes), place)
}

/// The fault is found for what it is, and nothing else is.
fn found_alone((legal, strike, place): &(Legal, Strike, Place)) -> Result<(), TestCaseError> {
    let mut run = legal.run();
    let wanted = (strike.1)(&mut run, *place);
    prop_assert_eq!(run.found(), [wanted]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn legal_runs_raise_nothing(legal in legal()) {
        assert_silent(&legal.run());
    }

    #[test]
    fn storage(fault in fault(STORAGE)) {
        found_alone(&fault)?;
    }

    #[test]
    fn derived(fault in fault(DERIVED)) {
        found_alone(&fault)?;
    }

    #[test]
    fn lifecycle(fault in fault(LIFECYCLE)) {
        found_alone(&fault)?;
    }

    #[test]
    fn state(fault in fault(STATE)) {
        found_alone(&fault)?;
    }

    #[test]
    fn routing(fault in fault(ROUTING)) {
        found_alone(&fault)?;
    }

    #[test]
    fn names(fault in fault(NAMES)) {
        found_alone(&fault)?;
    }

    #[test]
    fn caches(fault in fault(CACHES)) {
        found_alone(&fault)?;
    }
}
