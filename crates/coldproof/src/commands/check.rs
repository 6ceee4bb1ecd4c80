//! `coldproof check`: judges recorded evidence again, without the engine or the checkpoints.

use std::io::BufReader;

use coldproof_contract::evidence::Record;
use coldproof_contract::verdict::judge;

use crate::args::{CheckArgs, Format};
use crate::error::Failure;
use crate::exit::Exit;
use crate::known::{Known, today};
use crate::out_dir::{JUNIT, OutDir, VERDICT};
use crate::output;
use crate::settings::requirements;

pub(super) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let bad = |message: String| {
        Failure::new(
            "evidence",
            args.evidence.as_str(),
            message,
            "give the evidence.jsonl that `coldproof prove --out DIR` wrote",
        )
    };
    let file = fs_err::File::open(&args.evidence).map_err(|error| bad(error.to_string()))?;
    let mut record = Record::read(&mut BufReader::new(file))
        .map_err(|error| bad(format!("`{}`: {error}", args.evidence)))?;
    if !args.require.is_empty() {
        record.header.settings.required = requirements(&args.require)?;
    }
    let known = args.known.as_deref().map(Known::read).transpose()?;
    let out = args.out.as_deref().map(OutDir::open).transpose()?;
    let mut verdict = judge(&record);
    if let Some(known) = known {
        known.apply(&mut verdict, today());
    }
    if let Some(out) = out {
        let (report, document) = (output::junit(&verdict), output::json(&verdict));
        out.put(&[
            (JUNIT, &|file| file.write_all(report.as_bytes())),
            (VERDICT, &|file| file.write_all(document.as_bytes())),
        ])?;
    }
    output::print(&match args.format {
        Format::Text => output::verdict(&verdict),
        Format::Json => output::json(&verdict),
    })?;
    Ok(verdict.verdict.into())
}
