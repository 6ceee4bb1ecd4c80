//! One event of a run.

use serde::{Deserialize, Serialize};

use super::{
    AdapterFact, AllocFact, ApplicationFact, CacheFact, CensusFact, ClaimFact, ControlFact,
    ExpertMapFact, ExpertPlacementFact, FreeFact, LaunchFact, LogitsFact, ManifestFact, NodeFact,
    OriginsFact, PhaseFact, PostLoadFact, Provenance, ReadBackFact, ReceiptFact, RegionFact,
    ReorderedFact, SlotFact, SourceReadBackFact, StateFact, StepFact, UncontrolledFact,
};
use crate::words::{ExpertPlacement, Rank};

/// One line of an evidence file. Events are sorted by (arm, step, rank, seq), not by arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Which arm of the run (an engine's life from start to end).
    pub arm: String,
    /// Ordinal of the lane's step within the arm.
    pub step: u32,
    /// Which rank.
    pub rank: Rank,
    /// Ordinal within (arm, step, rank).
    pub seq: u64,
    /// Nanoseconds since the run began: the one field that two runs with one seed may differ in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub t: Option<u64>,
    /// What happened.
    pub fact: Fact,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Fact {
    /// A step began or ended.
    Step(StepFact),
    /// The lane's label for what follows: which update of the arm this is.
    Phase(PhaseFact),
    /// The caller sealed what an update promises.
    Manifest(ManifestFact),
    /// The lane loads an adapter under a name.
    Adapter(AdapterFact),
    /// The lane ordered where experts are from here on.
    ExpertsPlaced(ExpertPlacement),
    /// A slot, as the engine registers it.
    Slot(SlotFact),
    /// The allocator handed out a block.
    Alloc(AllocFact),
    /// The allocator took a block back.
    Free(FreeFact),
    /// A region of addresses was mapped or unmapped.
    Region(RegionFact),
    /// One kernel of a captured graph, with what it retains.
    Node(NodeFact),
    /// Kernels that ran.
    Launch(LaunchFact),
    /// The engine says it wrote a source fragment into a slot fragment.
    Application(ApplicationFact),
    /// The engine says it finished a layer.
    PostLoad(PostLoadFact),
    /// Configuration or backend state, as the engine states it.
    State(StateFact),
    /// A cache, as the engine states it.
    Cache(CacheFact),
    /// Where experts are, as the engine states it.
    ExpertPlacement(ExpertPlacementFact),
    /// The map of experts, read by the probe.
    ExpertMap(ExpertMapFact),
    /// A slot's bytes, read by the probe.
    ReadBack(ReadBackFact),
    /// A checkpoint tensor, put together again from all ranks' slots.
    SourceReadBack(SourceReadBackFact),
    /// Where a slot's elements came from, decoded from sentinels.
    Origins(OriginsFact),
    /// The same, in the order in which the engine stores the elements of a slot that it packs.
    Order(OriginsFact),
    /// Such a slot's elements put in a cold load's order.
    Reordered(ReorderedFact),
    /// Outputs.
    Logits(LogitsFact),
    /// Positive control: one live slot changed in place, then the replay.
    Control(ControlFact),
    /// The lane tried no positive control on a live slot.
    Uncontrolled(UncontrolledFact),
    /// A captured graph, counted again.
    Census(CensusFact),
    /// Anything else an engine says of itself.
    Claim(ClaimFact),
    /// What one rank says it saw of a transaction.
    Receipt(ReceiptFact),
}

impl Fact {
    /// Who says so.
    #[must_use]
    pub const fn provenance(&self) -> Provenance {
        match self {
            Self::Step(_)
            | Self::Phase(_)
            | Self::Manifest(_)
            | Self::Adapter(_)
            | Self::ExpertsPlaced(_)
            | Self::Uncontrolled(_) => Provenance::Driven,
            Self::Slot(_)
            | Self::Application(_)
            | Self::PostLoad(_)
            | Self::State(_)
            | Self::Cache(_)
            | Self::ExpertPlacement(_)
            | Self::Claim(_)
            | Self::Receipt(_) => Provenance::Claimed,
            Self::Alloc(_)
            | Self::Free(_)
            | Self::Region(_)
            | Self::Node(_)
            | Self::Launch(_)
            | Self::ExpertMap(_)
            | Self::ReadBack(_)
            | Self::SourceReadBack(_)
            | Self::Origins(_)
            | Self::Order(_)
            | Self::Reordered(_)
            | Self::Logits(_)
            | Self::Control(_)
            | Self::Census(_) => Provenance::Observed,
        }
    }
}
