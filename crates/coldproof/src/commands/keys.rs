//! `coldproof keys`: two-way key accounting of a checkpoint, without an engine.

use std::fmt::Write as _;

use coldproof_checkpoint::arch::{Catalogue, ModelConfig};
use coldproof_checkpoint::{Accounting, Checkpoint, RedundantAlias, redundant_differs};
use coldproof_contract::words::Dtype;

use crate::args::{Format, KeysArgs};
use crate::error::Failure;
use crate::exit::Exit;
use crate::output;
use crate::prepare::failure;

pub(super) fn run(args: &KeysArgs) -> Result<Exit, Failure> {
    let checkpoint = Checkpoint::open(&args.checkpoint).map_err(failure)?;
    let model = match &args.model {
        None => ModelConfig::read(&args.checkpoint).map_err(failure)?,
        Some(path) => {
            let bad = |text: String| {
                Failure::new(
                    "config",
                    path.as_str(),
                    format!("`{path}`: {text}"),
                    "give the config.json of a model that the catalogue knows",
                )
            };
            let text = fs_err::read(path).map_err(|error| bad(error.to_string()))?;
            ModelConfig::parse(&text).map_err(|error| bad(error.to_string()))?
        }
    };
    let catalogue = Catalogue::of(&model);
    let accounting = Accounting::of(&catalogue, checkpoint.tensors().values());
    let differing = redundant_differs(&checkpoint, &accounting).map_err(failure)?;
    let clean = accounting.is_clean() && differing.is_empty();
    output::print(&match args.format {
        Format::Text => text(&accounting, &differing),
        Format::Json => json(args, &accounting, &differing, clean),
    })?;
    Ok(if clean { Exit::Proven } else { Exit::Found })
}

fn text(accounting: &Accounting, differing: &[RedundantAlias]) -> String {
    let mut text = String::new();
    for missing in &accounting.missing {
        let or = match missing.alternatives.as_slice() {
            [] => String::new(),
            names => format!(" (or {})", names.join(", ")),
        };
        let _ = writeln!(text, "missing: {} for `{}`{or}", missing.source, missing.slot);
    }
    for name in &accounting.unexpected {
        let _ = writeln!(text, "unexpected: {name}");
    }
    for ambiguous in &accounting.ambiguous {
        let names: Vec<String> = ambiguous.spellings.iter().map(|names| names.join(", ")).collect();
        let _ = writeln!(text, "ambiguous: `{}` from {}", ambiguous.slot, names.join(" and from "));
    }
    for mismatched in &accounting.mismatched {
        let ((want, shape), (found, has)) = (&mismatched.expected, &mismatched.found);
        let _ = writeln!(
            text,
            "mismatched: {} is {found} {has:?}, the model needs {want} {shape:?}",
            mismatched.source
        );
    }
    for alias in differing {
        let _ = writeln!(
            text,
            "differs: {} is another name of {} and holds other bytes",
            alias.source, alias.target
        );
    }
    for alias in accounting.redundant_alias.iter().filter(|alias| !differing.contains(alias)) {
        let _ = writeln!(text, "redundant: {} is another name of {}", alias.source, alias.target);
    }
    let _ = writeln!(
        text,
        "{} matched, {} missing, {} unexpected, {} ambiguous, {} mismatched",
        accounting.matched.len(),
        accounting.missing.len(),
        accounting.unexpected.len(),
        accounting.ambiguous.len(),
        accounting.mismatched.len()
    );
    text
}

fn json(
    args: &KeysArgs,
    accounting: &Accounting,
    differing: &[RedundantAlias],
    clean: bool,
) -> String {
    let matched: Vec<_> = (accounting.matched.iter())
        .map(|rule| serde_json::json!({"source": rule.source, "slot": rule.slot}))
        .collect();
    let missing: Vec<_> = (accounting.missing.iter())
        .map(|m| {
            serde_json::json!({"source": m.source, "slot": m.slot, "alternatives": m.alternatives})
        })
        .collect();
    let ambiguous: Vec<_> = (accounting.ambiguous.iter())
        .map(|a| serde_json::json!({"slot": a.slot, "spellings": a.spellings}))
        .collect();
    let side =
        |(dtype, shape): &(Dtype, Vec<u64>)| serde_json::json!({"dtype": dtype, "shape": shape});
    let mismatched: Vec<_> = (accounting.mismatched.iter())
        .map(|m| {
            serde_json::json!({
                "source": m.source, "expected": side(&m.expected), "found": side(&m.found),
            })
        })
        .collect();
    let aliases = |aliases: &[RedundantAlias]| -> Vec<serde_json::Value> {
        let pair = |a: &RedundantAlias| serde_json::json!({"source": a.source, "target": a.target});
        aliases.iter().map(pair).collect()
    };
    let document = serde_json::json!({
        "schema": "coldproof.keys/1",
        "checkpoint": args.checkpoint,
        "clean": clean,
        "matched": matched,
        "missing": missing,
        "unexpected": accounting.unexpected,
        "ambiguous": ambiguous,
        "mismatched": mismatched,
        "redundant_alias": aliases(&accounting.redundant_alias),
        "differing_alias": aliases(differing),
    });
    format!("{document}\n")
}
