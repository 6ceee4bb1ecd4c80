//! `coldproof prove`: drives an engine through a live update and judges the evidence.

use std::ffi::OsString;
use std::process::Command;

use coldproof_contract::evidence::{Fact, Record, StepOutcome};
use coldproof_contract::verdict::{Verdict, judge};
use coldproof_contract::words::Topology;
use coldproof_lanes::adapters::Reference;
use coldproof_lanes::engine::{Capabilities, EngineError, EngineUnderTest, Reply, StartSpec};
use coldproof_lanes::factory::EngineFactory;
use coldproof_lanes::lane::{COLD, COLD_ROUTING};
use coldproof_lanes::protocol::ProcessEngine;

use crate::args::{Format, ProveArgs};
use crate::error::Failure;
use crate::exit::Exit;
use crate::out_dir::OutDir;
use crate::output;
use crate::prepare;
use crate::progress::Spinner;
use crate::settings::ProveSettings;

/// Engines of one run: the one under test in this process, the cold one in its own.
struct Engines {
    faults: Vec<String>,
    lying: bool,
    own_command: Option<Vec<OsString>>,
}

impl Engines {
    /// This program, to be started again.
    fn own(&self) -> Reply<Command> {
        if let Some([program, arguments @ ..]) = self.own_command.as_deref() {
            let mut command = Command::new(program);
            command.args(arguments);
            return Ok(command);
        }
        let own = std::env::current_exe().map_err(|error| EngineError::Died {
            text: format!("this program cannot find itself to start a cold engine: {error}"),
            kernel: None,
            address: None,
        })?;
        Ok(Command::new(own))
    }
}

impl EngineFactory for Engines {
    fn start(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        let spec = StartSpec { faults: self.faults.clone(), lying: self.lying, ..spec.clone() };
        Ok(Box::new(Reference::start(&spec)?))
    }

    fn start_cold(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        let mut command = self.own()?;
        command.arg("agent");
        Ok(Box::new(ProcessEngine::start(command, spec)?))
    }
}

pub(super) fn run(args: &ProveArgs, own_command: Option<Vec<OsString>>) -> Result<Exit, Failure> {
    let settings = ProveSettings::of(args)?;
    let out = settings.out.as_deref().map(OutDir::open).transpose()?;
    let mut progress = Spinner::new();
    let prepared = prepare::prepare(&settings, &progress);
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => {
            progress.clear();
            return Err(failure);
        }
    };
    let engines = Engines { faults: settings.faults.clone(), lying: settings.lying, own_command };
    let engine = capabilities(prepared.inputs.topology);
    let record = coldproof_lanes::run(&prepared.inputs, &engine, &engines, &mut progress);
    progress.say("judging");
    let unchanged = prepared.verify_unchanged();
    let verdict = judge(&record);
    progress.clear();
    unchanged?;
    cold_refusal(&record)?;
    if let Some(out) = out {
        write(&out, &record, &verdict)?;
    }
    output::print(&match settings.format {
        Format::Text => output::verdict(&verdict),
        Format::Json => output::json(&verdict),
    })?;
    Ok(verdict.verdict.into())
}

fn capabilities(topology: Topology) -> Capabilities {
    Capabilities {
        kind: "reference".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        topology,
        graphs: true,
        sleep: true,
        prefix_cache: true,
    }
}

/// The evidence first, the verdict last: a verdict without its evidence never exists.
fn write(out: &OutDir, record: &Record, verdict: &Verdict) -> Result<(), Failure> {
    out.evidence(record)?;
    out.text("junit.xml", &output::junit(verdict))?;
    out.text("verdict.json", &output::json(verdict))
}

/// What a cold engine refuses, no fault and no update had a part in: it is bad input.
fn cold_refusal(record: &Record) -> Result<(), Failure> {
    let cold = |arm: &str| arm == COLD || arm == COLD_ROUTING;
    let refused = record.events.iter().filter(|event| cold(&event.arm)).find_map(|event| {
        let Fact::Step(step) = &event.fact else { return None };
        match &step.outcome {
            Some(StepOutcome::Error { text }) => Some((step.name, text)),
            _ => None,
        }
    });
    match refused {
        None => Ok(()),
        Some((step, text)) => Err(Failure::new(
            "model",
            step.name(),
            format!("a cold load is refused in step `{step}`: {text}"),
            "what has no cold load cannot be compared with one; mend the checkpoint or the options",
        )),
    }
}
