//! What was typed.

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Proves that an engine that took a live weight update is the engine that a cold load would have
/// built.
#[derive(Debug, Parser)]
#[command(name = "coldproof", version, propagate_version = true, after_long_help = EXAMPLES)]
#[command(arg_required_else_help = true, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Say what a finding means and what to do about it.
    #[arg(long, value_name = "CODE")]
    pub explain: Option<String>,
    /// The command.
    #[command(subcommand)]
    pub command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  coldproof prove                                   a small pair of its own, the embedded engine
  coldproof prove --from A --to B --out run         two checkpoints; evidence and verdict in `run`
  coldproof prove --fault F1.05                     the embedded engine with a known bug
  coldproof check run/evidence.jsonl                judge recorded evidence again
  coldproof keys B                                  two-way key accounting
  coldproof --explain source-missing                what a finding means, and what to do

Exit codes: 0 proven, 1 a finding, 2 bad input or usage, 3 undecided, 70 a bug, 130 interrupted.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Prove one live update of an engine.
    Prove(Box<ProveArgs>),
    /// Judge recorded evidence again.
    Check(CheckArgs),
    /// Two-way key accounting of a checkpoint, without an engine.
    Keys(KeysArgs),
    /// Topology-independent digests of a checkpoint.
    Digest(DigestArgs),
    /// Make a deterministic B from A.
    Perturb(PerturbArgs),
    /// Make checkpoints whose values say where they came from.
    Sentinel(SentinelArgs),
    /// The seeded faults of the embedded engine.
    Faults {
        /// What to do with them.
        #[command(subcommand)]
        action: FaultsAction,
    },
    /// Print shell completions.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, in roff.
    Man,
    /// Serve the embedded engine over the engine protocol on stdin and stdout.
    #[command(hide = true)]
    Agent,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
}

/// Lanes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LaneArg {
    /// Live update against cold load.
    Differential,
    /// Sentinels on every rank.
    Routing,
    /// Two-way key accounting through the engine.
    Names,
    /// Caches across the update.
    Caches,
    /// The eight steps.
    Composite,
    /// One adapter under another's name.
    Adapters,
    /// Some slots delivered, all others preserved.
    Partial,
    /// Slots delivered as kernels read them.
    Kernel,
    /// Host and file tiers below the KV cache, across an update and restarts.
    Tiers,
    /// Experts that move between ranks, and an update after that.
    Placement,
}

/// Steps that a trainer may forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SkipArg {
    /// Emptying every cache of the old generation.
    Invalidate,
}

/// How a trainer replaces an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AdapterVia {
    /// It writes over the old files, and the name is loaded again.
    #[default]
    SameFolder,
    /// It writes a folder beside the old one, and the name is loaded again.
    OtherFolder,
    /// As `same-folder`, and the caches are emptied.
    SameFolderReset,
}

/// Ways into a live vLLM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// `reload_weights` with an iterator of tensors.
    #[default]
    ReloadIterator,
    /// `reload_weights` with a path.
    ReloadPath,
    /// `start_weight_update`, `update_weights`, `finish_weight_update`.
    Transfer,
    /// The model's `load_weights`, one tensor at a time.
    LoadWeights,
}

