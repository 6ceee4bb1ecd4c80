//! `coldproof prove`: drives an engine through a live update and judges the evidence.

use coldproof_contract::evidence::{Fact, Record, StepOutcome};
use coldproof_contract::verdict::{Verdict, judge};
use coldproof_contract::words::StepName;
use coldproof_lanes::lane::is_cold;

use crate::args::{Format, ProveArgs};
use crate::engines::{self, OwnCommand};
use crate::error::Failure;
use crate::exit::Exit;
use crate::known::{Known, today};
use crate::out_dir::{EVIDENCE, JUNIT, OutDir, VERDICT};
use crate::output;
use crate::prepare;
use crate::progress::Spinner;
use crate::settings::ProveSettings;

pub(super) fn run(args: &ProveArgs, own_command: &OwnCommand) -> Result<Exit, Failure> {
    let settings = ProveSettings::of(args)?;
    let known = settings.known.as_deref().map(Known::read).transpose()?;
    let out = settings.out.as_deref().map(OutDir::open).transpose()?;
    let progress = Spinner::new();
    let (record, mut verdict) =
        driven(&settings, own_command, &progress).inspect_err(|_| progress.clear())?;
    if let Some(known) = known {
        known.apply(&mut verdict, today());
    }
    progress.clear();
    if let Some(out) = out {
        write(&out, &record, &verdict)?;
    }
    output::print(&match settings.format {
        Format::Text => output::verdict(&verdict),
        Format::Json => output::json(&verdict),
    })?;
    Ok(verdict.verdict.into())
}

/// The verdict of a run that nothing is written or printed of.
///
/// # Errors
/// Bad input or usage.
pub(super) fn proved(
    args: &ProveArgs,
    own_command: &OwnCommand,
    progress: &Spinner,
) -> Result<Verdict, Failure> {
    let settings = ProveSettings::of(args)?;
    driven(&settings, own_command, progress).map(|(_, verdict)| verdict)
}

/// Prepares, drives and judges.
fn driven(
    settings: &ProveSettings,
    own_command: &OwnCommand,
    progress: &Spinner,
) -> Result<(Record, Verdict), Failure> {
    let prepared = prepare::prepare(settings, progress)?;
    let engines = engines::factory(&settings.engine, own_command.clone());
    let record = coldproof_lanes::run(&prepared.inputs, &*engines, progress);
    progress.say("judging");
    let unchanged = prepared.verify_unchanged();
    let verdict = judge(&record);
    unchanged?;
    cold_refusal(&record)?;
    Ok((record, verdict))
}

/// The evidence first, the verdict last: a verdict without its evidence never exists.
fn write(out: &OutDir, record: &Record, verdict: &Verdict) -> Result<(), Failure> {
    let (report, document) = (output::junit(verdict), output::json(verdict));
    out.put(&[
        (EVIDENCE, &|file| record.write(file)),
        (JUNIT, &|file| file.write_all(report.as_bytes())),
        (VERDICT, &|file| file.write_all(document.as_bytes())),
    ])
}

/// What a cold engine refuses, no fault and no update had a part in: it is bad input.
fn cold_refusal(record: &Record) -> Result<(), Failure> {
    let refused = record.events.iter().filter(|event| is_cold(&event.arm)).find_map(|event| {
        let Fact::Step(step) = &event.fact else { return None };
        match &step.outcome {
            Some(StepOutcome::Error { text }) => Some((step.name, text)),
            _ => None,
        }
    });
    match refused {
        None => Ok(()),
        Some((StepName::Adapter, text)) => Err(Failure::new(
            "adapters",
            StepName::Adapter.name(),
            format!("a cold engine refuses the adapter: {text}"),
            "mend the adapter, or leave out --adapter-from and --adapter-to",
        )),
        Some((step, text)) => Err(Failure::new(
            "model",
            step.name(),
            format!("a cold load is refused in step `{step}`: {text}"),
            "what has no cold load cannot be compared with one; mend the checkpoint or the options",
        )),
    }
}
