//! What a run works on: checkpoints under their labels, the catalogue's placement, requests.

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8PathBuf;
use coldproof_checkpoint::{SentinelPlan, TensorRef};
use coldproof_contract::evidence::{CheckpointHeader, LaneName, RequiredItem};
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::{CheckpointLabel, Hex128, StepName, Topology};

use crate::adapter_swap::AdapterPair;
use crate::engine::PromisedAdapter;
use crate::requests::Requests;

/// A checkpoint as it is delivered to an engine.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its short name.
    pub label: CheckpointLabel,
    /// Its folder.
    pub folder: Utf8PathBuf,
    /// Its tensors, in file order.
    pub tensors: Vec<TensorRef>,
    /// What is sent in an update, in order: all of them, once, unless the sender is at fault.
    pub sent: Vec<TensorRef>,
    /// Sources that must arrive.
    pub required: Vec<String>,
    /// Sources that may arrive and need not, such as the second name of a tied head.
    pub allowed_missing: Vec<String>,
    /// Sources that are not sent and keep what they hold: those of a partial update.
    pub preserved: Vec<String>,
    /// What its tensors are.
    pub format: Format,
    /// Adapters that are delivered in the same transaction.
    pub adapters: Vec<AdapterDelivery>,
}

/// What an update delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Sources of a checkpoint.
    #[default]
    Checkpoint,
    /// Slots of every rank, as kernels read them.
    Kernel,
}

/// An adapter as a transaction delivers it.
#[derive(Clone, Debug)]
pub struct AdapterDelivery {
    /// Its name and its folder.
    pub promised: PromisedAdapter,
    /// What it is: a digest of its tensors and its configuration.
    pub content: Hex128,
    /// Names of its factors among all sources.
    pub sources: Vec<String>,
}

/// What a run works on.
#[derive(Debug)]
pub struct Inputs {
    /// The old checkpoint, label `A`.
    pub from: Delivery,
    /// The new checkpoint, label `B`.
    pub to: Delivery,
    /// One whose every element differs from both, label `P`.
    pub changed: Delivery,
    /// Sentinels, one a digit.
    pub sentinels: Vec<Delivery>,
    /// How sentinels decode.
    pub sentinel_plan: Option<SentinelPlan>,
    /// The new checkpoint under other names, where the family has other names.
    pub spellings: Vec<Delivery>,
    /// Some slots of the new checkpoint, all others of the old one: what partial updates deliver.
    pub partial: Vec<Delivery>,
    /// Where the kernel lane writes the slots that it delivers.
    pub kernel: Utf8PathBuf,
    /// Headers of all of them.
    pub headers: Vec<CheckpointHeader>,
    /// Where the catalogue expects every source.
    pub rules: Vec<SourceRule>,
    /// The topology asked for.
    pub topology: Topology,
    /// The topology of the routing lane.
    pub routing_topology: Topology,
    /// Lanes to run.
    pub lanes: BTreeSet<LaneName>,
    /// What must be proven.
    pub required: Vec<RequiredItem>,
    /// Faults that are switched on.
    pub seeded: Vec<String>,
    /// Steps that every update leaves out, as a trainer at fault would.
    pub skipped: Vec<StepName>,
    /// An empty folder for what outlives the engines of the tiers lane.
    pub tiers: Utf8PathBuf,
    /// The two adapters of the adapters lane.
    pub adapters: Option<AdapterPair>,
    /// Fixed tokens.
    pub requests: Requests,
    /// The seed.
    pub seed: u64,
    /// The longest that any step may take.
    pub deadline_ms: u64,
    /// Notes that belong into the verdict.
    pub notes: Vec<String>,
    /// Versions and instruction set.
    pub environment: BTreeMap<String, String>,
}
