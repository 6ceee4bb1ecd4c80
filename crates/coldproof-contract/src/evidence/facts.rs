//! The facts, one struct a kind.

use serde::{Deserialize, Serialize};

use crate::words::{
    Address, CheckpointLabel, Fingerprint, Fragment, Generation, Hex128, Packing, Policy, SlotKind,
    SlotName, StepName, StorageId, TransactionId,
};

/// A step began or ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepFact {
    /// Which step.
    pub name: StepName,
    /// Absent at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<StepOutcome>,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum StepOutcome {
    /// The engine said it was done.
    Ok,
    /// The engine refused or failed, and is still there.
    Error {
        /// The engine's words.
        text: String,
    },
    /// The engine cannot do this at all.
    Unsupported {
        /// What it cannot do.
        what: String,
    },
    /// The deadline passed; the engine was ended.
    Timeout {
        /// The step's deadline.
        deadline_ms: u64,
        /// The kernel that was running, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kernel: Option<String>,
        /// The address that kernel was waiting on, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<Address>,
    },
    /// The engine died (an illegal access, a lost process).
    Died {
        /// What was seen of the death.
        text: String,
        /// The kernel that was running, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kernel: Option<String>,
        /// The address it touched, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<Address>,
    },
}

/// The lane's label for the events that follow, until the next one of the arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseFact {
    /// `before`, `A>B`, `B>A`, …
    pub phase: String,
    /// The checkpoint that the engine must serve at the end of the phase.
    pub at: CheckpointLabel,
    /// The checkpoint that it served before, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<CheckpointLabel>,
    /// The engine refused the update of the phase before: it serves what it served, or nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
}

/// What the caller promised before the first write. It is stated when it is sealed, and again with
/// what was delivered when the delivery is over, however that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManifestFact {
    /// Where the scope comes from: `caller`, `headers` or `previous-generation`.
    pub origin: String,
    /// The checkpoint it promises.
    pub checkpoint: CheckpointLabel,
    /// Sources that must arrive, by name, sorted.
    pub required: Vec<String>,
    /// Sources that the caller keeps from the old generation.
    pub explicitly_preserved: Vec<String>,
    /// Sources that may be absent.
    pub allowed_missing: Vec<String>,
    /// Sources that the engine took, by name, in order of delivery, with repeats; none where the
    /// manifest is sealed.
    pub delivered: Vec<String>,
}

/// A slot as the engine registers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotFact {
    /// Its name within the rank.
    pub slot: SlotName,
    /// What it is to the forward.
    pub slot_kind: SlotKind,
    /// Storage identity and layout. Absent where the engine says that the storage is gone.
    pub fingerprint: Option<Fingerprint>,
    /// Order of storage against logical order.
    pub packing: Packing,
    /// Logical shape on this rank, padding included.
    pub logical_shape: Vec<u64>,
    /// Other names of the same storage.
    pub aliases: Vec<SlotName>,
    /// What an update does to it.
    pub policy: Policy,
    /// Slots it is computed from.
    pub inputs: Vec<SlotName>,
    /// The generation whose bytes the engine says it holds.
    pub epoch: Generation,
    /// Whether its storage may legally be replaced by an update.
    pub replaceable: bool,
}

/// The allocator handed out a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocFact {
    /// Its serial.
    pub storage: StorageId,
    /// Its first byte.
    pub address: Address,
    /// Its bytes.
    pub bytes: u64,
    /// The region it lies in.
    pub region: String,
    /// What it was asked for.
    pub purpose: String,
}

/// The allocator took a block back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FreeFact {
    /// The serial of the block.
    pub storage: StorageId,
    /// Its first byte.
    pub address: Address,
}

/// A region was mapped or unmapped. Blocks keep their addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionFact {
    /// `weights`, `kv_cache`, …
    pub region: String,
    /// First byte of the reserved range.
    pub address: Address,
    /// Bytes of the reserved range.
    pub bytes: u64,
    /// Whether the range is backed by memory now.
    pub mapped: bool,
}

