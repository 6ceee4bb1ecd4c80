//! What was typed, as what it means.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use clap::ValueEnum as _;
use coldproof_contract::evidence::{LaneName, RequiredItem};
use coldproof_contract::words::StepName;
use coldproof_lanes::adapter_swap::AdapterSwap;
use coldproof_lanes::payload::{Payload, UnknownPayload};
use coldproof_reference::faults::FAULTS;

use crate::args::{AdapterVia, Format, LaneArg, ProveArgs, SkipArg, Via};
use crate::error::Failure;

/// All categories and the transition.
#[must_use]
pub(crate) fn everything() -> Vec<RequiredItem> {
    (1..=7).map(RequiredItem::Category).chain([RequiredItem::Transition]).collect()
}

/// What `prove` was asked for.
#[derive(Clone, Debug)]
pub(crate) struct ProveSettings {
    /// The two checkpoints; absent where a pair is to be made.
    pub(crate) checkpoints: Option<(Utf8PathBuf, Utf8PathBuf)>,
    /// The draft models beside them.
    pub(crate) draft: Option<DraftSettings>,
    /// Tensor-parallel ranks; absent where that was left open.
    pub(crate) tp: Option<u32>,
    /// Pipeline stages.
    pub(crate) pp: u32,
    /// Ranks that experts are spread over; absent where that was left open.
    pub(crate) ep: Option<u32>,
    /// Data-parallel replicas; absent where that was left open.
    pub(crate) dp: Option<u32>,
    /// Lanes to run.
    pub(crate) lanes: BTreeSet<LaneName>,
    /// Whether these were typed.
    pub(crate) names_lanes: bool,
    /// What must be proven.
    pub(crate) required: Vec<RequiredItem>,
    /// The engine under test.
    pub(crate) engine: EngineSettings,
    /// What the sender makes of every delivery of B.
    pub(crate) payload: Vec<Payload>,
    /// The adapters of the adapters lane.
    pub(crate) adapters: Option<AdapterSettings>,
    /// Steps that every update leaves out.
    pub(crate) skipped: Vec<StepName>,
    /// The list of known findings.
    pub(crate) known: Option<Utf8PathBuf>,
    /// Where results go.
    pub(crate) out: Option<Utf8PathBuf>,
    /// The seed.
    pub(crate) seed: u64,
    /// The longest that a step may take.
    pub(crate) deadline_ms: u64,
    /// How the verdict is printed.
    pub(crate) format: Format,
}

/// Two draft models.
#[derive(Clone, Debug)]
pub(crate) enum DraftSettings {
    /// A pair is to be made.
    Made,
    /// These folders.
    Given(Utf8PathBuf, Utf8PathBuf),
}

/// Two adapters, and how one takes the other's name.
#[derive(Clone, Debug)]
pub(crate) struct AdapterSettings {
    /// The folders of the old one and the new one; absent: two are made.
    pub(crate) folders: Option<(Utf8PathBuf, Utf8PathBuf)>,
    /// How.
    pub(crate) swap: AdapterSwap,
}

/// Which engine, and how it is started.
#[derive(Clone, Debug)]
pub(crate) enum EngineSettings {
    /// The embedded one.
    Reference {
        /// Faults to switch on.
        faults: Vec<String>,
        /// Whether it lies.
        lying: bool,
    },
    /// vLLM, in a Python of its own.
    Vllm {
        /// The interpreter; absent: the one that runs this program, or `python3`.
        python: Option<Utf8PathBuf>,
        /// How updates reach it.
        via: String,
        /// Engine arguments as one JSON object.
        options: String,
    },
}

impl EngineSettings {
    /// Faults that are switched on.
    pub(crate) fn faults(&self) -> &[String] {
        match self {
            Self::Reference { faults, .. } => faults,
            Self::Vllm { .. } => &[],
        }
    }

    /// Whether the engine can be started at a topology that was not asked for.
    pub(crate) const fn is_embedded(&self) -> bool {
        matches!(self, Self::Reference { .. })
    }
}

