//! Names of steps: what a lane asks an engine to do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One step of a lane. The eight steps of a transition are in [`StepName::TRANSITION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepName {
    /// Start the engine.
    Start,
    /// Cold load of a checkpoint.
    Load,
    /// Capture graphs.
    Capture,
    /// Serve a request.
    Serve,
    /// Stop admitting requests and finish those in flight.
    Pause,
    /// Give device memory back.
    Sleep,
    /// Take device memory for weights.
    WakeWeights,
    /// Write new weights: begin and apply.
    Update,
    /// Post-load, finalisation and commit.
    Finalize,
    /// Take device memory for the KV cache.
    WakeKv,
    /// Empty every cache derived from the old generation.
    Invalidate,
    /// Serve again.
    Resume,
    /// Load an adapter under a name.
    Adapter,
    /// Say where experts are, and move those that are loaded.
    PlaceExperts,
    /// Fill and reuse freed memory.
    Pressure,
    /// Read slots back.
    ReadBack,
    /// Change one live slot in place and replay.
    Control,
    /// End the engine.
    Shutdown,
}

impl StepName {
    /// The transition, in its only order. Sleep and both wakes may be left out together.
    pub const TRANSITION: [Self; 8] = [
        Self::Pause,
        Self::Sleep,
        Self::WakeWeights,
        Self::Update,
        Self::Finalize,
        Self::WakeKv,
        Self::Invalidate,
        Self::Resume,
    ];

    /// The name in evidence and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Load => "load",
            Self::Capture => "capture",
            Self::Serve => "serve",
            Self::Pause => "pause",
            Self::Sleep => "sleep",
            Self::WakeWeights => "wake_weights",
            Self::Update => "update",
            Self::Finalize => "finalize",
            Self::WakeKv => "wake_kv",
            Self::Invalidate => "invalidate",
            Self::Resume => "resume",
            Self::Adapter => "adapter",
            Self::PlaceExperts => "place_experts",
            Self::Pressure => "pressure",
            Self::ReadBack => "read_back",
            Self::Control => "control",
            Self::Shutdown => "shutdown",
        }
    }
}

impl fmt::Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
