//! From checkpoint folders to the inputs of a run.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::{Checkpoint, CheckpointError, TensorRef, perturb_apart, widen};
use coldproof_contract::evidence::LaneName;
use coldproof_contract::routing::{Placement, SourceRule};
use coldproof_contract::words::Topology;
use coldproof_lanes::adapter_swap::AdapterPair;
use coldproof_lanes::inputs::{Delivery, Inputs};
use coldproof_lanes::payload::Payload;
use coldproof_lanes::placement;
use coldproof_lanes::requests::{ImageShape, Requests};

use crate::error::Failure;
use crate::interrupt;
use crate::progress::Spinner;
use crate::settings::ProveSettings;

mod adapters;
mod deliveries;
mod drafts;
mod faults;
mod pair;
mod read;
mod topology;

use deliveries::{deliver, header, partial, sentinels, spellings};
pub(crate) use faults::FAULT_OPTION;
pub(crate) use read::one_content;
use read::{Loader, Model, Read, read};

/// Models of up to this many parameters get a control of every slot with every token.
const SMALL: u64 = 20_000_000;

/// Inputs, and the files that they were read from.
pub(crate) struct Prepared {
    /// What the run works on.
    pub(crate) inputs: Inputs,
    /// Every checkpoint that was given.
    given: Vec<Checkpoint>,
    adapters: Option<AdapterPair>,
    /// Holds made checkpoints until the run is over.
    _scratch: tempfile::TempDir,
}

impl Prepared {
    /// Whether A and B are still the files that were read.
    ///
    /// # Errors
    /// One of them changed.
    pub(crate) fn verify_unchanged(&self) -> Result<(), Failure> {
        self.given.iter().try_for_each(Checkpoint::verify_unchanged).map_err(failure)?;
        self.adapters.as_ref().map_or(Ok(()), adapters::verify_unchanged)
    }
}

/// A checkpoint's fault, as the user sees it.
pub(crate) fn failure(error: CheckpointError) -> Failure {
    let text = match &error.tensor {
        Some(tensor) => format!("`{}`, tensor `{tensor}`: {}", error.file, error.fault),
        None => format!("`{}`: {}", error.file, error.fault),
    };
    Failure::new(error.code(), error.object(), text, error.mend())
}

/// Makes the inputs of a run.
pub(crate) fn prepare(settings: &ProveSettings, progress: &Spinner) -> Result<Prepared, Failure> {
    let (scratch, made) = scratch()?;
    progress.say("reading checkpoints");
    let embedded = settings.engine.is_embedded();
    let loader = if embedded { Loader::Embedded } else { Loader::Foreign };
    let rows = faults::rows(settings.engine.faults())?;
    let family = faults::family(&rows)?;
    let (from, to, given) = checkpoints(settings, family, loader, &made)?;
    if embedded {
        faults::fit(&rows, &to.rules, to.model.model_type())?;
    }
    let least = faults::least(&rows);
    let topology = topology::asked(&to, settings, (least, faults::least_tp_of_all(&rows)))?;
    let mut notes = Vec::new();
    let routing_topology = match &to.model {
        Model::Known(config) if embedded => {
            topology::routing(config, &to.rules, topology, settings, least.tp, &mut notes)
        }
        Model::Known(_) | Model::Outline(_) => topology,
    };
    notes.extend(no_image(&to.model));
    let adapted = (&to.model, settings.seed);
    let adapters = settings.adapters.as_ref().map(|asked| adapters::pair(asked, adapted, &made));
    let adapters = adapters.transpose()?;
    progress.say("making checkpoints that differ in every element");
    let changed = changed(&from, &to, &made, settings.seed)?;
    let changed = read(&changed, loader)?;
    let mut headers = Vec::new();
    let mut delivery = |label: &str, read: &Read| -> Result<Delivery, Failure> {
        headers.push(header(label, None, read, &to.rules, &made)?);
        Ok(deliver(label, read, &[]))
    };
    let (a, mut b) = (delivery("A", &from)?, delivery("B", &to)?);
    b.sent = payload(settings, (&a, &b), &to, &made)?;
    notes.extend(at_fault(settings));
    let p = delivery("P", &changed)?;
    headers.extend(adapters::headers(adapters.as_ref(), &to, &headers));
    let (sentinel_plan, sentinels) = sentinels(settings, loader, &to, &made)?;
    let spellings = spellings(settings, loader, &to, &made, &mut headers)?;
    let partial = partial(settings, (&from, &to), &made, &mut headers)?;
    let lanes = lanes(settings, (&to, topology), !partial.is_empty(), &mut notes)?;
    let inputs = Inputs {
        from: a,
        to: b,
        changed: p,
        sentinels,
        sentinel_plan,
        spellings,
        partial,
        kernel: made.join("kernel"),
        headers,
        rules: to.rules.clone(),
        topology,
        routing_topology,
        lanes,
        required: settings.required.clone(),
        seeded: settings.engine.faults().iter().filter(|id| !id.ends_with('~')).cloned().collect(),
        tiers: made.join("tiers"),
        adapters: adapters.clone(),
        skipped: settings.skipped.clone(),
        requests: requests(&to, embedded),
        seed: settings.seed,
        deadline_ms: settings.deadline_ms,
        notes,
        environment: environment(&to.model, embedded),
    };
    Ok(Prepared { inputs, given, adapters, _scratch: scratch })
}

