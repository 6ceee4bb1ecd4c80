//! The verdict: findings, categories, the certificate's face.

mod code;
mod document;
mod finding;

pub use code::{Category, FindingCode, Room};
pub use document::{
    CategoryReport, CheckpointReport, EngineReport, Note, Status, StepReport, TransitionReport,
    Verdict, VerdictKind, WireReport,
};
pub use finding::{Finding, FindingEvent};
