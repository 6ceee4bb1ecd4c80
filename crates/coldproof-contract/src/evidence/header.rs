//! The first line of an evidence file: what the run was.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::routing::SourceRule;
use crate::words::{CheckpointLabel, Dtype, Hex128, StepName, Topology};

/// What a run was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`super::SCHEMA`].
    pub schema: String,
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// The engine.
    pub engine: EngineHeader,
    /// Versions, instruction set, graph mode, compile cache.
    pub environment: BTreeMap<String, String>,
    /// What was asked.
    pub settings: Settings,
    /// Checkpoints of the run.
    pub checkpoints: Vec<CheckpointHeader>,
    /// Arms of the run, in order.
    pub arms: Vec<ArmHeader>,
    /// Where the catalogue expects every source: the placement that is judged against.
    pub rules: Vec<SourceRule>,
    /// Notes that belong into the verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Which engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineHeader {
    /// `reference`, `vllm`, …
    pub kind: String,
    /// Its version.
    pub version: String,
    /// The topology asked for.
    pub topology: Topology,
    /// What it has not: what depends on it is not covered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cannot: Vec<Ability>,
}

/// What an engine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ability {
    /// It captures graphs.
    Graphs,
    /// It gives memory back and takes it again.
    Sleep,
    /// It keeps KV blocks by prefix.
    PrefixCache,
}

impl Ability {
    /// Why what depends on it is not covered.
    #[must_use]
    pub const fn absence(self) -> &'static str {
        match self {
            Self::Graphs => "no graphs: the engine captures none",
            Self::Sleep => "no sleep: the engine has none",
            Self::PrefixCache => "no prefix cache: the engine has none",
        }
    }
}

/// What was asked of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// What must be proven.
    pub required: Vec<RequiredItem>,
    /// Lanes that ran.
    pub lanes: Vec<LaneName>,
    /// Faults that were switched on: a run that finds none of them proves nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seeded: Vec<String>,
    /// Steps that the caller left out of every update, as a trainer at fault would.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<StepName>,
    /// Checker modes other than strict, by room name: `warn` or `off`.
    pub modes: BTreeMap<String, String>,
}

/// Something that must be proven: a category 1 to 7, or the transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequiredItem {
    /// A category.
    Category(u8),
    /// The transition.
    Transition,
}

impl Serialize for RequiredItem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Category(number) => serializer.serialize_u8(*number),
            Self::Transition => serializer.serialize_str("transition"),
        }
    }
}

impl<'de> Deserialize<'de> for RequiredItem {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = RequiredItem;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a category from 1 to 7 or \"transition\"")
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<RequiredItem, E> {
                match u8::try_from(value) {
                    Ok(number @ 1..=7) => Ok(RequiredItem::Category(number)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Unsigned(value), &self)),
                }
            }
            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<RequiredItem, E> {
                match value {
                    "transition" => Ok(RequiredItem::Transition),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A lane's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaneName {
    /// Live update against cold load: content, addresses, outputs.
    Differential,
    /// Sentinels on every rank.
    Routing,
    /// Two-way key accounting.
    Names,
    /// A hit on the old generation, then the same request on the new one.
    Caches,
    /// The eight steps.
    Composite,
    /// A hit with one adapter, another under its name, then the same request.
    Adapters,
    /// An update of some slots, the others preserved.
    Partial,
    /// An update that delivers slots as kernels read them.
    Kernel,
    /// Blocks below the KV cache across an update and restarts.
    Tiers,
    /// Experts that move between ranks, and an update after that.
    Placement,
}

impl LaneName {
    /// Whether all of its arms take updates by transaction. The adapters lane loads adapters beside
    /// the weights: an engine that has no other way gives no receipt, and no slot is read.
    #[must_use]
    pub const fn updates_weights(self) -> bool {
        !matches!(self, Self::Adapters)
    }
}

/// A checkpoint of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointHeader {
    /// Its short name.
    pub label: CheckpointLabel,
    /// Where it was read.
    pub path: String,
    /// BLAKE3 over its sorted (name, dtype, shape, digest).
    pub digest: String,
    /// Its tensors, sorted by name.
    pub sources: Vec<SourceHeader>,
    /// The checkpoint whose content this one has under other names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<CheckpointLabel>,
    /// Where its names are expected, if not where [`Header::rules`] say (another spelling, or an
    /// adapter's factors beside the weights).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<SourceRule>,
    /// The checkpoint that this one is with an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<CheckpointLabel>,
}

/// A checkpoint tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceHeader {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// Digest of its content (R61).
    pub digest: Hex128,
    /// Its digest if all its zeros were positive, where it has a negative one and the engine may
    /// hold weights that only a multiplication reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsigned: Option<Hex128>,
}

/// An arm: an engine's life from start to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmHeader {
    /// Its name.
    pub arm: String,
    /// The lane that drives it.
    pub lane: LaneName,
    /// Its topology.
    pub topology: Topology,
    /// The arm whose slots and outputs it must equal, if it is not itself a cold load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
}

impl ArmHeader {
    /// An arm of this name.
    #[must_use]
    pub fn new(arm: &str, lane: LaneName, topology: Topology, against: Option<&str>) -> Self {
        Self { arm: arm.to_owned(), lane, topology, against: against.map(str::to_owned) }
    }
}
