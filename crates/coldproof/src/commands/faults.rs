//! `coldproof faults`: the seeded faults of the embedded engine, and whether each is found and its
//! twin silent.

use std::fmt::Write as _;

use clap::Parser as _;
use coldproof_contract::verdict::{Category, Finding, Room};
use coldproof_reference::faults::{FAULTS, FaultId, FaultRow};
use serde::Serialize;

use super::prove;
use crate::args::{Cli, Command, FaultsAction, FaultsRunArgs, Format};
use crate::engines::OwnCommand;
use crate::error::Failure;
use crate::exit::Exit;
use crate::output;
use crate::prepare::FAULT_OPTION;
use crate::progress::Spinner;

/// One fault, tried.
#[derive(Debug, Serialize)]
struct Row {
    id: FaultId,
    category: Category,
    /// Whether something was found, and all of it in the fault's category and with its code.
    detected: bool,
    detected_category: Option<Category>,
    /// What the finding names; of a fault that was not found, what it should have named.
    object: String,
    /// What further findings name, where the fault has several objects in this model: that of each
    /// part that an update left out, or the cache of each stage.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also: Vec<String>,
    code: String,
    /// Whether nothing was found with the twin.
    twin_clean: bool,
    family: String,
}

/// A fault that the model has no object for.
#[derive(Debug, Serialize)]
struct LeftOut {
    id: FaultId,
    why: String,
}

/// What `--format json` prints.
#[derive(Debug, Serialize)]
struct Tried {
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
}

pub(super) fn run(action: &FaultsAction, own: &OwnCommand) -> Result<Exit, Failure> {
    match action {
        FaultsAction::List { format } => list(*format),
        FaultsAction::Run(args) => tried(args, own),
    }
}

/// What a fault counts against: what is of no room is of the transition.
fn category(row: &FaultRow) -> Category {
    let room = Room::ALL.into_iter().find(|room| room.name() == row.room);
    room.map_or(Category::Transition, Category::Room)
}

fn list(format: Format) -> Result<Exit, Failure> {
    let text = match format {
        Format::Text => FAULTS.iter().fold(String::new(), |mut text, row| {
            let _ = writeln!(text, "{}  {} {:<22} {}", row.id, category(row), row.code, row.fault);
            text
        }),
        Format::Json => {
            let row = |row: &FaultRow| {
                serde_json::json!({
                    "id": row.id, "category": category(row), "code": row.code,
                    "object": row.object, "fault": row.fault, "twin": row.twin,
                })
            };
            let rows: Vec<_> = FAULTS.iter().map(row).collect();
            format!("{:#}\n", serde_json::json!({ "rows": rows }))
        }
    };
    output::print(&text)?;
    Ok(Exit::Proven)
}

fn tried(args: &FaultsRunArgs, own: &OwnCommand) -> Result<Exit, Failure> {
    let unknown = args.ids.iter().find(|id| FAULTS.iter().all(|row| row.id.as_str() != **id));
    if let Some(id) = unknown {
        let known: Vec<&str> = FAULTS.iter().map(|row| row.id.as_str()).collect();
        let text = format!("there is no fault `{id}`");
        return Err(Failure::usage("--id", text, format!("these are known: {}", known.join(", "))));
    }
    let progress = Spinner::new();
    let mut tried = Tried { rows: Vec::new(), left_out: Vec::new() };
    let asked =
        |row: &&FaultRow| args.ids.is_empty() || args.ids.iter().any(|id| id == row.id.as_str());
    for row in FAULTS.iter().filter(asked) {
        progress.say(&format!("{}: {}", row.id, row.fault));
        match one(row, args, own, &progress) {
            Ok(row) => tried.rows.push(row),
            // On checkpoints that were given, a fault without an object is none of theirs.
            Err(failure) if failure.object == FAULT_OPTION && args.ids.is_empty() => {
                tried.left_out.push(LeftOut { id: row.id, why: failure.message });
            }
            Err(failure) => {
                progress.clear();
                return Err(failure);
            }
        }
    }
    progress.clear();
    let all = tried.rows.iter().all(|row| row.detected && row.twin_clean);
    output::print(&match args.format {
        Format::Text => text(&tried),
        Format::Json => format!("{:#}\n", serde_json::json!(tried)),
    })?;
    Ok(if all && !tried.rows.is_empty() { Exit::Proven } else { Exit::Found })
}

/// Tries a fault and its twin in the lane that shows them.
fn one(
    row: &FaultRow,
    args: &FaultsRunArgs,
    own: &OwnCommand,
    progress: &Spinner,
) -> Result<Row, Failure> {
    let (findings, family) = findings(row, row.id.as_str(), args, own, progress)?;
    let (twin, _) = findings_of_twin(row, args, own, progress)?;
    let found = findings.first();
    let of_fault = |finding: &Finding| {
        finding.code.to_string() == row.code && finding.category == category(row)
    };
    Ok(Row {
        id: row.id,
        category: category(row),
        detected: found.is_some() && findings.iter().all(of_fault),
        detected_category: found.map(|finding| finding.category),
        object: found.map_or_else(|| row.object.to_owned(), |finding| finding.object.clone()),
        also: findings.iter().skip(1).map(|finding| finding.object.clone()).collect(),
        code: found.map_or_else(|| row.code.to_owned(), |finding| finding.code.to_string()),
        twin_clean: twin.is_empty(),
        family,
    })
}

fn findings_of_twin(
    row: &FaultRow,
    args: &FaultsRunArgs,
    own: &OwnCommand,
    progress: &Spinner,
) -> Result<(Vec<Finding>, String), Failure> {
    findings(row, &format!("{}~", row.id), args, own, progress)
}

/// What `prove` finds with this switch on, and the model's family.
fn findings(
    row: &FaultRow,
    switch: &str,
    args: &FaultsRunArgs,
    own: &OwnCommand,
    progress: &Spinner,
) -> Result<(Vec<Finding>, String), Failure> {
    let mut typed = vec!["coldproof", "prove", "--fault", switch, "--lane", lane(row)];
    if let (Some(from), Some(to)) = (&args.from, &args.to) {
        typed.extend(["--from", from.as_str(), "--to", to.as_str()]);
    }
    let command = Cli::try_parse_from(typed).ok().and_then(|cli| cli.command);
    let Some(Command::Prove(prove_args)) = command else {
        let text = "a command line of our own is none";
        return Err(Failure::new("bug", switch, text, "report this"));
    };
    let proved = prove::proved(&prove_args, own, progress)?;
    let family = proved.environment.get("model").cloned().unwrap_or_default();
    Ok((proved.findings, family))
}

/// The lane whose evidence shows a fault.
fn lane(row: &FaultRow) -> &'static str {
    row.lane().unwrap_or(match row.room {
        "routing" => "routing",
        "names" => "names",
        "caches" => "caches",
        _ => "differential",
    })
}

fn text(tried: &Tried) -> String {
    let mut text = String::new();
    for row in &tried.rows {
        let found = if row.detected { "found" } else { "NOT FOUND" };
        let twin = if row.twin_clean { "twin silent" } else { "TWIN ACCUSED" };
        let Row { id, code, object, also, family, .. } = row;
        let _ = write!(text, "{id}  {found:<9}  {twin:<12}  {family}: {code} `{object}`");
        for object in also {
            let _ = write!(text, ", `{object}`");
        }
        text.push('\n');
    }
    for LeftOut { id, why } in &tried.left_out {
        let _ = writeln!(text, "{id}  left out   {why}");
    }
    text
}
