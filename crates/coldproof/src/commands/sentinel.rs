//! `coldproof sentinel`: checkpoints whose values together say where they came from.

use coldproof_checkpoint::{Checkpoint, SentinelPlan, ties_of};

use crate::args::{Format, SentinelArgs};
use crate::error::Failure;
use crate::exit::Exit;
use crate::output;
use crate::prepare::failure;

pub(super) fn run(args: &SentinelArgs) -> Result<Exit, Failure> {
    let from = Checkpoint::open(&args.checkpoint).map_err(failure)?;
    empty(args)?;
    let plan = SentinelPlan::of(&from).map_err(failure)?;
    plan.write(&from, &ties_of(&from), &args.out).map_err(failure)?;
    let text = match args.format {
        Format::Json => {
            let bases: serde_json::Map<String, serde_json::Value> = (plan.sources().iter())
                .enumerate()
                .map(|(index, source)| (source.name.clone(), plan.base_of(index).into()))
                .collect();
            let document = serde_json::json!({
                "schema": "coldproof.sentinel/1",
                "out": args.out,
                "checkpoints": plan.digits(),
                "base": plan.base(),
                "first": bases,
            });
            format!("{document}\n")
        }
        Format::Text => format!(
            "`{}`: {} checkpoints, one digit of every element's origin in each\n",
            args.out,
            plan.digits()
        ),
    };
    output::print(&text)?;
    Ok(Exit::Proven)
}

/// The folder that gets one checkpoint a digit holds nothing yet.
fn empty(args: &SentinelArgs) -> Result<(), Failure> {
    let Ok(mut entries) = fs_err::read_dir(&args.out) else { return Ok(()) };
    if entries.next().is_none() {
        return Ok(());
    }
    Err(Failure::new(
        "output",
        args.out.as_str(),
        format!("`{}` is not empty", args.out),
        "choose a folder that does not exist or is empty",
    ))
}