impl ProveSettings {
    /// Checks and completes what was typed.
    ///
    /// # Errors
    /// Options that contradict each other or mean nothing.
    pub(crate) fn of(args: &ProveArgs) -> Result<Self, Failure> {
        let engine = engine(args)?;
        let checkpoints = match (&args.from, &args.to) {
            (None, None) => None,
            (Some(from), Some(to)) => Some((from.clone(), to.clone())),
            (Some(_), None) => return Err(one_alone("--from", "--to", PAIR)),
            (None, Some(_)) => return Err(one_alone("--to", "--from", PAIR)),
        };
        let adapters = adapters(args, &engine)?;
        topology(args, engine.is_embedded())?;
        let lanes = lanes(&args.lanes, adapters.is_some(), engine.is_embedded())?;
        let required = match (args.require.is_empty(), args.lanes.is_empty()) {
            (false, _) => requirements(&args.require)?,
            (true, true) => everything(),
            (true, false) => judged_by(&lanes),
        };
        let deadline = args.deadline.unwrap_or(match &engine {
            EngineSettings::Reference { .. } => 60,
            EngineSettings::Vllm { .. } => 600,
        });
        let deadline_ms = deadline.checked_mul(1_000).filter(|ms| *ms > 0).ok_or_else(|| {
            Failure::usage("--deadline", "the deadline is 0 or too long", "give it in seconds")
        })?;
        Ok(Self {
            checkpoints,
            draft: draft(args, engine.is_embedded())?,
            tp: args.tp,
            pp: args.pp,
            ep: args.ep,
            dp: args.dp,
            lanes,
            names_lanes: !args.lanes.is_empty(),
            required,
            engine,
            payload: args.payload.iter().map(|text| payload(text)).collect::<Result<_, _>>()?,
            adapters,
            skipped: skipped(&args.skip),
            known: args.known.clone(),
            out: args.out.clone(),
            seed: args.seed,
            deadline_ms,
            format: args.format,
        })
    }
}

fn engine(args: &ProveArgs) -> Result<EngineSettings, Failure> {
    let embedded = args.engine == "reference";
    let foreign = [
        ("--python", args.python.is_some()),
        ("--via", args.via != Via::default()),
        ("--engine-arg", !args.engine_args.is_empty()),
    ];
    let own = [("--fault", !args.faults.is_empty()), ("--lying", args.lying)];
    let contradiction = |options: &[(&str, bool)], owner: &str| {
        let given = options.iter().find(|(_, given)| *given);
        given.map(|(option, _)| {
            let text = format!("{option} is an option of {owner}");
            Failure::usage(option, text, format!("leave {option} out, or choose another --engine"))
        })
    };
    match args.engine.as_str() {
        "reference" | "vllm" => {}
        name => {
            return Err(Failure::usage(
                "--engine",
                format!("no adapter for engine `{name}` in this version"),
                "`reference` is embedded, `vllm` is started; docs/adapters.md: how to write one",
            ));
        }
    }
    if embedded {
        return match contradiction(&foreign, "vLLM") {
            Some(failure) => Err(failure),
            None => {
                Ok(EngineSettings::Reference { faults: args.faults.clone(), lying: args.lying })
            }
        };
    }
    if let Some(failure) = contradiction(&own, "the embedded engine") {
        return Err(failure);
    }
    if args.from.is_none() {
        return Err(Failure::usage(
            "--from",
            "--engine vllm needs checkpoints",
            "give --from and --to; `coldproof perturb A B --seed 1` makes a B",
        ));
    }
    let via = args.via.to_possible_value().map(|value| value.get_name().to_owned());
    Ok(EngineSettings::Vllm {
        python: args.python.clone(),
        via: via.unwrap_or_default(),
        options: options(&args.engine_args)?,
    })
}

/// Draft models of the embedded engine.
fn draft(args: &ProveArgs, embedded: bool) -> Result<Option<DraftSettings>, Failure> {
    let draft = match (&args.draft_from, &args.draft_to) {
        (Some(from), Some(to)) => Some(DraftSettings::Given(from.clone(), to.clone())),
        (Some(_), None) => return Err(one_alone("--draft-from", "--draft-to", "")),
        (None, Some(_)) => return Err(one_alone("--draft-to", "--draft-from", "")),
        (None, None) => args.draft.then_some(DraftSettings::Made),
    };
    if draft.is_some() && !embedded {
        return Err(Failure::usage(
            "--draft",
            "a draft model is an option of the embedded engine",
            "leave it out; --engine-arg speculative_config={…} gives vLLM one, which no lane sees",
        ));
    }
    Ok(draft)
}

