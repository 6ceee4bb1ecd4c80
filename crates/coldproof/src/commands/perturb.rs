//! `coldproof perturb`: a deterministic B from A.

use coldproof_checkpoint::arch::{Catalogue, ModelConfig};
use coldproof_checkpoint::{Accounting, Checkpoint, perturb, perturb_ulp, ties_of};

use crate::args::{Format, PerturbArgs};
use crate::error::Failure;
use crate::exit::Exit;
use crate::output;
use crate::prepare::{failure, one_content};

pub(super) fn run(args: &PerturbArgs) -> Result<Exit, Failure> {
    let from = Checkpoint::open(&args.checkpoint).map_err(failure)?;
    // Where the folder describes no known model, no name is known to be another's.
    if let Ok(model) = ModelConfig::read(from.directory()) {
        let accounting = Accounting::of(&Catalogue::of(&model), from.tensors().values());
        one_content(&from, &accounting)?;
    }
    let ties = ties_of(&from);
    let moved = if args.ulp {
        Some(perturb_ulp(&from, &ties, &args.out, args.seed).map_err(failure)?)
    } else {
        perturb(&from, &ties, &args.out, args.seed).map_err(failure)?;
        None
    };
    let text = match (args.format, moved) {
        (Format::Json, moved) => {
            let moved = moved.map(|moved| {
                serde_json::json!({
                    "tensor": moved.tensor,
                    "element": moved.element,
                    "before": format!("{:#x}", moved.before),
                    "after": format!("{:#x}", moved.after),
                })
            });
            let document = serde_json::json!({
                "schema": "coldproof.perturb/1",
                "out": args.out,
                "seed": args.seed,
                "tensors": from.tensors().len(),
                "ulp": moved,
            });
            format!("{document}\n")
        }
        (Format::Text, Some(moved)) => format!(
            "`{}`: element {} of `{}` moved by one ulp, {:#x} to {:#x}\n",
            args.out, moved.element, moved.tensor, moved.before, moved.after
        ),
        (Format::Text, None) => {
            format!("`{}`: every element of {} tensors moved\n", args.out, from.tensors().len())
        }
    };
    output::print(&text)?;
    Ok(Exit::Proven)
}
