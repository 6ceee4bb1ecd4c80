//! `verdict.json`, field for field. Fields are added, never renamed or removed within `/1`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Finding;
use crate::evidence::RequiredItem;
use crate::words::Topology;

/// The outcome of one category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nothing in the evidence contradicts, and the path was exercised.
    Pass,
    /// A finding.
    Fail,
    /// Noise, a claim that nothing confirms, or a path that was not exercised.
    Undecided,
    /// No evidence.
    NotCovered,
}

/// The outcome of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// All that is required is proven.
    Pass,
    /// A finding in any category.
    Fail,
    /// No finding, but something required is undecided or not covered.
    Undecided,
}

/// Which engine was judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineReport {
    /// `reference`, `vllm`, …
    pub kind: String,
    /// Its version.
    pub version: String,
    /// The topology asked for.
    pub topology: Topology,
}

/// Which checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointReport {
    /// Where it was read.
    pub path: String,
    /// Its digest.
    pub digest: String,
}

/// One category.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CategoryReport {
    /// 1 to 7.
    pub category: u8,
    /// Its title.
    pub name: &'static str,
    /// The outcome.
    pub status: Status,
    /// Comparisons of observed facts that were made.
    pub checks: u64,
    /// Why undecided or not covered; what was proven, otherwise.
    pub reason: Option<String>,
    /// The topology it was judged at, where it is not the run's.
    pub topology: Option<Topology>,
}

/// One step of the transition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// Its name.
    pub step: &'static str,
    /// How long it took, in milliseconds; absent where the evidence has no times.
    pub ms: Option<f64>,
}

/// The transition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransitionReport {
    /// The outcome.
    pub status: Status,
    /// Steps, in the order they were taken.
    pub steps: Vec<StepReport>,
    /// Comparisons that were made.
    pub checks: u64,
    /// Why undecided or not covered.
    pub reason: Option<String>,
    /// Undecided for no other reason than outputs that differ as findings explain.
    pub explained: bool,
}

/// The wire.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WireReport {
    /// The outcome.
    pub status: Status,
}

/// Something worth knowing that is no finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// `resource`, `known`, `control`, `setting`.
    pub kind: String,
    /// The note.
    pub text: String,
}

/// What the receipts of all ranks certify of the last update to the new checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CertificateReport {
    /// The transaction.
    pub transaction: u64,
    /// The checkpoint that it certifies, where that is not B alone: some slots of B, or B with an
    /// adapter.
    pub checkpoint: Option<String>,
    /// The engine's own number of the generation: a label.
    pub generation: u64,
    /// BLAKE3 of the sorted (slot, rank, content) that was read back: evidence.
    pub identity: String,
    /// Ranks that gave whole receipts (global index).
    pub ranks: Vec<u32>,
    /// Checks that could have failed, by category that was proven here.
    pub proven: BTreeMap<u8, u64>,
    /// Reasons, by category that was not proven here.
    pub not_proven: BTreeMap<u8, String>,
}

/// `verdict.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// `coldproof.verdict/1`.
    pub schema: &'static str,
    /// The outcome.
    pub verdict: VerdictKind,
    /// The engine.
    pub engine: EngineReport,
    /// The old checkpoint.
    pub from: Option<CheckpointReport>,
    /// The new checkpoint.
    pub to: Option<CheckpointReport>,
    /// Seven, in order.
    pub categories: Vec<CategoryReport>,
    /// The transition.
    pub transition: TransitionReport,
    /// All findings, by category.
    pub findings: Vec<Finding>,
    /// The wire.
    pub wire: WireReport,
    /// Slots and parts that no output of the run depends on.
    pub unseen: Vec<String>,
    /// Largest difference between repeats of one request, by arm.
    pub noise: BTreeMap<String, f64>,
    /// Checker modes other than strict.
    pub modes: BTreeMap<String, String>,
    /// The seed.
    pub seed: u64,
    /// What was required.
    pub required: Vec<RequiredItem>,
    /// Versions, graph mode, compile cache.
    pub environment: BTreeMap<String, String>,
    /// Notes.
    pub notes: Vec<Note>,
    /// The generation that the certificate is bound to, derived from content.
    pub generation: Option<String>,
    /// The certificate; absent where a rank's receipt is not whole, or on a finding.
    pub certificate: Option<CertificateReport>,
    /// How long the run took; absent where the evidence has no times.
    pub elapsed_ms: Option<f64>,
}
