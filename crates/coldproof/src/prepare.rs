//! From checkpoint folders to the inputs of a run: headers, accounts, digests, and the checkpoints
//! that lanes need beside A and B.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::arch::{Catalogue, ModelConfig, SpellingName};
use coldproof_checkpoint::{
    Accounting, Checkpoint, CheckpointError, SentinelPlan, digest_checkpoint, perturb_apart,
    redundant_differs, respell, rules_in, rules_of, with_alias,
};
use coldproof_contract::evidence::{CheckpointHeader, LaneName, SourceHeader};
use coldproof_contract::routing::{Placement, SourceRule};
use coldproof_contract::words::{CheckpointLabel, Dtype, Topology};
use coldproof_lanes::inputs::{Delivery, Inputs};
use coldproof_lanes::requests::Requests;

use crate::error::Failure;
use crate::interrupt;
use crate::progress::Spinner;
use crate::settings::ProveSettings;

mod faults;
mod pair;
mod topology;

/// The fewest positions that the fixed requests fit in.
const POSITIONS_MIN: u64 = 4;

/// Models of up to this many parameters get a control of every slot with every token.
const SMALL: u64 = 20_000_000;

/// Inputs, and the files that they were read from.
pub(crate) struct Prepared {
    /// What the run works on.
    pub(crate) inputs: Inputs,
    from: Checkpoint,
    to: Checkpoint,
    /// Holds made checkpoints until the run is over.
    _scratch: tempfile::TempDir,
}

