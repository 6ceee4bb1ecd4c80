//! 100,000 legal histories of applications, and some with faults. Bytes decide which are legal; the
//! ledger must agree.

use std::sync::LazyLock;

use coldproof_contract::lifecycle::{ApplicationIdentity, Ledger, LedgerError, ManifestDraft};
use coldproof_contract::routing::Placement;
use coldproof_contract::words::{Fragment, Rank, Span, Topology};
use proptest::prelude::*;

use crate::copier::{Memory, Write, copied, wanted};
use crate::layouts::{Layout, all, parse_box};

/// The hand-written moves of a layout: its shortest legal history.
pub(crate) fn moves(layout: &Layout) -> Vec<Write> {
    let parse = |rank: u32, text: &str| {
        let (from, to) = text.split_once(' ').expect("a move has two boxes");
        let (source, source_fragment) = parse_box(from);
        let (slot, slot_fragment) = parse_box(to);
        let slot = slot.as_str().into();
        let application = ApplicationIdentity { source, source_fragment, slot, slot_fragment };
        Write { rank, application }
    };
    let tables = layout.tables.iter();
    tables.flat_map(|table| table.moves.iter().map(move |text| parse(table.rank, text))).collect()
}

fn ledgers(layout: &Layout) -> Vec<Ledger> {
    let placement = Placement::of(&layout.rules, Topology::tensor(layout.tp))
        .expect("a layout that can be placed");
    let ledger = |tp| {
        let mut draft = ManifestDraft::of(&placement, Rank::tensor(tp), |_| true);
        for (alias, owner) in layout.aliases {
            draft = draft.with_alias((*alias).into(), (*owner).into());
        }
        Ledger::seal(&draft.seal().expect("a promise without contradictions"))
    };
    (0..layout.tp).map(ledger).collect()
}

/// A layout with what every history of it is held against.
struct Known {
    layout: Layout,
    moves: Vec<Write>,
    ledgers: Vec<Ledger>,
    wanted: Memory,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.layout.name)
    }
}

impl Known {
    fn new(layout: Layout) -> Self {
        let (moves, ledgers, wanted) = (moves(&layout), ledgers(&layout), wanted(&layout));
        Self { layout, moves, ledgers, wanted }
    }

    /// Everything that the ledgers of all ranks have to say of a history.
    fn judged(&self, history: &[Write]) -> Vec<LedgerError> {
        let mut ledgers = self.ledgers.clone();
        let mut errors = Vec::new();
        for write in history {
            let ledger = &mut ledgers[write.rank as usize];
            errors.extend(ledger.record_named(&write.application).err());
        }
        errors.extend(ledgers.iter().flat_map(Ledger::finish));
        errors
    }

    /// Whether the bytes that a history leaves behind are those of the tables.
    fn is_legal(&self, history: &[Write]) -> bool {
        copied(&self.layout, history) == self.wanted
    }

    fn history(&self, splits: &[Place], seed: u64) -> Vec<Write> {
        let mut history = self.moves.clone();
        for &place in splits {
            split(&mut history, place);
        }
        shuffle(&mut history, seed);
        history
    }
}

/// Every layout.
static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| all().into_iter().map(Known::new).collect());

/// One of them.
fn known() -> impl Strategy<Value = &'static Known> {
    (0..KNOWN.len()).prop_map(|index| &KNOWN[index])
}

/// Where a split or a fault strikes; every number is taken modulo what there is.
#[derive(Clone, Copy, Debug)]
struct Place {
    write: usize,
    axis: usize,
    at: u64,
}

