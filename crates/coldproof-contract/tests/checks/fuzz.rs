//! Evidence that is nearly sound: it is refused with one reason, or judged, and nothing panics.

use std::sync::LazyLock;

use coldproof_contract::evidence::{Record, RecordError};
use coldproof_contract::verdict::{VerdictKind, judge};
use proptest::prelude::*;
use serde_json::Value;

use crate::record::{read, sealed, written};
use crate::support::correct_at;
use crate::support::mutate::{Change, changes};

/// What is done to whole lines; numbers are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
enum Lines {
    Drop(usize),
    Repeat(usize, usize),
    Exchange(usize, usize),
}

fn lines() -> impl Strategy<Value = Vec<Lines>> {
    let line = prop_oneof![
        any::<usize>().prop_map(Lines::Drop),
        (any::<usize>(), any::<usize>()).prop_map(|(from, to)| Lines::Repeat(from, to)),
        (any::<usize>(), any::<usize>()).prop_map(|(one, two)| Lines::Exchange(one, two)),
    ];
    prop::collection::vec(line, 0..4)
}

/// A reader says why in one sentence; a judge comes to a verdict, and one of a record that lost a
/// lane or an arm is never better than what it saw.
fn answered(result: Result<Record, RecordError>) -> Option<VerdictKind> {
    match result {
        Ok(record) => Some(judge(&record).verdict),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// Numbers the events anew, so that the order is not what a reader stumbles over.
fn numbered(lines: &mut [String]) {
    let end = lines.len() - 1;
    for (seq, line) in lines[..end].iter_mut().enumerate().skip(1) {
        let Ok(mut event) = serde_json::from_str::<Value>(line) else { continue };
        if let Some(event) = event.as_object_mut() {
            event.insert("seq".to_owned(), seq.into());
        }
        *line = event.to_string();
    }
}

/// The lines of a run at tp 1 and of one at tp 2.
static WRITTEN: LazyLock<[Vec<String>; 2]> =
    LazyLock::new(|| [1, 2].map(|tp| written(&correct_at(tp).record())));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bytes_that_are_no_evidence_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Record::read(&mut bytes.as_slice()).is_err());
    }

    #[test]
    fn one_changed_byte_is_refused(
        at in any::<usize>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = WRITTEN[0].join("\n").into_bytes();
        let at = at % bytes.len();
        prop_assume!(bytes[at] != byte);
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        prop_assert!(Record::read(&mut bytes.as_slice()).is_err());
    }

    #[test]
    fn changed_events_are_refused_or_judged(
        tp in 0_usize..2,
        changes in prop::collection::vec((any::<usize>(), changes(1..3)), 1..12),
        moves in lines(),
    ) {
        let mut lines = WRITTEN[tp].clone();
        let events = lines.len() - 2;
        for (at, changes) in changes {
            let line = &mut lines[1 + at % events];
            let mut event: Value = serde_json::from_str(line).unwrap();
            // What happened, and nothing around it: the rest only says where it stands.
            changes.into_iter().for_each(|change: Change| change.make(&mut event["fact"]));
            *line = event.to_string();
        }
        for change in moves {
            let events = lines.len() - 2;
            match change {
                Lines::Drop(at) => drop(lines.remove(1 + at % events)),
                Lines::Repeat(from, to) => {
                    let line = lines[1 + from % events].clone();
                    lines.insert(1 + to % events, line);
                }
                Lines::Exchange(one, two) => lines.swap(1 + one % events, 1 + two % events),
            }
        }
        numbered(&mut lines);
        answered(read(&sealed(&lines)));
    }

    #[test]
    fn a_changed_header_is_refused_or_judged(changes in changes(1..6)) {
        let mut lines = WRITTEN[1].clone();
        let mut header: Value = serde_json::from_str(&lines[0]).unwrap();
        changes.into_iter().for_each(|change| change.make(&mut header));
        lines[0] = header.to_string();
        answered(read(&sealed(&lines)));
    }
}

/// Changes that the reader refuses show nothing of the judge: both must come up.
#[test]
fn changed_events_are_judged_too() {
    let lines = &WRITTEN[0];
    let judged = (1..lines.len() - 1).step_by(8).filter(|&at| {
        let mut lines = lines.clone();
        lines.remove(at);
        answered(read(&sealed(&lines))).is_some()
    });
    assert!(judged.count() > 50);
}

/// What a header promises of sizes is bounded before anything is taken apart.
#[test]
fn sources_of_any_size_are_judged_or_not_without_being_taken_apart() {
    let record = correct_at(2).record();
    for rule in 0..record.header.rules.len() {
        for axis in 0..record.header.rules[rule].shape.len() {
            for size in [32, 46, 62].map(|power| 1_u64 << power) {
                let mut record = record.clone();
                record.header.rules[rule].shape[axis] = size;
                answered(Ok(record));
            }
        }
    }
}
