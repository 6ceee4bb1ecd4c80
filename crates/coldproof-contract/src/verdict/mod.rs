//! The verdict: findings, categories, the certificate's face.

mod case;
mod certify;
mod code;
mod document;
mod finding;
mod generations;
mod judge;
mod known;
mod outputs;
mod refused;
mod stated;
mod transition;

pub use case::{Case, Coverage, Site, symptom};
pub use code::{Category, FindingCode, Room};
pub use document::{
    CategoryReport, CertificateReport, CheckpointReport, EngineReport, Note, Status, StepReport,
    TransitionReport, Verdict, VerdictKind, WireReport,
};
pub use finding::{Finding, FindingEvent};
pub(crate) use generations::passed_over;
pub use judge::judge;
pub use known::{Listed, accept};
pub(crate) use outputs::{distance, noise};