fn places(count: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<Place>> {
    let place = (0_usize..64, 0_usize..3, 0_u64..8);
    proptest::collection::vec(place, count).prop_map(|all| {
        all.into_iter().map(|(write, axis, at)| Place { write, axis, at }).collect()
    })
}

/// Cuts one application in two along an axis that both sides share; one part may be empty.
fn split(history: &mut Vec<Write>, place: Place) {
    if history.is_empty() {
        return;
    }
    let at = place.write % history.len();
    let whole = history[at].clone();
    let (from, to) = (&whole.application.source_fragment, &whole.application.slot_fragment);
    let axes = from.0.len().min(to.0.len());
    if axes == 0 {
        return;
    }
    let axis = 1 + place.axis % axes;
    let length = place.at % (from.0[from.0.len() - axis].len() + 1);
    let cut = |fragment: &Fragment, first: bool| {
        let axis = fragment.0.len() - axis;
        let span = fragment.0[axis];
        let middle = span.start + length;
        let part = if first { (span.start, middle) } else { (middle, span.end) };
        fragment.clone().with(axis, part.into())
    };
    let part = |first| {
        let mut part = whole.clone();
        part.application.source_fragment = cut(from, first);
        part.application.slot_fragment = cut(to, first);
        part
    };
    history[at] = part(true);
    history.push(part(false));
}

/// An order of the history that depends on the seed alone.
fn shuffle(history: &mut [Write], mut seed: u64) {
    for last in (1..history.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        history.swap(last, (seed >> 33) as usize % (last + 1));
    }
}

/// Moves a span by one, or grows or shrinks it by one.
fn shift(fragment: &mut Fragment, place: Place) {
    if fragment.0.is_empty() {
        return;
    }
    let axis = place.axis % fragment.0.len();
    let Span { start, end } = fragment.0[axis];
    fragment.0[axis] = match place.at % 4 {
        0 => Span::new(start + 1, end + 1),
        1 => Span::new(start.saturating_sub(1), end.saturating_sub(1).max(start.saturating_sub(1))),
        2 => Span::new(start, end + 1),
        _ => Span::new(start, end.saturating_sub(1).max(start)),
    };
}

/// What may go wrong. Not every fault changes the bytes everywhere: that is for the copier to say.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Drop,
    Repeat,
    /// The number of applications stays right.
    DropOneRepeatAnother,
    WrongShard,
    WrongSource,
    ShiftSlot,
    ShiftSource,
    ShiftBoth,
    ExchangeSlots,
    UnknownSource,
    UnknownSlot,
    /// An outer and an inner loader report one write, the second by another name of the slot.
    RepeatByAnotherName,
}

const FAULTS: [Fault; 12] = [
    Fault::Drop,
    Fault::Repeat,
    Fault::DropOneRepeatAnother,
    Fault::WrongShard,
    Fault::WrongSource,
    Fault::ShiftSlot,
    Fault::ShiftSource,
    Fault::ShiftBoth,
    Fault::ExchangeSlots,
    Fault::UnknownSource,
    Fault::UnknownSlot,
    Fault::RepeatByAnotherName,
];

fn strike(layout: &Layout, history: &mut Vec<Write>, fault: Fault, place: Place) {
    if history.is_empty() {
        return;
    }
    let count = history.len();
    let (at, other) = (place.write % count, (place.write + 1 + place.axis) % count);
    let second = history[other].application.clone();
    let write = &mut history[at];
    let application = &mut write.application;
    let empty = application.source_fragment.volume() == 0;
    match fault {
        Fault::Drop => drop(history.remove(at)),
        Fault::Repeat => history.insert(other, history[at].clone()),
        Fault::DropOneRepeatAnother => history[at] = history[other].clone(),
        Fault::WrongShard => write.rank = (write.rank + 1) % layout.tp,
        Fault::WrongSource => {
            let rule = place.at as usize % layout.rules.len();
            application.source.clone_from(&layout.rules[rule].source);
        }
        Fault::ShiftSlot => shift(&mut application.slot_fragment, place),
        Fault::ShiftSource => shift(&mut application.source_fragment, place),
        Fault::ShiftBoth => {
            shift(&mut application.slot_fragment, place);
            shift(&mut application.source_fragment, place);
        }
        Fault::ExchangeSlots => {
            let own = std::mem::replace(&mut application.slot_fragment, second.slot_fragment);
            history[other].application.slot_fragment = own;
        }
        // An unknown name without elements leaves no bytes to judge by; see the test of names.
        Fault::UnknownSource if !empty => application.source = "unknown".to_owned(),
        Fault::UnknownSlot if !empty => application.slot = "unknown".into(),
        Fault::UnknownSource | Fault::UnknownSlot => {}
        Fault::RepeatByAnotherName => {
            let mut again = write.clone();
            for (alias, owner) in layout.aliases {
                let name = again.application.slot.0.as_str();
                let renamed = if name == *owner { alias } else { owner };
                again.application.slot = (*renamed).into();
            }
            history.push(again);
        }
    }
}

fn is_unknown(write: &Write) -> bool {
    write.application.source == "unknown" || write.application.slot.0 == "unknown"
}

fn is_empty(write: &Write) -> bool {
    let application = &write.application;
    application.source_fragment.volume() == 0 && application.slot_fragment.volume() == 0
}

/// A history that breaks one of these is kept in `proptest-regressions/` and tried first.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig::with_cases(cases)
}

proptest! {
    #![proptest_config(config(100_000))]

    #[test]
    fn legal_histories_are_silent(known in known(), splits in places(0..12), seed: u64) {
        let history = known.history(&splits, seed);
        prop_assert!(known.is_legal(&history));
        prop_assert_eq!(known.judged(&history), []);
    }
}

