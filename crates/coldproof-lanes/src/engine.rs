//! The two traits every engine is driven through: [`Engine`] takes commands and makes claims,
//! [`Probe`] observes memory, the allocator, graphs and launches.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::TensorRef;
use coldproof_contract::digest::Piece as DigestPiece;
use coldproof_contract::evidence::{Ability, Fact, LaunchFact, NodeFact, PieceContent};
use coldproof_contract::routing::Piece;
use coldproof_contract::words::{
    Address, ByteRange, Dtype, ExpertPlacement, Hex128, Packing, Rank, Topology, TransactionId,
};
use serde::{Deserialize, Serialize};

/// Why an engine did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "kebab-case")]
pub enum EngineError {
    /// It said no, and is still there.
    #[error("the engine refused: {text}")]
    Refused {
        /// Its words.
        text: String,
    },
    /// The deadline passed; the engine was ended.
    #[error("the deadline of {deadline_ms} ms passed{}", in_kernel(kernel.as_deref()))]
    Timeout {
        /// The deadline.
        deadline_ms: u64,
        /// The kernel that was running, where it is known.
        kernel: Option<String>,
        /// The address it was waiting on, where it is known.
        address: Option<Address>,
    },
    /// It died.
    #[error("the engine died: {text}")]
    Died {
        /// What was seen of the death.
        text: String,
        /// The kernel that was running, where it is known.
        kernel: Option<String>,
        /// The address it touched, where it is known.
        address: Option<Address>,
    },
    /// It cannot do this at all; what depends on it is not covered.
    #[error("not supported by this engine: {what}")]
    Unsupported {
        /// What.
        what: String,
    },
}

fn in_kernel(kernel: Option<&str>) -> String {
    kernel.map(|kernel| format!(" in kernel `{kernel}`")).unwrap_or_default()
}

impl EngineError {
    /// Whether the engine is gone.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Died { .. })
    }
}

/// The answer to a command.
pub type Reply<T> = Result<T, EngineError>;

/// How the tokens after the prompt are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecodeMode {
    /// Kernels launched one by one.
    Eager,
    /// Replay of a captured graph.
    Graph,
}

impl DecodeMode {
    /// The name in evidence.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Graph => "graph",
        }
    }
}

/// An image of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The position of the first token that it takes the place of; the prompt has the model's image
    /// token at each of its rows.
    pub at: u32,
    /// Channels, rows, columns.
    pub shape: [u32; 3],
    /// A byte each, in that order.
    pub pixels: Vec<u8>,
}

/// A request on fixed tokens: the prompt is prefilled, `forced` is decoded one by one whatever the
/// outputs say, then `greedy` tokens follow the largest logit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// Its name in evidence.
    pub name: String,
    /// Tokens of the prefill, at least one.
    pub prompt: Vec<u32>,
    /// Tokens that are decoded one by one.
    pub forced: Vec<u32>,
    /// Tokens to choose after that.
    pub greedy: u32,
    /// How decoding runs.
    pub mode: DecodeMode,
    /// Whether the prefix cache may serve the prompt.
    pub use_prefix_cache: bool,
    /// The name of the adapter that it is served with; none: the base model.
    #[serde(default)]
    pub adapter: Option<String>,
    /// Images of the prompt, in order. Only an engine that takes images is given some.
    #[serde(default)]
    pub images: Vec<Image>,
    /// Whether caches of prepared images and of the encoder's output may serve it.
    #[serde(default)]
    pub use_encoder_cache: bool,
    /// The data-parallel replica that serves it, counted from 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub replica: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_first(replica: &u32) -> bool {
    *replica == 0
}

impl GenerateRequest {
    /// The same request of one replica. Each has its own name in evidence, where one name is one
    /// fact.
    #[must_use]
    pub fn on(&self, replica: u32) -> Self {
        let name = match replica {
            0 => self.name.clone(),
            _ => format!("{}@dp{replica}", self.name),
        };
        Self { name, replica, ..self.clone() }
    }
}

