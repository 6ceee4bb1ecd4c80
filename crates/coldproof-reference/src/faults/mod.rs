//! Ways to make the engine wrong, each with its nearest correct twin.
//!
//! A fault is the bug of one row of the weight-reload RFC, in one object, from the second load on.
//! Its twin reaches the right bytes by another path than the engine's own, close to the fault's.

mod adapters;
mod caches;
mod derived;
mod lifecycle;
pub(crate) mod lying;
mod names;
mod replicas;
mod routing;
mod state;
mod storage;
mod table;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub(crate) use adapters::{close_staged, stage_adapter, write_adapter};
pub(crate) use caches::{FileKeys, file_keys, host_invalidation, invalidation};
pub(crate) use derived::widen_norm;
pub(crate) use lifecycle::{
    apply_head_rows, dispatched, drop_after_full, pack_again, write_experts,
};
pub(crate) use names::{finds, take_fused};
pub(crate) use replicas::{pass_delivery_over, pass_finish_over, passed_over};
pub(crate) use routing::{
    Moved, initial_pieces, misplace_expert, moved, replicated_pieces, rewrites_map, taken_for,
};
pub(crate) use state::{forget_preserved, restore_rotary, split_alias};
pub(crate) use storage::{bind_absorbed, bind_permutation, rebind_parameter, reset_workspace};
pub use table::FAULTS;

/// What the names of a model's text part begin with, where it has others.
const TEXT_PART: &str = "language_model.";

/// A fault of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FaultId {
    /// An absorbed matrix rebound.
    #[serde(rename = "F1.01")]
    F1_01,
    /// A parameter rebound.
    #[serde(rename = "F1.02")]
    F1_02,
    /// Kernel-owned scratch rebound.
    #[serde(rename = "F1.05")]
    F1_05,
    /// A permutation hidden in a closure rebound.
    #[serde(rename = "F1.08")]
    F1_08,
    /// A copy in another dtype not refreshed.
    #[serde(rename = "F2.01")]
    F2_01,
    /// A loader of the layout before post-load.
    #[serde(rename = "F3.01")]
    F3_01,
    /// A loader that is counted twice.
    #[serde(rename = "F3.02")]
    F3_02,
    /// A layer that post-load does not reach.
    #[serde(rename = "F3.05")]
    F3_05,
    /// One source applied twice, another never.
    #[serde(rename = "F3.06")]
    F3_06,
    /// Two names of one storage parted.
    #[serde(rename = "F4.01")]
    F4_01,
    /// A buffer copied back from garbage.
    #[serde(rename = "F4.02")]
    F4_02,
    /// Sizes of captured graphs forgotten.
    #[serde(rename = "F4.03")]
    F4_03,
    /// The choice between graphs and eager launches made anew.
    #[serde(rename = "F4.04")]
    F4_04,
    /// What was to be preserved is gone.
    #[serde(rename = "F4.06")]
    F4_06,
    /// A replicated parameter cut like a sharded one.
    #[serde(rename = "F5.01")]
    F5_01,
    /// A name with a level that no checkpoint has.
    #[serde(rename = "F6.01")]
    F6_01,
    /// Fused keys skipped in silence.
    #[serde(rename = "F6.02")]
    F6_02,
    /// A prefix cache that outlives its weights.
    #[serde(rename = "F7.02")]
    F7_02,
    /// Encoder outputs that outlive their weights.
    #[serde(rename = "F7.03")]
    F7_03,
    /// States of a recurrence that outlive their weights.
    #[serde(rename = "F7.04")]
    F7_04,
    /// What is packed already packed again.
    R23,
    /// Ranks that take each other's shards.
    R32,
    /// A host KV tier that outlives its weights.
    R38,
    /// A file KV tier whose keys number the weights.
    R41,
    /// A replica that an update does not reach.
    R43,
    /// Weights that are published without the adapter that came with them.
    R47,
    /// Weights of what drafts passed over.
    R50,
    /// A file KV tier whose keys name the model and no weights.
    R59,
    /// An adapter's scale left as it was.
    R60,
    /// A factor of an adapter left as it was.
    R61,
    /// Experts of another placement.
    R63,
    /// Experts of the first placement.
    R63b,
    /// A stack of experts that does not move with its map.
    R63c,
    /// A map that does not move with its experts.
    R63d,
}

/// The wrong behaviour or its nearest correct one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Wrong.
    Faulty,
    /// Right, by another path than the engine's own.
    Twin,
}

/// A fault that is switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSwitch {
    /// Which.
    pub id: FaultId,
    /// Wrong, or its twin.
    pub variant: Variant,
}

/// How experts must be spelled for a fault to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// Either.
    Any,
    /// `mlp.experts.gate_up_proj` and `mlp.experts.down_proj`, all experts in one source.
    Fused,
    /// A source an expert and projection.
    PerExpert,
}

/// What is known of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRow {
    /// Which.
    pub id: FaultId,
    /// The room of its category, as in `coldproof_contract`, or `transition`.
    pub room: &'static str,
    /// The slot, source or cache that goes wrong.
    pub object: &'static str,
    /// What goes wrong in models without it: the first of these that they have.
    pub others: &'static [&'static str],
    /// Parameters of which a model must have one for the fault to have its object; none where any
    /// model will do. What begins with a star is the end of a name.
    pub needs: &'static [&'static str],
    /// The finding code that it must give.
    pub code: &'static str,
    /// The family that it is made for, or nothing where that is no matter.
    pub family: Option<&'static str>,
    /// The fewest tensor-parallel ranks that show it.
    pub min_tp: u32,
    /// The fewest expert-parallel ranks that show it.
    pub min_ep: u32,
    /// The fewest data-parallel replicas that show it.
    pub min_dp: u32,
    /// The spelling of the update that it needs.
    pub spelling: Spelling,
    /// What goes wrong.
    pub fault: &'static str,
    /// How the twin does it.
    pub twin: &'static str,
}

