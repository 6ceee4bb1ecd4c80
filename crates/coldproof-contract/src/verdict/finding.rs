//! One finding: what is wrong, where it began and where it went wrong.

use serde::Serialize;

use super::{Category, FindingCode};

/// An event that contradicts, in the reader's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FindingEvent {
    /// `bound`, `captured`, `rebound`, `freed`, `read-back`, …
    pub what: String,
    /// The step it happened in.
    pub step: String,
    /// Its ordinal in the evidence of (arm, step, rank).
    pub seq: u64,
    /// What happened.
    pub text: String,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it counts against.
    pub category: Category,
    /// From the closed list.
    pub code: FindingCode,
    /// The slot, source, cache, layer or step.
    pub object: String,
    /// The first rank it was seen on (global index).
    pub rank: u32,
    /// What a correct engine would have.
    pub expected: String,
    /// What this one has.
    pub actual: String,
    /// Why that is wrong: the chain of dependencies.
    pub why: String,
    /// The requirement it violates.
    pub requirement: String,
    /// All ranks it was seen on.
    pub ranks: Vec<u32>,
    /// The two or three events that contradict.
    pub events: Vec<FindingEvent>,
    /// Where it is reported, when it is listed as known.
    pub known: Option<String>,
}

impl Finding {
    /// A finding on one rank; category and requirement follow from the code.
    #[must_use]
    pub fn new(code: FindingCode, object: impl Into<String>, rank_index: u32) -> Self {
        Self {
            category: code.category(),
            code,
            object: object.into(),
            rank: rank_index,
            expected: String::new(),
            actual: String::new(),
            why: String::new(),
            requirement: code.requirement().to_owned(),
            ranks: vec![rank_index],
            events: Vec::new(),
            known: None,
        }
    }

    /// With what was expected and what was found.
    #[must_use]
    pub fn expected(mut self, expected: impl Into<String>, actual: impl Into<String>) -> Self {
        self.expected = expected.into();
        self.actual = actual.into();
        self
    }

    /// With the reason.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// With one more event.
    #[must_use]
    pub fn event(
        mut self,
        what: impl Into<String>,
        step: impl Into<String>,
        seq: u64,
        text: impl Into<String>,
    ) -> Self {
        self.events.push(FindingEvent {
            what: what.into(),
            step: step.into(),
            seq,
            text: text.into(),
        });
        self
    }
}
