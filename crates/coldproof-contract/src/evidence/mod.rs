//! Evidence: what lanes drove, what engines claimed, what probes observed. Plain data that can be
//! recorded to a file and judged again without the engine or the checkpoints.

mod census;
mod difference;
mod event;
mod experts;
mod facts;
mod header;
mod provenance;
mod record;
mod view;

pub use census::{CensusFact, census_digest};
pub use difference::{Absence, Comparison, Difference, Holds, PieceDifference, Tally};
pub use event::{Event, Fact};
pub use experts::{ExpertMapFact, ExpertPlacementFact};
pub use facts::{
    AdapterFact, AllocFact, ApplicationFact, ArgAccess, ArgFact, CacheFact, ClaimFact, ControlFact,
    FreeFact, LaunchFact, LogitsFact, LogitsRow, ManifestFact, NodeFact, OriginRun, OriginsFact,
    PhaseFact, PieceContent, PostLoadFact, PostLoadStage, ReadBackFact, ReceiptFact, RegionFact,
    ReorderedFact, RequestStage, SlotFact, SourceReadBackFact, StateFact, StepFact, StepOutcome,
    UncontrolledFact,
};
pub use header::{
    Ability, ArmHeader, CheckpointHeader, EngineHeader, Header, LaneName, RequiredItem, Settings,
    SourceHeader,
};
pub use provenance::{Claimed, Observed, Provenance};
pub use record::{Record, RecordError};
pub use view::{Answers, ArmView, ExpertsKey, PhaseView, Seen, SlotKey, StepView, View};

/// The format version on line 1 of an evidence file.
pub const SCHEMA: &str = "coldproof.evidence/1";