/// Whether a kernel reads or writes what an argument points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArgAccess {
    /// Only reads.
    Read,
    /// Writes before it reads.
    Write,
    /// Reads and writes.
    ReadWrite,
    /// Not known.
    Unknown,
}

/// One pointer that a graph retains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgFact {
    /// Position among the kernel's arguments.
    pub index: u32,
    /// The retained address.
    pub address: Address,
    /// How many bytes the kernel touches there; 0 where it is not known.
    pub bytes: u64,
    /// How it touches them.
    pub access: ArgAccess,
}

/// One node of a captured graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeFact {
    /// The graph's name, for example `decode-1`.
    pub graph: String,
    /// Position in the graph.
    pub node: u32,
    /// The kernel.
    pub kernel: String,
    /// Pointers it retains.
    pub args: Vec<ArgFact>,
}

/// What is computed or fetched for a request beside the model, each in a cache of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestStage {
    /// An image's pixels as the encoder takes them: no weight is read.
    Processor,
    /// An image's embeddings as the model takes them.
    Encoder,
    /// Drafts of speculative decoding, by a draft model or a layer that predicts further tokens.
    Draft,
    /// Blocks of keys and values (or states) that were not computed: fetched from host memory.
    HostTier,
    /// The same, fetched from files or another store that outlives the engine.
    FileTier,
}

/// Kernels that ran within one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchFact {
    /// The request they ran for.
    pub request: String,
    /// The kernel.
    pub kernel: String,
    /// The graph that was replayed, or nothing where it was launched eagerly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<String>,
    /// The stage of the request; absent where it is the model itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<RequestStage>,
    /// How often.
    pub launches: u64,
    /// Rows (tokens) over all launches.
    pub rows: u64,
}

/// One write that the engine says it made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplicationFact {
    /// In which transaction.
    pub transaction: TransactionId,
    /// The checkpoint tensor.
    pub source: String,
    /// Which of its elements.
    pub source_fragment: Fragment,
    /// The slot.
    pub slot: SlotName,
    /// Which of its logical elements.
    pub slot_fragment: Fragment,
}

/// A stage of one layer's post-load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PostLoadStage {
    /// The engine says that this layer will need post-load.
    Expected,
    /// The hook ran.
    Processed,
    /// The layer is complete.
    Finalised,
}

/// One stage of one layer's post-load, as the engine states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PostLoadFact {
    /// In which transaction.
    pub transaction: TransactionId,
    /// The module path.
    pub layer: String,
    /// Which stage.
    pub stage: PostLoadStage,
    /// Layers that must be finalised before.
    pub prerequisites: Vec<String>,
}

/// Configuration or backend state that the forward depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateFact {
    /// Who owns it.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// Its value, as text.
    pub value: String,
    /// What an update does to it.
    pub policy: Policy,
}

/// A cache that is derived from weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheFact {
    /// `prefix-kv`, …
    pub cache: String,
    /// The generation its entries are valid for, as the engine states it.
    pub generation: Generation,
    /// Entries in it.
    pub entries: u64,
    /// Hits since the last statement.
    pub hits: u64,
    /// What its entries depend on beside weights, such as a digest of the processor's
    /// configuration; absent where that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The lane loads an adapter under a name, in the place of the one that has the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterFact {
    /// The name that requests give.
    pub adapter: String,
    /// What it is: a digest of its tensors and its configuration. Names, ids and paths are no
    /// identity.
    pub content: Hex128,
}

/// The content of one piece of a slot that a source covers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PieceContent {
    /// The checkpoint tensor that should be there.
    pub source: String,
    /// Which of its elements.
    pub source_fragment: Fragment,
    /// Digest of the piece's bytes in source order.
    pub content: Hex128,
}