impl FaultRow {
    /// The lane that shows it, where that is not its room's.
    #[must_use]
    pub const fn lane(&self) -> Option<&'static str> {
        match self.id {
            FaultId::F4_06 => Some("partial"),
            FaultId::R23 | FaultId::R32 => Some("kernel"),
            FaultId::R38 | FaultId::R41 | FaultId::R59 => Some("tiers"),
            FaultId::R63b | FaultId::R63c | FaultId::R63d => Some("placement"),
            FaultId::R47 | FaultId::R60 | FaultId::R61 => Some("adapters"),
            _ => None,
        }
    }

    /// The object in a model of these names: the first of its candidates that the model has.
    fn object_in(&self, names: &[String]) -> String {
        let candidates = std::iter::once(&self.object).chain(self.others);
        let mut found =
            candidates.filter_map(|wanted| names.iter().find(|name| is_called(name, wanted)));
        found.next().map_or(self.object, String::as_str).to_owned()
    }
}

/// Whether a slot or source has this name, in the text part of a model or in all of it. What begins
/// with a star is the end of a name.
#[must_use]
pub fn is_called(name: &str, wanted: &str) -> bool {
    match wanted.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => name.strip_prefix(TEXT_PART).unwrap_or(name) == wanted,
    }
}

impl FaultId {
    /// What is known of it.
    #[must_use]
    pub fn row(self) -> &'static FaultRow {
        // The table has one row a variant, in order: a test counts them.
        &FAULTS[self as usize]
    }

    /// The id as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F1_01 => "F1.01",
            Self::F1_02 => "F1.02",
            Self::F1_05 => "F1.05",
            Self::F1_08 => "F1.08",
            Self::F2_01 => "F2.01",
            Self::F3_01 => "F3.01",
            Self::F3_02 => "F3.02",
            Self::F3_05 => "F3.05",
            Self::F3_06 => "F3.06",
            Self::F4_01 => "F4.01",
            Self::F4_02 => "F4.02",
            Self::F4_03 => "F4.03",
            Self::F4_04 => "F4.04",
            Self::F4_06 => "F4.06",
            Self::F5_01 => "F5.01",
            Self::F6_01 => "F6.01",
            Self::F6_02 => "F6.02",
            Self::F7_02 => "F7.02",
            Self::F7_03 => "F7.03",
            Self::F7_04 => "F7.04",
            Self::R23 => "R23",
            Self::R32 => "R32",
            Self::R38 => "R38",
            Self::R41 => "R41",
            Self::R43 => "R43",
            Self::R47 => "R47",
            Self::R50 => "R50",
            Self::R59 => "R59",
            Self::R60 => "R60",
            Self::R61 => "R61",
            Self::R63 => "R63",
            Self::R63b => "R63b",
            Self::R63c => "R63c",
            Self::R63d => "R63d",
        }
    }
}

impl fmt::Display for FaultId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No fault has that id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no fault `{id}`; these exist: {known}")]
pub struct UnknownFault {
    /// What was asked.
    pub id: String,
    /// All ids, comma separated.
    pub known: String,
}

impl FromStr for FaultId {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let found = FAULTS.iter().map(|row| row.id).find(|id| id.as_str() == text);
        found.ok_or_else(|| UnknownFault {
            id: text.to_owned(),
            known: FAULTS.map(|row| row.id.as_str()).join(", "),
        })
    }
}

/// The faults that one engine has, each with its object in the engine's model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Vec<(FaultSwitch, String)>);

impl Faults {
    /// These switches in a model of these slots and sources; of several for one fault the first
    /// counts.
    pub(crate) fn new(switches: &[FaultSwitch], names: &[String]) -> Self {
        let located = |switch: &FaultSwitch| (*switch, switch.id.row().object_in(names));
        Self(switches.iter().map(located).collect())
    }

    /// Whether and how a fault is switched on.
    pub(crate) fn of(&self, id: FaultId) -> Option<Variant> {
        self.0.iter().find(|(switch, _)| switch.id == id).map(|(switch, _)| switch.variant)
    }

    /// How a fault is switched on for its one object.
    pub(crate) fn on(&self, id: FaultId, object: &str) -> Option<Variant> {
        let (switch, own) = self.0.iter().find(|(switch, _)| switch.id == id)?;
        (own == object).then_some(switch.variant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_the_row_of_its_id() {
        for row in &FAULTS {
            assert_eq!(row.id.row(), row);
            assert_eq!(row.id.as_str().parse(), Ok(row.id));
        }
        assert!(FAULTS.is_sorted_by_key(|row| row.id));
        assert_eq!(FaultId::R63d as usize + 1, FAULTS.len());
        let names = ["backbone.layers.0.norm.weight", "backbone.layers.2.mixer.qkv_proj.weight"];
        let names = names.map(str::to_owned);
        let object = |id: FaultId| id.row().object_in(&names);
        assert_eq!(object(FaultId::F1_02), names[0]);
        assert_eq!(object(FaultId::F3_06), names[1]);
        assert_eq!(object(FaultId::F7_02), "prefix-kv");
        assert!(is_called("language_model.model.norm.weight", "model.norm.weight"));
        let error = "F9.99".parse::<FaultId>().expect_err("no such fault");
        assert!(error.to_string().contains("F1.01, F1.02, F1.05"), "{error}");
    }
}