/// `coldproof prove`
#[derive(Debug, Args)]
#[command(after_long_help = PROVE_EXAMPLES)]
pub struct ProveArgs {
    /// The engine: `reference` is built in, `vllm` is started with the Python that has it.
    #[arg(long, value_name = "ENGINE", default_value = "reference")]
    pub engine: String,
    /// The Python interpreter that has vLLM and the package `coldproof`.
    #[arg(long, value_name = "PATH")]
    pub python: Option<Utf8PathBuf>,
    /// How updates reach vLLM.
    #[arg(long, value_enum, default_value_t)]
    pub via: Via,
    /// An argument of vLLM's engine, as its Python API spells it (may be given several times).
    #[arg(long = "engine-arg", value_name = "NAME=JSON")]
    pub engine_args: Vec<String>,
    /// The checkpoint that the engine serves first. With neither --from nor --to, a small pair is
    /// made.
    #[arg(long, value_name = "DIR")]
    pub from: Option<Utf8PathBuf>,
    /// The checkpoint that it is updated to.
    #[arg(long, value_name = "DIR")]
    pub to: Option<Utf8PathBuf>,
    /// Tensor-parallel ranks.
    #[arg(long, value_name = "N")]
    pub tp: Option<u32>,
    /// Pipeline stages.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub pp: u32,
    /// Expert-parallel ranks.
    #[arg(long, value_name = "N")]
    pub ep: Option<u32>,
    /// Data-parallel replicas: whole engines that share nothing and take every update together.
    #[arg(long, value_name = "N")]
    pub dp: Option<u32>,
    /// Let a draft model decode speculatively for the model: a small one is made. Both are one
    /// checkpoint and one update.
    #[arg(long)]
    pub draft: bool,
    /// The draft model that is served first.
    #[arg(long, value_name = "DIR", conflicts_with = "draft")]
    pub draft_from: Option<Utf8PathBuf>,
    /// The draft model that it is updated to.
    #[arg(long, value_name = "DIR", conflicts_with = "draft")]
    pub draft_to: Option<Utf8PathBuf>,
    /// Deliver B as a sender at fault would: cut:COUNT, without:TENSOR, twice:TENSOR,
    /// stale-copy:TENSOR, extra:NAME, rename:OLD=NEW; or reversed or float32, which are no fault.
    /// The manifest promises all. May be given several times.
    #[arg(long, value_name = "SPEC")]
    pub payload: Vec<String>,
    /// Leave a step out of every update, as a trainer at fault would.
    #[arg(long, value_enum, value_name = "STEP", value_delimiter = ',')]
    pub skip: Vec<SkipArg>,
    /// An adapter (a PEFT folder) that is served first, by a name that --adapter-to takes over.
    #[arg(long, value_name = "DIR")]
    pub adapter_from: Option<Utf8PathBuf>,
    /// The adapter that takes its name.
    #[arg(long, value_name = "DIR")]
    pub adapter_to: Option<Utf8PathBuf>,
    /// How it takes the name.
    #[arg(long, value_enum, default_value_t)]
    pub adapter_via: AdapterVia,
    /// Only these lanes (may be given several times).
    #[arg(long = "lane", value_name = "NAME", value_delimiter = ',')]
    pub lanes: Vec<LaneArg>,
    /// What must be proven: categories 1 to 7 and `transition`, comma separated.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub require: Vec<String>,
    /// Switch a fault of the embedded engine on (may be given several times); `ID~` is its correct
    /// twin.
    #[arg(long = "fault", value_name = "ID", value_delimiter = ',')]
    pub faults: Vec<String>,
    /// All that the embedded engine says of itself is its correct twin's.
    #[arg(long)]
    pub lying: bool,
    /// Findings that are known: a TOML file. A run whose findings are all listed passes, one that
    /// lists what is gone fails.
    #[arg(long, value_name = "FILE")]
    pub known: Option<Utf8PathBuf>,
    /// Write verdict.json, junit.xml and evidence.jsonl here.
    #[arg(long, value_name = "DIR")]
    pub out: Option<Utf8PathBuf>,
    /// Seed of everything that is drawn.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// The longest that one step may take, in seconds: 60, or 600 where an engine is started.
    #[arg(long, value_name = "SECONDS")]
    pub deadline: Option<u64>,
    /// How the verdict is printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

const PROVE_EXAMPLES: &str = "\
Examples:
  coldproof prove
  coldproof prove --from step-100 --to step-101 --tp 2 --out run
  coldproof prove --from A --to B --tp 2 --dp 2         two replicas of two ranks
  coldproof prove --from A --to B --lane differential --lane caches
  coldproof prove --from A --to B --require 1,2,3,transition --format json
  coldproof prove --fault F2.01 --lying
  coldproof prove --from A --to B --draft-from small-A --draft-to small-B
  coldproof prove --engine vllm --from A --to B --require 2,3,6,7,transition
  coldproof prove --engine vllm --from A --to B --via transfer --known known.toml

A list of known findings (--known) is TOML, an entry each:
  [[known]]
  engine = \"vllm\"
  versions = \">=0.30, <0.33\"
  models = [\"qwen3_moe\"]
  code = \"finalised-never\"
  object = \"model.layers.*\"
  link = \"https://HOST/ISSUE\"
  expires = \"2027-03-01\"";

const KEYS_EXAMPLES: &str = "\
Examples:
  coldproof keys step-101
  coldproof keys step-101 --model base/config.json";

const DIGEST_EXAMPLES: &str = "\
Examples:
  coldproof digest step-101
  coldproof digest step-101 --against exported";

const PERTURB_EXAMPLES: &str = "\
Examples:
  coldproof perturb A B --seed 1
  coldproof perturb A B --seed 1 --ulp";

/// `coldproof faults`
#[derive(Debug, Subcommand)]
pub enum FaultsAction {
    /// Every fault, with what it does.
    List {
        /// How they are printed.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Switch each on in the lane that shows it, and its twin: exit code 0 if all are found and all
    /// twins are silent.
    Run(FaultsRunArgs),
}

/// `coldproof faults run`
#[derive(Debug, Args)]
#[command(after_long_help = FAULTS_EXAMPLES)]
pub struct FaultsRunArgs {
    /// Only these faults (may be given several times).
    #[arg(long = "id", value_name = "ID", value_delimiter = ',')]
    pub ids: Vec<String>,
    /// The checkpoint that is served first; with neither --from nor --to, a small pair is made of
    /// the family that each fault is made for.
    #[arg(long, value_name = "DIR", requires = "to")]
    pub from: Option<Utf8PathBuf>,
    /// The checkpoint that it is updated to.
    #[arg(long, value_name = "DIR", requires = "from")]
    pub to: Option<Utf8PathBuf>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

const FAULTS_EXAMPLES: &str = "\
Examples:
  coldproof faults run
  coldproof faults run --id F2.01 --id F7.02
  coldproof faults run --from A --to B --format json";

/// `coldproof check`
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  coldproof check run/evidence.jsonl --require 1,2,3")]
pub struct CheckArgs {
    /// Recorded evidence.
    #[arg(value_name = "EVIDENCE.jsonl")]
    pub evidence: Utf8PathBuf,
    /// What must be proven, instead of what the run required.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub require: Vec<String>,
    /// Findings that are known: a TOML file. A run whose findings are all listed passes, one that
    /// lists what is gone fails.
    #[arg(long, value_name = "FILE")]
    pub known: Option<Utf8PathBuf>,
    /// Write verdict.json and junit.xml here.
    #[arg(long, value_name = "DIR")]
    pub out: Option<Utf8PathBuf>,
    /// How the verdict is printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `coldproof keys`
#[derive(Debug, Args)]
#[command(after_long_help = KEYS_EXAMPLES)]
pub struct KeysArgs {
    /// The checkpoint.
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: Utf8PathBuf,
    /// The model's config.json, where the checkpoint has none or another is meant.
    #[arg(long, value_name = "CONFIG")]
    pub model: Option<Utf8PathBuf>,
    /// How the accounts are printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `coldproof digest`
#[derive(Debug, Args)]
#[command(after_long_help = DIGEST_EXAMPLES)]
pub struct DigestArgs {
    /// The checkpoint.
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: Utf8PathBuf,
    /// Another checkpoint; exit code 1 on a difference.
    #[arg(long, value_name = "OTHER")]
    pub against: Option<Utf8PathBuf>,
    /// How digests are printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `coldproof perturb`
#[derive(Debug, Args)]
#[command(after_long_help = PERTURB_EXAMPLES)]
pub struct PerturbArgs {
    /// The checkpoint to start from.
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: Utf8PathBuf,
    /// A folder that does not exist or is empty.
    #[arg(value_name = "OUT")]
    pub out: Utf8PathBuf,
    /// The seed.
    #[arg(long, value_name = "N")]
    pub seed: u64,
    /// Move one element of one tensor by one unit in the last place, and name it.
    #[arg(long)]
    pub ulp: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `coldproof sentinel`
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  coldproof sentinel A sentinels")]
pub struct SentinelArgs {
    /// The checkpoint whose names and shapes are taken.
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: Utf8PathBuf,
    /// A folder that does not exist or is empty; gets OUT/0, OUT/1, ….
    #[arg(value_name = "OUT")]
    pub out: Utf8PathBuf,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