/// A slot's bytes, read by the probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadBackFact {
    /// The slot.
    pub slot: SlotName,
    /// Where it was read.
    pub address: Address,
    /// Digest of its bytes in storage order. Absent where the memory could not be read.
    pub content: Option<Hex128>,
    /// The pieces that sources cover, for a slot that is a bijection of its sources.
    pub pieces: Vec<PieceContent>,
    /// Padding elements that are not the declared fill.
    pub padding_written: u64,
}

/// A checkpoint tensor, put together again from all ranks' slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceReadBackFact {
    /// The checkpoint tensor.
    pub source: String,
    /// Its digest (R61), where the pieces cover it exactly and replicas agree.
    pub digest: Option<Hex128>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Equal steps from a slot into a source: `count` runs of `length` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginRun {
    /// First logical element of the slot, row-major.
    pub slot: u64,
    /// Index into [`OriginsFact::sources`]; absent where the elements came from no source.
    pub source: Option<u32>,
    /// First element of the source, row-major.
    pub element: u64,
    /// Elements of one run.
    pub length: u64,
    /// Runs.
    pub count: u64,
    /// Elements of the slot between the beginnings of two runs.
    pub slot_step: u64,
    /// Elements of the source between the beginnings of two runs (may be negative).
    pub source_step: i64,
}

/// Where a slot's logical elements came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OriginsFact {
    /// The slot.
    pub slot: SlotName,
    /// Names that the runs refer to.
    pub sources: Vec<String>,
    /// Runs in slot order; together they cover every logical element once.
    pub runs: Vec<OriginRun>,
}

/// A slot's elements put in the order in which a cold load stores them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReorderedFact {
    /// The slot.
    pub slot: SlotName,
    /// Digest of the bytes after that.
    pub content: Hex128,
}

/// One row of logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogitsRow {
    /// Position of the token that the row follows.
    pub position: u32,
    /// Digest of all f32 bits of the row.
    pub digest: Hex128,
    /// All f32 bits, 8 hexadecimal digits each, where the vocabulary is at most 4,096; else the
    /// 64 largest in [`LogitsRow::top`] only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<String>,
    /// The largest, as (token, f32 bits), largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<(u32, u32)>,
}

/// Teacher-forced outputs on fixed tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogitsFact {
    /// The request; requests of one name have the same tokens.
    pub request: String,
    /// `eager` or `graph`: how the rows after the prompt were computed.
    pub mode: String,
    /// The adapter that it was served with; none: the base model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Which repeat of the request within the phase, from 0.
    pub repeat: u32,
    /// The stage whose logits these are; absent: the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<RequestStage>,
    /// How many requests were decoded together, this one among them.
    #[serde(default = "alone", skip_serializing_if = "is_alone")]
    pub batch: u32,
    /// Rows, by position.
    pub rows: Vec<LogitsRow>,
    /// Tokens that were chosen after those that were given, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u32>,
}

const fn alone() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_alone(batch: &u32) -> bool {
    *batch == 1
}

/// Positive control: a live slot changed in place and restored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControlFact {
    /// The slot.
    pub slot: SlotName,
    /// The part that was changed, for example `expert 3`; empty for all of it.
    pub part: String,
    /// Output digest of the replay before the change.
    pub before: Hex128,
    /// Output digest of the replay with the change.
    pub after: Hex128,
}

/// A live slot that got no positive control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncontrolledFact {
    /// The slot.
    pub slot: SlotName,
    /// Why none was tried.
    pub reason: String,
}

/// Anything else an engine says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimFact {
    /// `generation`, `cache-hit`, `degraded`, …
    pub what: String,
    /// Its value, as text.
    pub value: String,
}

/// What one rank says it saw of a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiptFact {
    /// Which transaction.
    pub transaction: TransactionId,
    /// The generation that it says it now holds.
    pub generation: Generation,
    /// Applications it made.
    pub applications: u64,
    /// Sources that it was given and that no slot of this rank took.
    pub unrouted: Vec<String>,
    /// Tensors that it still holds without having applied them.
    pub buffered: Vec<String>,
    /// Whether it committed.
    pub committed: bool,
}