/// The outputs of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// (position, logits of the whole vocabulary) for the last token of the prompt and for every
    /// decoded token.
    pub rows: Vec<(u32, Vec<f32>)>,
    /// The chosen tokens.
    pub greedy: Vec<u32>,
    /// Where something drafts for the model: (position, logits) that it gives after the last token
    /// of the prompt and after every token of `forced`.
    #[serde(default)]
    pub draft_rows: Vec<(u32, Vec<f32>)>,
}

/// What an engine can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// `reference`, `vllm`, …
    pub kind: String,
    /// Its version.
    pub version: String,
    /// Its topology.
    pub topology: Topology,
    /// Whether it captures graphs.
    pub graphs: bool,
    /// Whether it sleeps and wakes.
    pub sleep: bool,
    /// Whether it has a prefix cache.
    pub prefix_cache: bool,
    /// The most requests that it decodes together, one row each; 1 where it decodes them alone.
    #[serde(default = "one")]
    pub batch_max: u32,
    /// Whether requests may have images.
    #[serde(default)]
    pub images: bool,
    /// Whether blocks that the KV cache lets go of are kept in host memory and in files.
    #[serde(default)]
    pub kv_tiers: bool,
    /// Whether adapters are delivered in transactions, and their factors are slots.
    #[serde(default)]
    pub adapter_updates: bool,
    /// Whether experts move between ranks of ep when it is told where they are.
    #[serde(default)]
    pub expert_placement: bool,
}

const fn one() -> u32 {
    1
}

impl Capabilities {
    /// Before the engine's hello: nothing.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            kind: String::new(),
            version: String::new(),
            topology: Topology::tensor(1),
            graphs: false,
            sleep: false,
            prefix_cache: false,
            batch_max: 1,
            images: false,
            kv_tiers: false,
            adapter_updates: false,
            expert_placement: false,
        }
    }

    /// What it has not.
    #[must_use]
    pub fn cannot(&self) -> Vec<Ability> {
        let has = [
            (Ability::Graphs, self.graphs),
            (Ability::Sleep, self.sleep),
            (Ability::PrefixCache, self.prefix_cache),
        ];
        has.into_iter().filter(|(_, has)| !has).map(|(ability, _)| ability).collect()
    }

    /// How decoding can run.
    #[must_use]
    pub const fn modes(&self) -> &'static [DecodeMode] {
        if self.graphs { &[DecodeMode::Eager, DecodeMode::Graph] } else { &[DecodeMode::Eager] }
    }

    /// How decoding runs where a replay is wanted.
    #[must_use]
    pub const fn replay(&self) -> DecodeMode {
        if self.graphs { DecodeMode::Graph } else { DecodeMode::Eager }
    }
}

/// Which region `wake` brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeTag {
    /// The weights.
    Weights,
    /// The KV cache.
    KvCache,
}

/// An adapter that a transaction delivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromisedAdapter {
    /// The name that requests give.
    pub name: String,
    /// The folder that it lies in (`adapter_config.json`, `adapter_model.safetensors`).
    pub folder: Utf8PathBuf,
}