/// What a trainer at fault does in this run.
fn at_fault(settings: &ProveSettings) -> impl Iterator<Item = String> {
    let sent = settings.payload.iter();
    let sent = sent.map(|payload| format!("every update to B was delivered as `{payload}`"));
    let left = settings.skipped.iter().map(|step| format!("every update left step `{step}` out"));
    sent.chain(left)
}

/// A and B as they are read: those given, or a pair of that family, each with its draft model where
/// there is to be one; and what was read for them.
fn checkpoints(
    settings: &ProveSettings,
    family: Option<&str>,
    loader: Loader,
    made: &Utf8Path,
) -> Result<(Read, Read, Vec<Checkpoint>), Failure> {
    let (from, to) = match &settings.checkpoints {
        Some((from, to)) => (from.clone(), to.clone()),
        None => pair::make(family.unwrap_or("qwen3_moe"), settings.seed, made)?,
    };
    let (from, to) = (read(&from, loader)?, read(&to, loader)?);
    same_model(&from, &to)?;
    let given = vec![from.checkpoint.clone(), to.checkpoint.clone()];
    match &settings.draft {
        None => Ok((from, to, given)),
        Some(draft) => drafts::with(draft, (&from, &to), (settings.seed, made), given),
    }
}

/// The lanes to run. Where no source has a place, no origin can be wrong; where nothing can be
/// updated in part, no update is; where ranks share no experts, none move.
///
/// # Errors
/// Experts were asked to move that cannot.
fn lanes(
    settings: &ProveSettings,
    (to, topology): (&Read, Topology),
    partial: bool,
    notes: &mut Vec<String>,
) -> Result<BTreeSet<LaneName>, Failure> {
    let mut lanes = settings.lanes.clone();
    let moves = placement::applies(&to.rules, topology);
    if !moves && lanes.remove(&LaneName::Placement) && settings.names_lanes {
        return Err(Failure::usage(
            "--lane",
            "no two ranks share the experts of this model: none can move",
            "give a model that has experts and --ep 2 or more, or leave placement out",
        ));
    }
    if !partial && lanes.remove(&LaneName::Partial) {
        notes.push("A and B have no half of their slots in common: no partial update".to_owned());
    }
    if let Model::Outline(outline) = &to.model {
        lanes.remove(&LaneName::Routing);
        let what = &outline.model_type;
        notes.push(format!(
            "the catalogue has no places for `{what}` here: a cold load is the baseline"
        ));
    }
    Ok(lanes)
}

/// What is delivered of B.
fn payload(
    settings: &ProveSettings,
    (a, b): (&Delivery, &Delivery),
    to: &Read,
    made: &Utf8Path,
) -> Result<Vec<TensorRef>, Failure> {
    let wide = widened(settings, to, made)?;
    let mut tensors = b.sent.clone();
    for payload in &settings.payload {
        tensors = sent(payload, tensors, (a, b), &wide)?;
    }
    Ok(tensors)
}

/// B as F32, where a payload asks for it.
fn widened(
    settings: &ProveSettings,
    to: &Read,
    made: &Utf8Path,
) -> Result<Vec<TensorRef>, Failure> {
    if !settings.payload.contains(&Payload::Float32) {
        return Ok(Vec::new());
    }
    let folder = made.join("float32");
    widen(&to.checkpoint, &folder).map_err(failure)?;
    let wide = Checkpoint::open(&folder).map_err(failure)?;
    Ok(wide.in_file_order().into_iter().cloned().collect())
}