/// Whether there can be as many ranks along each axis.
fn topology(args: &ProveArgs, embedded: bool) -> Result<(), Failure> {
    let axes = [("--tp", args.tp), ("--pp", Some(args.pp)), ("--ep", args.ep), ("--dp", args.dp)];
    for (option, value) in axes {
        if value == Some(0) {
            let text = format!("{option} 0 is no topology");
            return Err(Failure::usage(option, text, "the smallest is 1"));
        }
    }
    for (option, value) in axes.into_iter().skip(1) {
        let value = value.unwrap_or(1);
        if value != 1 && !embedded {
            return Err(Failure::usage(
                option,
                format!("{option} {value} is an option of the embedded engine"),
                format!("leave {option} out; --tp is what the adapter of vLLM passes on"),
            ));
        }
    }
    Ok(())
}

/// `NAME=JSON` pairs as one JSON object; what is no JSON is text.
fn options(typed: &[String]) -> Result<String, Failure> {
    let mut options = serde_json::Map::new();
    for pair in typed {
        let Some((name, value)) = pair.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(Failure::usage(
                "--engine-arg",
                format!("`{pair}` is no NAME=JSON"),
                "for example --engine-arg max_model_len=256",
            ));
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        options.insert(name.to_owned(), value);
    }
    Ok(serde_json::Value::Object(options).to_string())
}

fn payload(text: &str) -> Result<Payload, Failure> {
    text.parse().map_err(|error: UnknownPayload| {
        Failure::usage(
            "--payload",
            error.to_string(),
            "cut:COUNT, without:TENSOR, twice:TENSOR, stale-copy:TENSOR, extra:NAME, \
             rename:OLD=NEW, reversed, float32",
        )
    })
}

fn skipped(typed: &[SkipArg]) -> Vec<StepName> {
    let step = |skip: &SkipArg| match skip {
        SkipArg::Invalidate => StepName::Invalidate,
    };
    typed.iter().map(step).collect::<BTreeSet<_>>().into_iter().collect()
}

/// What stands for two checkpoints that were not given.
const PAIR: &str = ": then a small pair is made";

fn one_alone(given: &str, other: &str, neither: &str) -> Failure {
    Failure::usage(
        given,
        format!("{given} was given without {other}"),
        format!("give {other} too, or neither{neither}"),
    )
}

/// Both adapters or neither. The embedded engine's are made where its lane was asked for, or where
/// all lanes run and a fault shows in that one.
fn adapters(args: &ProveArgs, engine: &EngineSettings) -> Result<Option<AdapterSettings>, Failure> {
    let shown = |id: &String| {
        let id = id.strip_suffix('~').unwrap_or(id);
        FAULTS.iter().any(|row| row.id.as_str() == id && row.lane() == Some("adapters"))
    };
    let needed = args.lanes.is_empty() && engine.faults().iter().any(shown);
    let made = engine.is_embedded() && (needed || args.lanes.contains(&LaneArg::Adapters));
    let swap = match args.adapter_via {
        AdapterVia::SameFolder => AdapterSwap::SameFolder,
        AdapterVia::OtherFolder => AdapterSwap::OtherFolder,
        AdapterVia::SameFolderReset => AdapterSwap::SameFolderReset,
    };
    match (&args.adapter_from, &args.adapter_to) {
        (Some(from), Some(to)) => {
            Ok(Some(AdapterSettings { folders: Some((from.clone(), to.clone())), swap }))
        }
        (Some(_), None) => Err(one_alone("--adapter-from", "--adapter-to", "")),
        (None, Some(_)) => Err(one_alone("--adapter-to", "--adapter-from", "")),
        (None, None) if made => Ok(Some(AdapterSettings { folders: None, swap })),
        (None, None) if args.adapter_via != AdapterVia::default() => Err(Failure::usage(
            "--adapter-via",
            "--adapter-via says how an adapter is replaced, and there is none",
            "give --adapter-from and --adapter-to",
        )),
        (None, None) => Ok(None),
    }
}