/// Commands, and what the engine says of itself. All calls return before the deadline.
pub trait Engine {
    /// What it can do.
    fn capabilities(&mut self) -> Reply<Capabilities>;
    /// The deadline of every later call.
    fn set_deadline(&mut self, deadline: Duration) -> Reply<()>;
    /// Cold load.
    fn load(&mut self, tensors: &[TensorRef]) -> Reply<()>;
    /// Captures decode graphs.
    fn capture(&mut self) -> Reply<()>;
    /// Serves one request.
    fn generate(&mut self, request: &GenerateRequest) -> Reply<Output>;
    /// Serves requests together, one row each in every decode step. One output a request, in order.
    fn generate_batch(&mut self, requests: &[GenerateRequest]) -> Reply<Vec<Output>>;
    /// Stops admitting requests and finishes those in flight.
    fn pause(&mut self) -> Reply<()>;
    /// Gives memory back: level 1 keeps weights on the host, level 2 discards them.
    fn sleep(&mut self, level: u8) -> Reply<()>;
    /// Takes memory again.
    fn wake(&mut self, tag: WakeTag) -> Reply<()>;
    /// Begins a transaction that will deliver these sources.
    fn begin(&mut self, required: &[String]) -> Reply<TransactionId>;
    /// Begins a transaction that will deliver these sources and keeps the bytes of those that are
    /// preserved. Engines without partial updates leave it as it is.
    fn begin_partial(
        &mut self,
        _required: &[String],
        _preserved: &[String],
    ) -> Reply<TransactionId> {
        Err(EngineError::Unsupported { what: "partial updates".to_owned() })
    }
    /// Begins a transaction that will deliver what ranks store of these slots, as kernels read it:
    /// `RANK:SLOT`, for every rank of a replica all that an update refreshes. Engines without such
    /// updates leave it as it is.
    fn begin_kernel(&mut self, _required: &[String]) -> Reply<TransactionId> {
        Err(EngineError::Unsupported { what: "updates in kernel format".to_owned() })
    }
    /// Begins a transaction that delivers adapters beside sources, and publishes all of it or
    /// nothing. Where all sources are preserved, adapters alone. What is refused is refused here,
    /// before the first write. Engines without such updates leave it as it is.
    fn begin_with_adapters(
        &mut self,
        _required: &[String],
        _preserved: &[String],
        _adapters: &[PromisedAdapter],
    ) -> Reply<TransactionId> {
        Err(EngineError::Unsupported { what: "adapters in transactions".to_owned() })
    }
    /// Delivers an adapter that the transaction promised.
    fn apply_adapter(&mut self, _name: &str) -> Reply<()> {
        Err(EngineError::Unsupported { what: "adapters in transactions".to_owned() })
    }
    /// Delivers a bucket of tensors.
    fn apply(&mut self, bucket: &[TensorRef]) -> Reply<()>;
    /// Post-load and finalisation.
    fn finish(&mut self) -> Reply<()>;
    /// Commits on all ranks.
    fn commit(&mut self) -> Reply<()>;
    /// Gives up.
    fn abort(&mut self) -> Reply<()>;
    /// Empties caches of the old generation.
    fn invalidate(&mut self) -> Reply<()>;
    /// Serves again.
    fn resume(&mut self) -> Reply<()>;
    /// Loads the adapter in a folder (`adapter_config.json`, `adapter_model.safetensors`) under a
    /// name, in the place of the one that has the name. Engines without adapters leave it as it is.
    fn load_adapter(&mut self, _name: &str, _folder: &Utf8Path) -> Reply<()> {
        Err(EngineError::Unsupported { what: "adapters".to_owned() })
    }
    /// Says where the experts of every module are from here on: what is loaded moves in place, and
    /// where nothing is, the next load goes by it, as all later updates do. Engines whose experts
    /// stay leave it as it is.
    fn place_experts(&mut self, _placement: &ExpertPlacement) -> Reply<()> {
        Err(EngineError::Unsupported { what: "placement of experts".to_owned() })
    }
    /// Slots, state, caches and generation as of now.
    fn claims(&mut self) -> Reply<Vec<(Rank, Fact)>>;
    /// Applications, post-load stages and receipts since the last call.
    fn drain_claims(&mut self) -> Reply<Vec<(Rank, Fact)>>;
    /// Ends the engine. Never fails: an engine that does not end is killed.
    fn shutdown(&mut self);
}

