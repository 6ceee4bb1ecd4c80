//! `coldproof digest`: topology-independent digests, and two checkpoints compared by them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use camino::Utf8Path;
use coldproof_checkpoint::{Checkpoint, CheckpointDigest, digest_checkpoint};

use crate::args::{DigestArgs, Format};
use crate::error::Failure;
use crate::exit::Exit;
use crate::output;
use crate::prepare::failure;

pub(super) fn run(args: &DigestArgs) -> Result<Exit, Failure> {
    let own = read(&args.checkpoint)?;
    let Some(against) = &args.against else {
        output::print(&single(args, &own))?;
        return Ok(Exit::Proven);
    };
    let other = read(against)?;
    let differing = differing(&own, &other);
    output::print(&compared(args, against, &own, &other, &differing))?;
    Ok(if differing.is_empty() { Exit::Proven } else { Exit::Found })
}

fn read(folder: &Utf8Path) -> Result<CheckpointDigest, Failure> {
    let checkpoint = Checkpoint::open(folder).map_err(failure)?;
    digest_checkpoint(&checkpoint).map_err(failure)
}

/// Names whose digest, dtype or shape differ, or that only one side has.
fn differing<'d>(own: &'d CheckpointDigest, other: &'d CheckpointDigest) -> Vec<&'d str> {
    let names: BTreeSet<&str> =
        own.sources.keys().chain(other.sources.keys()).map(String::as_str).collect();
    names.into_iter().filter(|name| own.sources.get(*name) != other.sources.get(*name)).collect()
}

fn sources(digest: &CheckpointDigest) -> serde_json::Map<String, serde_json::Value> {
    let source = |(name, source): (&String, &coldproof_contract::digest::SourceDigest)| {
        let value = serde_json::json!({
            "dtype": source.dtype,
            "shape": source.shape,
            "digest": source.digest,
        });
        (name.clone(), value)
    };
    digest.sources.iter().map(source).collect()
}

fn single(args: &DigestArgs, own: &CheckpointDigest) -> String {
    if args.format == Format::Json {
        let document = serde_json::json!({
            "schema": "coldproof.digest/1",
            "checkpoint": args.checkpoint,
            "digest": own.digest,
            "sources": sources(own),
        });
        return format!("{document}\n");
    }
    let mut text = String::new();
    for (name, source) in &own.sources {
        let _ = writeln!(text, "{}  {name} {} {:?}", source.digest, source.dtype, source.shape);
    }
    let _ = writeln!(text, "{}  {}", own.digest, args.checkpoint);
    text
}

fn compared(
    args: &DigestArgs,
    against: &Utf8Path,
    own: &CheckpointDigest,
    other: &CheckpointDigest,
    differing: &[&str],
) -> String {
    if args.format == Format::Json {
        let document = serde_json::json!({
            "schema": "coldproof.digest/1",
            "checkpoint": args.checkpoint,
            "against": against,
            "digest": own.digest,
            "other": other.digest,
            "equal": differing.is_empty(),
            "differing": differing,
        });
        return format!("{document}\n");
    }
    let mut text = String::new();
    for name in differing {
        let side = |digest: &CheckpointDigest| {
            let found = digest.sources.get(*name);
            found.map_or_else(
                || "absent".to_owned(),
                |s| format!("{} {:?} {}", s.dtype, s.shape, s.digest),
            )
        };
        let _ = writeln!(text, "{name}: {} against {}", side(own), side(other));
    }
    let count = own.sources.len();
    let _ = match differing.len() {
        0 => writeln!(text, "equal: {count} tensors, {}", own.digest),
        n => writeln!(text, "{n} tensors differ"),
    };
    text
}