/// The lanes that were asked for; all that have what they need where none was.
fn lanes(typed: &[LaneArg], adapters: bool, embedded: bool) -> Result<BTreeSet<LaneName>, Failure> {
    let all = LaneArg::value_variants().iter();
    let lane = |lane: &LaneArg| match lane {
        LaneArg::Differential => LaneName::Differential,
        LaneArg::Routing => LaneName::Routing,
        LaneArg::Names => LaneName::Names,
        LaneArg::Caches => LaneName::Caches,
        LaneArg::Composite => LaneName::Composite,
        LaneArg::Adapters => LaneName::Adapters,
        LaneArg::Partial => LaneName::Partial,
        LaneArg::Kernel => LaneName::Kernel,
        LaneArg::Tiers => LaneName::Tiers,
        LaneArg::Placement => LaneName::Placement,
    };
    if typed.is_empty() {
        let has_what_it_needs = |one: &&LaneArg| match one {
            LaneArg::Adapters => adapters,
            // No other adapter begins an update of some slots or in kernel format, is started with
            // tiers, or moves experts.
            LaneArg::Partial | LaneArg::Kernel | LaneArg::Tiers | LaneArg::Placement => embedded,
            _ => true,
        };
        return Ok(all.filter(has_what_it_needs).map(lane).collect());
    }
    let asked = typed.contains(&LaneArg::Adapters);
    let refused = |option: &str, text: &str, hint: &str| Err(Failure::usage(option, text, hint));
    let own = [
        (LaneArg::Partial, "the partial lane", "begins an update of some slots"),
        (LaneArg::Kernel, "the kernel lane", "begins an update in kernel format"),
        (LaneArg::Tiers, "the tiers lane", "is started with KV tiers"),
        (LaneArg::Placement, "the placement lane", "moves experts"),
    ];
    let own = own.iter().find(|(lane, ..)| typed.contains(lane) && !embedded);
    if let Some((_, lane, what)) = own {
        let text = format!("{lane} runs on the embedded engine alone: no other adapter {what}");
        return refused("--lane", &text, &format!("leave {lane} out"));
    }
    match (asked, adapters) {
        (true, false) => refused(
            "--lane",
            "the adapters lane has no adapters",
            "give --adapter-from and --adapter-to",
        ),
        (false, true) => refused(
            "--adapter-from",
            "no lane of this run serves adapters",
            "add --lane adapters, or leave --adapter-from and --adapter-to out",
        ),
        _ => Ok(typed.iter().map(lane).collect()),
    }
}

/// What these lanes judge.
fn judged_by(lanes: &BTreeSet<LaneName>) -> Vec<RequiredItem> {
    let mut required = BTreeSet::new();
    for lane in lanes {
        match lane {
            LaneName::Differential => required.extend([1, 2, 3, 4].map(RequiredItem::Category)),
            LaneName::Routing | LaneName::Placement => {
                required.extend([RequiredItem::Category(5)]);
            }
            LaneName::Names => required.extend([RequiredItem::Category(6)]),
            LaneName::Caches | LaneName::Adapters | LaneName::Tiers => {
                required.extend([RequiredItem::Category(7)]);
            }
            LaneName::Composite => required.extend([RequiredItem::Transition]),
            LaneName::Partial => required.extend([RequiredItem::Category(4)]),
            LaneName::Kernel => required.extend([2, 3].map(RequiredItem::Category)),
        }
    }
    required.into_iter().collect()
}

/// A typed list of requirements.
///
/// # Errors
/// Something that is neither a category nor `transition`.
pub(crate) fn requirements(typed: &[String]) -> Result<Vec<RequiredItem>, Failure> {
    let item = |text: &String| match text.trim() {
        "transition" => Ok(RequiredItem::Transition),
        other => match other.parse() {
            Ok(number @ 1..=7) => Ok(RequiredItem::Category(number)),
            _ => Err(Failure::usage(
                "--require",
                format!("`{other}` is no category"),
                "categories are 1 to 7; the transition is `transition`",
            )),
        },
    };
    let set: Result<BTreeSet<RequiredItem>, Failure> = typed.iter().map(item).collect();
    Ok(set?.into_iter().collect())
}