/// Observation, never through what the engine says.
pub trait Probe {
    /// Allocator and region events since the last call, in order.
    fn allocator_log(&mut self) -> Reply<Vec<(Rank, Fact)>>;
    /// Nodes of all captured graphs.
    fn graph_nodes(&mut self) -> Reply<Vec<(Rank, NodeFact)>>;
    /// Launches since the last call.
    fn launches(&mut self) -> Reply<Vec<(Rank, LaunchFact)>>;
    /// Reads memory.
    fn read(&mut self, rank: Rank, range: ByteRange) -> Reply<Vec<u8>>;
    /// Writes memory (positive control).
    fn write(&mut self, rank: Rank, address: Address, bytes: &[u8]) -> Reply<()>;
    /// Fills freed memory with garbage and hands it to another owner.
    fn pressure(&mut self) -> Reply<()>;
    /// Gives that memory back.
    fn release_pressure(&mut self) -> Reply<()>;
    /// Reads slots back, next to the memory: see [`crate::read_back`].
    fn read_back(&mut self, rank: Rank, requests: &[ReadBackRequest]) -> Reply<Vec<ReadBack>> {
        requests
            .iter()
            .map(|request| crate::read_back::run(request, &mut |range| self.read(rank, range)))
            .collect()
    }
}

/// An engine that can be driven and observed.
pub trait EngineUnderTest: Engine + Probe {}
impl<T: Engine + Probe> EngineUnderTest for T {}

/// How to start an engine for one arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartSpec {
    /// The checkpoint folder whose `config.json` describes the model.
    pub model: camino::Utf8PathBuf,
    /// Its topology.
    pub topology: Topology,
    /// Seed of addresses and poison.
    pub seed: u64,
    /// First address of its memory, where memory is simulated.
    pub arena_base: u64,
    /// Whether blocks are placed in another order than usual.
    pub reversed_allocation: bool,
    /// Faults to switch on, by id; `F1.05~` is the correct twin of `F1.05`.
    pub faults: Vec<String>,
    /// Whether everything it says of itself is its correct twin's.
    pub lying: bool,
    /// Deadline of every call.
    pub deadline_ms: u64,
    /// The largest rank of the adapters that it will be given; 0: it is given none.
    #[serde(default)]
    pub adapter_rank: u32,
    /// The tiers below the KV cache that it is to have; none: it has none.
    #[serde(default)]
    pub kv_tiers: Option<KvTiers>,
}

/// Tiers below the KV cache: what it lets go of is kept in host memory, and in a folder that
/// outlives the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvTiers {
    /// Tokens that the KV cache has room for, so that requests push each other out.
    pub cache_tokens: u32,
    /// Bytes of host memory that each rank may fill.
    pub host_bytes: u64,
    /// The folder.
    pub folder: camino::Utf8PathBuf,
}

/// What a lane asks of one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadBackRequest {
    /// Where it begins.
    pub address: Address,
    /// Element type in memory.
    pub dtype: Dtype,
    /// Logical shape.
    pub logical_shape: Vec<u64>,
    /// Storage order against logical order.
    pub packing: Packing,
    /// Where the permutation lies, for [`Packing::ColumnsPermuted`].
    pub permutation: Option<ByteRange>,
    /// What sources cover.
    pub pieces: Vec<ReadBackPiece>,
    /// Whether every other element must be 0.
    pub zero_fill: bool,
}

/// One piece that a source covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadBackPiece {
    /// The checkpoint tensor.
    pub source: String,
    /// Its shape.
    pub source_shape: Vec<u64>,
    /// Which of its elements are which of the slot's.
    pub piece: Piece,
}

/// What a probe read of one slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadBack {
    /// Digest of the bytes in storage order; absent where they cannot be read.
    pub content: Option<Hex128>,
    /// Digests of the pieces.
    pub pieces: Vec<PieceContent>,
    /// The pieces' shares of their sources' digests (R61), in the order of `pieces`.
    pub shares: Vec<DigestPiece>,
    /// Padding elements that are not 0.
    pub padding_written: u64,
}
