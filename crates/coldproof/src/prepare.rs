//! From checkpoint folders to the inputs of a run.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use coldproof_checkpoint::arch::ModelConfig;
use coldproof_checkpoint::{Checkpoint, CheckpointError, perturb_apart};
use coldproof_contract::routing::{Placement, SourceRule};
use coldproof_contract::words::Topology;
use coldproof_lanes::inputs::{Delivery, Inputs};
use coldproof_lanes::requests::Requests;

use crate::error::Failure;
use crate::interrupt;
use crate::progress::Spinner;
use crate::settings::ProveSettings;

mod deliveries;
mod faults;
mod pair;
mod read;
mod topology;

use deliveries::{deliver, header, sentinels, spellings};
pub(crate) use read::one_content;
use read::{Read, read};

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