/// What a sender at fault makes of these tensors of B.
fn sent(
    payload: &Payload,
    tensors: Vec<TensorRef>,
    (a, b): (&Delivery, &Delivery),
    wide: &[TensorRef],
) -> Result<Vec<TensorRef>, Failure> {
    match payload.absent(&b.tensors) {
        None => Ok(payload.of(tensors, &a.tensors, wide)),
        Some(name) => Err(Failure::usage(
            "--payload",
            format!("`{name}` is no tensor of `{}`", b.folder),
            format!("`coldproof keys {}` lists them", b.folder),
        )),
    }
}

/// Makes P, which differs from A and from B in every element.
fn changed(from: &Read, to: &Read, made: &Utf8Path, seed: u64) -> Result<Utf8PathBuf, Failure> {
    let folder = made.join("changed");
    let (a, b) = ((&from.checkpoint, &*from.rules), (&to.checkpoint, &*to.rules));
    perturb_apart(a, b, to.tied(), &folder, seed).map_err(failure)?;
    Ok(folder)
}

/// The folder of made checkpoints, removed at the end of the run however it ends.
fn scratch() -> Result<(tempfile::TempDir, Utf8PathBuf), Failure> {
    let scratch = tempfile::Builder::new()
        .prefix("coldproof-")
        .tempdir()
        .map_err(|error| Failure::output("the temporary folder", &error))?;
    let made = Utf8PathBuf::from_path_buf(scratch.path().to_owned()).map_err(|path| {
        let path = path.display().to_string();
        Failure::new("output", path.clone(), format!("`{path}` is not UTF-8"), "set TMPDIR")
    })?;
    interrupt::remove_on_interrupt(&made);
    Ok((scratch, made))
}

fn same_model(from: &Read, to: &Read) -> Result<(), Failure> {
    if from.model == to.model {
        return Ok(());
    }
    Err(Failure::new(
        "model",
        to.checkpoint.directory().as_str(),
        format!(
            "`{}` and `{}` are different models; a live update keeps the model",
            from.checkpoint.directory(),
            to.checkpoint.directory()
        ),
        "compare their config.json",
    ))
}

fn requests(to: &Read, embedded: bool) -> Requests {
    let elements = to.checkpoint.tensors().values().map(TensorRef::elements);
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Requests {
        vocabulary: narrow(to.model.vocab_size()),
        positions_max: narrow(to.model.max_positions()),
        control: if embedded && elements.sum::<u64>() <= SMALL { 23 } else { 2 },
        image: image(&to.model),
    }
}

/// Why no request has an image though the model takes some.
fn no_image(model: &Model) -> Option<String> {
    let Model::Known(config) = model else { return None };
    config.vision.as_ref().filter(|_| image(model).is_none())?;
    Some("an image does not fit the model's positions: no request has one".to_owned())
}

/// What the images of a model are, where it takes some and a prompt has room for one.
fn image(model: &Model) -> Option<ImageShape> {
    let Model::Known(config) = model else { return None };
    let vision = config.vision.as_ref()?;
    let narrow = |value: u64| u32::try_from(value).ok();
    let size = narrow(vision.image_size)?;
    let rows = vision.image_tokens();
    let fits = rows + u64::from(ImageShape::BESIDE) <= config.max_positions;
    fits.then_some(ImageShape {
        shape: [narrow(vision.channels)?, size, size],
        rows: narrow(rows)?,
        token: narrow(vision.image_token)?,
    })
}

fn environment(model: &Model, embedded: bool) -> BTreeMap<String, String> {
    let graphs = if embedded { "captured decode, eager prefill" } else { "as the engine says" };
    let pairs = [
        ("versions", concat!("coldproof ", env!("CARGO_PKG_VERSION"))),
        // Bit equality holds within one machine.
        ("instruction_set", std::env::consts::ARCH),
        ("os", std::env::consts::OS),
        ("graph_mode", graphs),
        ("compile_cache", "none"),
        ("model", model.model_type()),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Whether sources can be placed on a topology.
fn placeable(rules: &[SourceRule], topology: Topology) -> bool {
    Placement::of(rules, topology).is_ok()
}