proptest! {
    #![proptest_config(config(5_000))]

    #[test]
    fn the_ledger_finds_one_fault_exactly_where_bytes_do(
        known in known(),
        splits in places(0..6),
        seed: u64,
        fault in proptest::sample::select(&FAULTS[..]),
        place in places(1),
    ) {
        let mut history = known.history(&splits, seed);
        strike(&known.layout, &mut history, fault, place[0]);
        let errors = known.judged(&history);
        prop_assert_eq!(errors.is_empty(), known.is_legal(&history), "{:?}", errors);
    }
}

proptest! {
    #![proptest_config(config(4_000))]

    #[test]
    fn the_ledger_finds_several_faults_exactly_where_bytes_do(
        known in known(),
        splits in places(0..4),
        seed: u64,
        faults in proptest::collection::vec(proptest::sample::select(&FAULTS[..]), 2..4),
        places in places(4),
    ) {
        let mut history = known.history(&splits, seed);
        for (fault, place) in faults.into_iter().zip(places) {
            strike(&known.layout, &mut history, fault, place);
        }
        // One fault may take the elements away that another would have written under a wrong name:
        // then no byte tells of the name. See the test of names.
        history.retain(|write| !(is_unknown(write) && is_empty(write)));
        let errors = known.judged(&history);
        prop_assert_eq!(errors.is_empty(), known.is_legal(&history), "{:?}", errors);
    }
}

/// A property over histories shows nothing unless both kinds of history come up.
#[test]
fn every_fault_changes_bytes_somewhere_and_some_change_none() {
    let mut harmless = 0;
    for fault in FAULTS {
        let mut harmful = 0;
        for known in KNOWN.iter() {
            for write in 0..8 {
                let place = Place { write, axis: write % 3, at: write as u64 };
                let mut history = known.history(&[place], 7);
                strike(&known.layout, &mut history, fault, place);
                if known.is_legal(&history) {
                    harmless += 1;
                } else {
                    harmful += 1;
                }
            }
        }
        assert!(harmful > 0, "{fault:?}");
    }
    assert!(harmless > 0);
}

/// The layout of this name.
fn layout(name: &str) -> &'static Known {
    KNOWN.iter().find(|known| known.layout.name.starts_with(name)).expect("a layout")
}

/// Errors of a history of one layout after a change by hand.
fn after(name: &str, change: impl Fn(&mut Vec<Write>)) -> Vec<LedgerError> {
    let known = layout(name);
    let mut history = known.moves.clone();
    change(&mut history);
    let errors = known.judged(&history);
    assert_eq!(errors.is_empty(), known.is_legal(&history));
    errors
}

fn spans(spans: &[(u64, u64)]) -> Fragment {
    Fragment(spans.iter().map(|&span| span.into()).collect())
}

#[test]
fn a_dropped_application_is_missing_exactly() {
    let errors = after("gate and up", |history| {
        split(history, Place { write: 1, axis: 1, at: 1 });
        history.remove(1);
    });
    let [LedgerError::Missing { source_name, elements, pieces, .. }] = errors.as_slice() else {
        panic!("{errors:?}");
    };
    assert_eq!((source_name.as_str(), *elements), ("u", 1));
    assert_eq!(pieces[0].source_fragment, spans(&[(0, 1), (0, 1)]));
    assert_eq!(pieces[0].slot_fragment, spans(&[(3, 4), (0, 1)]));
}

#[test]
fn a_repeat_is_a_duplicate_and_a_larger_repeat_an_overlap() {
    let errors = after("column", |history| history.push(history[0].clone()));
    assert!(matches!(errors.as_slice(), [LedgerError::Duplicate { .. }]), "{errors:?}");
    let errors = after("column", |history| {
        let whole = history[0].clone();
        split(history, Place { write: 0, axis: 1, at: 1 });
        history.push(whole);
    });
    assert!(matches!(errors.as_slice(), [LedgerError::Overlapping { .. }]), "{errors:?}");
}

#[test]
fn another_name_of_the_slot_hides_no_repeat() {
    let errors = after("tied", |history| {
        let mut again = history[0].clone();
        again.application.slot = "embed".into();
        history.push(again);
    });
    assert!(matches!(errors.as_slice(), [LedgerError::Duplicate { .. }]), "{errors:?}");
}

#[test]
fn a_wrong_expert_or_half_is_told_where_its_elements_belong() {
    for (from, to) in [(0, 1), (0, 2)] {
        let errors = after("2 experts", |history| {
            let target = history[to].application.slot_fragment.clone();
            history[from].application.slot_fragment = target;
            history.remove(to);
        });
        let home = errors.iter().find_map(|error| match error {
            LedgerError::UnexpectedFragment { belongs, .. } => belongs.clone(),
            _ => None,
        });
        assert_eq!(home, Some(spans(&[(0, 1), (0, 1), (0, 3)])));
        assert_eq!(errors.len(), 3, "misplaced, and both halves missing: {errors:?}");
    }
}

