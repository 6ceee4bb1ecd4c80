//! `cargo xtask faults`: every seeded fault on every family, and the page that says what was found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::house::House;
use crate::process;

/// Where the table is kept.
const PAGE: &str = "docs/faults-by-family.md";
const CHECKPOINTS: &str = "testdata/checkpoints";
/// Runs beside each other.
const WORKERS: usize = 2;

/// What `faults run --format json` prints.
#[derive(Debug, Deserialize)]
struct Tried {
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
}

#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    category: Category,
    detected: bool,
    object: String,
    #[serde(default)]
    also: Vec<String>,
    code: String,
    twin_clean: bool,
}

/// One of the seven, or `transition`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Category {
    Room(u8),
    Other(String),
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room(number) => write!(f, "{number}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

#[derive(Debug, Deserialize)]
struct LeftOut {
    id: String,
}

/// Writes the page anew.
pub(crate) fn run(house: &House) -> Result<()> {
    let page = page(&tried(house)?)?;
    fs::write(house.root.join(PAGE), page).with_context(|| format!("cannot write `{PAGE}`"))
}

/// The suite: the page says what is found now.
pub(crate) fn check(house: &House) -> Result<()> {
    let now = page(&tried(house)?)?;
    let kept = fs::read_to_string(house.root.join(PAGE));
    let kept = kept.with_context(|| format!("cannot read `{PAGE}`"))?;
    if kept == now {
        return Ok(());
    }
    let changed = now.lines().filter(|line| !kept.contains(line)).collect::<Vec<_>>();
    bail!("`{PAGE}` says otherwise; `cargo xtask faults` writes it anew:\n{}", changed.join("\n"))
}

/// Every family's faults, by the folder of its checkpoints.
fn tried(house: &House) -> Result<BTreeMap<String, Tried>> {
    let build = ["build", "--release", "--locked", "-p", "coldproof"];
    process::run(&mut process::cargo(&house.root, &build))?;
    let program = house.target().join("release").join("coldproof");
    let folder = house.root.join(CHECKPOINTS);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list `{CHECKPOINTS}`"))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths = paths.collect::<std::io::Result<Vec<PathBuf>>>()?;
    let pair = |path: &PathBuf| ["A", "B"].iter().all(|label| path.join(label).is_dir());
    let open = Mutex::new(paths.into_iter().filter(pair).collect::<Vec<_>>());
    let next = || open.lock().ok().and_then(|mut open| open.pop());
    let work = || {
        let mut done = Vec::new();
        while let Some(path) = next() {
            done.push(family(&program, &path));
        }
        done
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default());
        done.collect()
    })
}

/// One pair's faults.
fn family(program: &Path, pair: &Path) -> Result<(String, Tried)> {
    let name = pair.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.args(["faults", "run", "--format", "json", "--from"]).arg(pair.join("A"));
    command.arg("--to").arg(pair.join("B")).stdin(Stdio::null());
    let output = command.output().context("`coldproof faults run` cannot be started")?;
    // Exit code 1 is a fault that was not found, which the page then shows.
    if !matches!(output.status.code(), Some(0 | 1)) {
        bail!("`faults run` on {name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let tried = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("`faults run` on {name} printed no document"))?;
    Ok((name, tried))
}

/// The page; an error where a fault is not found, a twin is accused, or a family has no fault of a
/// category that any model has.
fn page(tried: &BTreeMap<String, Tried>) -> Result<String> {
    let mut page = String::from(
        "# Seeded faults by family\n\nMade by `cargo xtask faults`, which `cargo xtask test` \
         repeats: each fault of [faults.md](faults.md) is\nswitched on for each pair of \
         `testdata/checkpoints` that has an object for it, in the lane that shows it,\nand must \
         give its finding and no other: one, or one for each object that it has in the model; its \
         twin must give none.\n",
    );
    let mut wrong = Vec::new();
    for (name, Tried { rows, left_out }) in tried {
        let found = rows.iter().filter(|row| row.detected).count();
        let silent = rows.iter().filter(|row| row.twin_clean).count();
        let _ = write!(
            page,
            "\n## {name}\n\n{found} of {} found, {silent} of {} twins silent.",
            rows.len(),
            rows.len()
        );
        let without: Vec<&str> = left_out.iter().map(|fault| fault.id.as_str()).collect();
        if !without.is_empty() {
            let _ = write!(page, " Without an object: {}.", without.join(", "));
        }
        page += "\n\n| fault | category | code | object |\n|---|---|---|---|\n";
        for row in rows {
            let Row { id, category, code, object, also, .. } = row;
            let objects: Vec<&str> =
                std::iter::once(object).chain(also).map(String::as_str).collect();
            let objects = objects.join("`, `");
            let _ = writeln!(page, "| {id} | {category} | `{code}` | `{objects}` |");
            if !(row.detected && row.twin_clean) {
                wrong.push(format!("{id} on {name}"));
            }
        }
        let categories: BTreeSet<String> =
            rows.iter().map(|row| row.category.to_string()).collect();
        let missing = (1..=7).filter(|room: &u8| !categories.contains(&room.to_string()));
        wrong.extend(missing.map(|category| format!("{name} has no fault of category {category}")));
    }
    if wrong.is_empty() { Ok(page) } else { bail!("not as it must be: {}", wrong.join(", ")) }
}
