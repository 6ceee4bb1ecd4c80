//! `coldproof prove`: drives an engine through a live update and judges the evidence.

use std::process::Command;

use coldproof_contract::evidence::{Fact, Record, StepOutcome};
use coldproof_contract::verdict::{Verdict, judge};
use coldproof_lanes::adapters::Reference;
use coldproof_lanes::engine::{EngineError, EngineUnderTest, Reply, StartSpec};
use coldproof_lanes::factory::EngineFactory;
use coldproof_lanes::lane::{COLD, COLD_ROUTING};
use coldproof_lanes::protocol::ProcessEngine;

use crate::args::{Format, ProveArgs};
use crate::error::Failure;
use crate::exit::Exit;
use crate::known::{Known, today};
use crate::out_dir::OutDir;
use crate::output;
use crate::prepare;
use crate::progress::Spinner;
use crate::settings::ProveSettings;

/// Engines of one run: the one under test in this process, the cold one in its own.
struct Engines {
    faults: Vec<String>,
    lying: bool,
}

impl EngineFactory for Engines {
    fn start(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        let spec = StartSpec { faults: self.faults.clone(), lying: self.lying, ..spec.clone() };
        Ok(Box::new(Reference::start(&spec)?))
    }

    fn start_cold(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        let own = std::env::current_exe().map_err(|error| EngineError::Died {
            text: format!("this program cannot find itself to start a cold engine: {error}"),
            kernel: None,
            address: None,
        })?;
        let mut command = Command::new(own);
        command.arg("agent");
        Ok(Box::new(ProcessEngine::start(command, spec)?))
    }
}

pub(super) fn run(args: &ProveArgs) -> Result<Exit, Failure> {
    let settings = ProveSettings::of(args)?;
    let known = settings.known.as_deref().map(Known::read).transpose()?;
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
    let engines = Engines { faults: settings.faults.clone(), lying: settings.lying };
    let record = coldproof_lanes::run(&prepared.inputs, &engines, &mut progress);
    progress.say("judging");
    let unchanged = prepared.verify_unchanged();
    let mut verdict = judge(&record);
    if let Some(known) = known {
        known.apply(&mut verdict, today());
    }
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