#[test]
fn fewer_elements_on_one_side_are_undersized() {
    let errors = after("row", |history| {
        history[0].application.slot_fragment.0[1].end -= 1;
    });
    let [LedgerError::Undersized { source_elements: 6, slot_elements: 4, .. }, missing] =
        errors.as_slice()
    else {
        panic!("{errors:?}");
    };
    assert!(matches!(missing, LedgerError::Missing { elements: 6, .. }));
}

#[test]
fn a_surplus_on_one_rank_makes_up_for_no_gap_on_another() {
    let errors = after("replicated", |history| history[1].rank = 0);
    let [LedgerError::Duplicate { .. }, LedgerError::Missing { .. }] = errors.as_slice() else {
        panic!("{errors:?}");
    };
}

#[test]
fn unknown_names_are_unexpected_even_without_elements() {
    let column = layout("column");
    let mut ledger = column.ledgers[0].clone();
    let mut application = column.moves[0].application.clone();
    application.source_fragment = spans(&[(0, 0), (0, 2)]);
    application.slot_fragment = spans(&[(0, 0), (0, 2)]);
    assert_eq!(ledger.record_named(&application), Ok(()));
    application.source = "x".to_owned();
    let unexpected = ledger.record_named(&application);
    assert!(matches!(unexpected, Err(LedgerError::UnexpectedSource { .. })));
    application.source = "c".to_owned();
    application.slot = "y".into();
    let unexpected = ledger.record_named(&application);
    assert!(matches!(unexpected, Err(LedgerError::UnexpectedSlot { .. })));
}

#[test]
fn a_refused_application_changes_nothing() {
    let column = layout("column");
    let mut ledger = column.ledgers[0].clone();
    let whole = column.moves[0].application.clone();
    let mut half = whole.clone();
    half.source_fragment.0[0] = Span::new(0, 2);
    half.slot_fragment.0[0] = Span::new(0, 2);
    ledger.record_named(&half).unwrap();
    assert!(ledger.record_named(&whole).is_err());
    let mut rest = whole;
    rest.source_fragment.0[0] = Span::new(2, 3);
    rest.slot_fragment.0[0] = Span::new(2, 3);
    ledger.record_named(&rest).unwrap();
    assert_eq!(ledger.finish(), []);
    assert_eq!(ledger.applications(), 2);
}

#[test]
fn an_application_of_nothing_counts_for_nothing() {
    let piece = |fragment: &[(u64, u64)]| ApplicationIdentity {
        source: "w".to_owned(),
        source_fragment: spans(fragment),
        slot: "w".into(),
        slot_fragment: spans(fragment),
    };
    let draft = ManifestDraft { pieces: vec![piece(&[(0, 2)])], ..ManifestDraft::default() };
    let mut ledger = Ledger::seal(&draft.seal().unwrap());
    assert_eq!(ledger.record_named(&piece(&[(0, 0)])), Ok(()));
    let backwards = ledger.record_named(&piece(&[(2, 1)]));
    assert!(matches!(backwards, Err(LedgerError::UnexpectedFragment { .. })), "{backwards:?}");
    assert_eq!((ledger.applications(), ledger.finish().len()), (0, 1));
    assert_eq!(ledger.record_named(&piece(&[(0, 2)])), Ok(()));
    assert_eq!((ledger.applications(), ledger.finish().len()), (1, 0));
}

#[test]
fn elements_without_a_stated_place_are_located_or_ambiguous() {
    let two = |slot_start: u64| ApplicationIdentity {
        source: "w".to_owned(),
        source_fragment: spans(&[(0, 2)]),
        slot: "twice".into(),
        slot_fragment: spans(&[(slot_start, slot_start + 2)]),
    };
    let sealed = |pieces: Vec<ApplicationIdentity>| {
        let draft = ManifestDraft { pieces, ..ManifestDraft::default() };
        Ledger::seal(&draft.seal().unwrap())
    };
    let located = |ledger: &Ledger| {
        let (source, slot) = (ledger.source("w").unwrap(), ledger.slot(&"twice".into()).unwrap());
        ledger.locate(source, &spans(&[(1, 2)]), slot)
    };
    assert_eq!(located(&sealed(vec![two(4)])), Ok(spans(&[(5, 6)])));
    let ambiguous = located(&sealed(vec![two(0), two(4)]));
    assert!(matches!(ambiguous, Err(LedgerError::Ambiguous { .. })), "{ambiguous:?}");
}