impl Prepared {
    /// Whether A and B are still the files that were read.
    ///
    /// # Errors
    /// One of them changed.
    pub(crate) fn verify_unchanged(&self) -> Result<(), Failure> {
        self.from.verify_unchanged().and_then(|()| self.to.verify_unchanged()).map_err(failure)
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

/// One checkpoint with all that is known of it.
struct Read {
    checkpoint: Checkpoint,
    rules: Vec<SourceRule>,
    catalogue: Catalogue,
    model: ModelConfig,
}

/// Makes the inputs of a run.
pub(crate) fn prepare(settings: &ProveSettings, progress: &Spinner) -> Result<Prepared, Failure> {
    let (scratch, made) = scratch()?;
    progress.say("reading checkpoints");
    let rows = faults::rows(&settings.engine.faults())?;
    let family = faults::family(&rows)?;
    let (from, to) = match &settings.checkpoints {
        Some((from, to)) => (from.clone(), to.clone()),
        None => pair::make(family.unwrap_or("qwen3_moe"), settings.seed, &made)?,
    };
    let (from, to) = (read(&from)?, read(&to)?);
    same_model(&from, &to)?;
    family_fits(family, &to.model)?;
    let least = faults::least_tp(&rows);
    let topology = topology::asked(&to.model, &to.rules, settings, least)?;
    let mut notes = Vec::new();
    let routing_topology =
        topology::routing(&to.model, &to.rules, topology, settings, least, &mut notes);
    progress.say("making checkpoints that differ in every element");
    let changed = made.join("changed");
    perturb_apart(
        (&from.checkpoint, &from.rules),
        (&to.checkpoint, &to.rules),
        &to.catalogue.tied,
        &changed,
        settings.seed,
    )
    .map_err(failure)?;
    let changed = read(&changed)?;
    let mut headers = Vec::new();
    let mut delivery = |label: &str, read: &Read| -> Result<Delivery, Failure> {
        headers.push(header(label, None, read, &to.rules, &made)?);
        Ok(deliver(label, read, &[]))
    };
    let (a, b) = (delivery("A", &from)?, delivery("B", &to)?);
    let p = delivery("P", &changed)?;
    let (sentinel_plan, sentinels) = sentinels(settings, &to, &made)?;
    let spellings = spellings(settings, &to, &made, &mut headers)?;
    let inputs = Inputs {
        from: a,
        to: b,
        changed: p,
        sentinels,
        sentinel_plan,
        spellings,
        headers,
        rules: to.rules.clone(),
        topology,
        routing_topology,
        lanes: settings.lanes.clone(),
        required: settings.required.clone(),
        seeded: settings.engine.faults().iter().filter(|id| !id.ends_with('~')).cloned().collect(),
        requests: requests(&to.model, &to.rules),
        seed: settings.seed,
        deadline_ms: settings.deadline_ms,
        notes,
        environment: environment(),
    };
    Ok(Prepared { inputs, from: from.checkpoint, to: to.checkpoint, _scratch: scratch })
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

fn family_fits(needed: Option<&str>, model: &ModelConfig) -> Result<(), Failure> {
    let found = model.family.model_type();
    match needed.filter(|needed| *needed != found) {
        None => Ok(()),
        Some(needed) => Err(Failure::usage(
            "--fault",
            format!("the fault needs `{needed}`, and the model is `{found}`"),
            "leave --from and --to out, or give checkpoints of that family",
        )),
    }
}

/// Reads one checkpoint and accounts for its names: what cannot be loaded cold has no cold load to
/// be compared with.
fn read(folder: &Utf8Path) -> Result<Read, Failure> {
    let checkpoint = Checkpoint::open(folder).map_err(failure)?;
    let model = ModelConfig::read(folder).map_err(failure)?;
    computable(folder, &model)?;
    let catalogue = Catalogue::of(&model);
    let accounting = Accounting::of(&catalogue, checkpoint.tensors().values());
    if let Some((object, text)) = first_trouble(&accounting) {
        return Err(Failure::new(
            "names",
            object,
            format!("`{folder}`: {text}"),
            format!("`coldproof keys {folder}` lists all of it"),
        ));
    }
    let differing = redundant_differs(&checkpoint, &accounting).map_err(failure)?;
    if let Some(alias) = differing.first() {
        return Err(Failure::new(
            "names",
            alias.source.as_str(),
            format!(
                "`{folder}`: `{}` and `{}` are one tensor in this model, and their bytes differ",
                alias.source, alias.target
            ),
            "leave the alias out, or set tie_word_embeddings to false",
        ));
    }
    let rules = rules_of(&catalogue, &checkpoint);
    Ok(Read { checkpoint, rules, catalogue, model })
}

/// What the embedded engine can compute.
fn computable(folder: &Utf8Path, model: &ModelConfig) -> Result<(), Failure> {
    let refused = |field: &str, text: String, hint: &str| {
        Err(Failure::new("model", field, format!("`{folder}`: {text}"), hint))
    };
    if model.dtype != Dtype::Bf16 {
        let text =
            format!("the model is {} and the embedded engine computes from BF16", model.dtype);
        return refused("dtype", text, "convert the checkpoint to bfloat16");
    }
    if model.max_positions < POSITIONS_MIN {
        let text = format!("{} positions are too few for any request", model.max_positions);
        return refused("max_position_embeddings", text, "the smallest is 4");
    }
    Ok(())
}

fn first_trouble(accounting: &Accounting) -> Option<(String, String)> {
    if let Some(missing) = accounting.missing.first() {
        let more = accounting.missing.len() - 1;
        let text = format!("`{}` is missing{}", missing.source, and_more(more));
        return Some((missing.source.clone(), text));
    }
    if let Some(mismatched) = accounting.mismatched.first() {
        let ((want, shape), (found, has)) = (&mismatched.expected, &mismatched.found);
        let text = format!(
            "`{}` is {found} {has:?} where the model needs {want} {shape:?}",
            mismatched.source
        );
        return Some((mismatched.source.clone(), text));
    }
    if let Some(ambiguous) = accounting.ambiguous.first() {
        let text = format!("`{}` is there in two spellings", ambiguous.slot);
        return Some((ambiguous.slot.0.clone(), text));
    }
    let unexpected = accounting.unexpected.first()?;
    let more = accounting.unexpected.len() - 1;
    let text = format!("`{unexpected}` belongs to nothing in the model{}", and_more(more));
    Some((unexpected.clone(), text))
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(", and {more} more") }
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

fn deliver(label: &str, read: &Read, allowed_missing: &[String]) -> Delivery {
    let tied = read.catalogue.tied.iter().map(|tied| tied.source.clone());
    Delivery {
        label: CheckpointLabel(label.to_owned()),
        folder: read.checkpoint.directory().to_owned(),
        tensors: read.checkpoint.in_file_order().into_iter().cloned().collect(),
        required: read.rules.iter().map(|rule| rule.source.clone()).collect(),
        allowed_missing: tied.chain(allowed_missing.iter().cloned()).collect(),
    }
}

/// A folder as evidence has it: what was made for the run lies nowhere that matters.
fn shown(folder: &Utf8Path, made: &Utf8Path) -> String {
    match folder.strip_prefix(made) {
        Ok(name) => format!("(made) {name}"),
        Err(_) => folder.to_string(),
    }
}

/// What the evidence keeps of a checkpoint. Its rules are kept where they are not the usual ones.
fn header(
    label: &str,
    content: Option<&str>,
    read: &Read,
    usual: &[SourceRule],
    made: &Utf8Path,
) -> Result<CheckpointHeader, Failure> {
    let digests = digest_checkpoint(&read.checkpoint).map_err(failure)?;
    let sources = digests.sources.iter().map(|(name, source)| SourceHeader {
        name: name.clone(),
        dtype: source.dtype,
        shape: source.shape.clone(),
        digest: source.digest,
    });
    Ok(CheckpointHeader {
        label: CheckpointLabel(label.to_owned()),
        path: shown(read.checkpoint.directory(), made),
        digest: digests.digest.clone(),
        sources: sources.collect(),
        content: content.map(|label| CheckpointLabel(label.to_owned())),
        rules: if read.rules == usual { Vec::new() } else { read.rules.clone() },
    })
}

fn sentinels(
    settings: &ProveSettings,
    to: &Read,
    made: &Utf8Path,
) -> Result<(Option<SentinelPlan>, Vec<Delivery>), Failure> {
    if !settings.lanes.contains(&LaneName::Routing) {
        return Ok((None, Vec::new()));
    }
    let plan = SentinelPlan::of(&to.checkpoint).map_err(failure)?;
    let folder = made.join("sentinels");
    plan.write(&to.checkpoint, &to.catalogue.tied, &folder).map_err(failure)?;
    let deliveries = (0..plan.digits()).map(|digit| {
        let read = read(&folder.join(digit.to_string()))?;
        Ok(deliver(&format!("S{digit}"), &read, &[]))
    });
    let deliveries = deliveries.collect::<Result<Vec<_>, Failure>>()?;
    Ok((Some(plan), deliveries))
}

/// B under every other spelling of its family.
fn spellings(
    settings: &ProveSettings,
    to: &Read,
    made: &Utf8Path,
    headers: &mut Vec<CheckpointHeader>,
) -> Result<Vec<Delivery>, Failure> {
    let mut deliveries = Vec::new();
    if !settings.lanes.contains(&LaneName::Names) {
        return Ok(deliveries);
    }
    for (name, spelling) in
        [("B-fused", SpellingName::Fused), ("B-per-expert", SpellingName::PerExpert)]
    {
        let rules = rules_in(&to.catalogue, spelling).filter(|rules| *rules != to.rules);
        let Some(rules) = rules else { continue };
        let folder = made.join(name);
        respell(&to.checkpoint, &to.rules, &rules, &folder).map_err(failure)?;
        let read = read(&folder)?;
        headers.push(header(name, Some("B"), &read, &to.rules, made)?);
        deliveries.push(deliver(name, &read, &[]));
    }
    for tied in &to.catalogue.tied {
        if to.checkpoint.get(&tied.source).is_some() {
            continue;
        }
        let folder = made.join("B-tied-twice");
        with_alias(&to.checkpoint, &tied.source, &tied.target, &folder).map_err(failure)?;
        let read = read(&folder)?;
        headers.push(header("B-tied-twice", Some("B"), &read, &to.rules, made)?);
        deliveries.push(deliver("B-tied-twice", &read, &[]));
    }
    Ok(deliveries)
}

fn requests(model: &ModelConfig, rules: &[SourceRule]) -> Requests {
    let parameters: u64 = rules.iter().map(|rule| rule.shape.iter().product::<u64>()).sum();
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Requests {
        vocabulary: narrow(model.vocab_size),
        positions_max: narrow(model.max_positions),
        control: if parameters <= SMALL { 23 } else { 2 },
    }
}

fn environment() -> BTreeMap<String, String> {
    let pairs = [
        ("versions", concat!("coldproof ", env!("CARGO_PKG_VERSION"))),
        // Bit equality holds within one machine: kernels use the baseline and no FMA.
        ("instruction_set", std::env::consts::ARCH),
        ("os", std::env::consts::OS),
        ("graph_mode", "captured decode, eager prefill"),
        ("compile_cache", "none"),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Whether sources can be placed on a topology.
fn placeable(rules: &[SourceRule], topology: Topology) -> bool {
    Placement::of(rules, topology).is_ok()
}
