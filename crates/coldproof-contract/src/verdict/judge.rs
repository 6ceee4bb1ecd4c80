//! Evidence in, verdict out.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, Coverage};
use super::{
    Category, CategoryReport, CheckpointReport, EngineReport, Finding, Note, Room, Status, Verdict,
    VerdictKind, WireReport, certify, generations, stated, transition,
};
use crate::evidence::{
    Ability, ArmView, Comparison, LaneName, Record, RequiredItem, Settings, View,
};
use crate::{caches, derived, lifecycle, names, routing, state, storage};

/// The rooms, in the order in which their findings explain each other's symptoms: addresses before
/// bytes, names and placement before contents, contents before outputs.
fn rooms(case: &mut Case<'_, '_>) {
    storage::check(case);
    generations::check_bytes(case);
    caches::check_factors(case);
    routing::check(case);
    names::check(case);
    lifecycle::check_claims(case);
    derived::check(case);
    state::check(case);
    lifecycle::check(case);
    caches::check(case);
}

/// Judges a record.
#[must_use]
pub fn judge(record: &Record) -> Verdict {
    let view = View::of(record);
    let comparison = Comparison::of(&view);
    let mut case = Case::new(&view, &comparison);
    rooms(&mut case);
    let outputs = transition::check(&mut case);
    let transition = transition::report(&case, &outputs);
    stated::check(&mut case);
    unchanged(&mut case);
    let generation = generation(&view);
    let coverage = std::mem::take(&mut case.coverage);
    let unseen = std::mem::take(&mut case.unseen).into_iter().collect();
    let mut notes = std::mem::take(&mut case.notes);
    notes.extend(
        record.header.notes.iter().map(|text| Note { kind: "setting".into(), text: text.clone() }),
    );
    let findings = case.into_findings();
    let categories = categories(&view, &coverage, &findings);
    let required = record.header.settings.required.clone();
    let modes = record.header.settings.modes.clone();
    let mut verdict = outcome(&categories, transition.status, &findings, &required, &modes);
    if verdict == VerdictKind::Pass
        && let Some(text) = not_found(&record.header.settings)
    {
        verdict = VerdictKind::Undecided;
        notes.insert(Note { kind: "control".to_owned(), text });
    }
    let certificate = match verdict {
        VerdictKind::Fail => Err("there are findings".to_owned()),
        VerdictKind::Pass | VerdictKind::Undecided => certify::certificate(&view, &categories),
    };
    // Where adapters were loaded without a transaction, no rank gives a receipt.
    let updated = view.arms.iter().any(ArmView::updates);
    if let (VerdictKind::Pass, Err(why), true) = (verdict, &certificate, updated) {
        verdict = VerdictKind::Undecided;
        let text = format!("no certificate: no whole receipts of the last update: {why}");
        notes.insert(Note { kind: "receipts".to_owned(), text });
    }
    let checkpoint = |label: &str| {
        let found = record.header.checkpoints.iter().find(|c| c.label.0 == label);
        found.map(|c| CheckpointReport { path: c.path.clone(), digest: c.digest.clone() })
    };
    Verdict {
        schema: "coldproof.verdict/1",
        verdict,
        engine: EngineReport {
            kind: record.header.engine.kind.clone(),
            version: record.header.engine.version.clone(),
            topology: record.header.engine.topology,
        },
        from: checkpoint("A"),
        to: checkpoint("B"),
        categories,
        transition,
        findings,
        wire: WireReport { status: Status::NotCovered },
        unseen,
        noise: outputs.noise,
        modes,
        seed: record.header.seed,
        required,
        environment: record.header.environment.clone(),
        notes: notes.into_iter().collect(),
        generation,
        certificate: certificate.ok(),
        elapsed_ms: elapsed(record),
    }
}

/// Faults that were asked for, where a run found nothing: their path was not exercised, or nobody
/// saw them. Either way nothing is proven.
fn not_found(settings: &Settings) -> Option<String> {
    if !settings.seeded.is_empty() {
        return Some(format!("switched on and not found: {}", settings.seeded.join(", ")));
    }
    let names: Vec<&str> = settings.skipped.iter().map(|step| step.name()).collect();
    (!names.is_empty()).then(|| format!("left out and nothing of it found: {}", names.join(", ")))
}

/// What the engine says of itself that nobody can see.
const UNSEEN: &str = "unseen";

/// Slots that never changed in any arm: their equality proves nothing. And what the engine's side
/// could not look at.
fn unchanged(case: &mut Case<'_, '_>) {
    let phases = case.view.arms.iter().flat_map(|arm| &arm.phases);
    let claims = phases.flat_map(|phase| &phase.claims);
    let stated = claims.filter(|claim| claim.fact.what == UNSEEN);
    case.unseen.extend(stated.map(|claim| claim.fact.value.clone()));
    let same = case.comparison.unchanged.iter().filter(|(_, same)| **same);
    let refreshed: BTreeSet<&str> = (case.view.arms.iter())
        .flat_map(|arm| arm.phases.iter().flat_map(|phase| phase.slots.values()))
        .filter(|slot| slot.fact.policy == crate::words::Policy::Refresh)
        .map(|slot| slot.fact.slot.0.as_str())
        .collect();
    let names: Vec<String> = same
        .filter(|(slot, _)| refreshed.contains(slot.as_str()))
        .map(|(slot, _)| format!("{slot} (equal in every generation)"))
        .collect();
    case.unseen.extend(names);
    let unmatched = case.comparison.unmatched.iter();
    let names = unmatched.map(|slot| format!("{slot} (registered by no cold load)"));
    case.unseen.extend(names);
}

/// The identity of what the live engine serves at the end: the digest of all its sources.
fn generation(view: &View<'_>) -> Option<String> {
    let arm =
        view.arms.iter().find(|arm| arm.header.lane == LaneName::Composite).or_else(|| {
            view.arms.iter().find(|arm| {
                arm.header.lane == LaneName::Differential && arm.header.against.is_some()
            })
        })?;
    let phase = arm.phases.iter().rev().find(|phase| {
        phase.from.is_some() && phase.at.is_some_and(|at| at.0 == "B") && !phase.sources.is_empty()
    })?;
    let mut hasher = blake3::Hasher::new();
    for (name, read) in &phase.sources {
        hasher.update(name.as_bytes());
        hasher.update(&[0]);
        hasher.update(&read.fact.digest?.0.to_le_bytes());
    }
    Some(hasher.finalize().to_hex().to_string())
}

fn categories(
    view: &View<'_>,
    coverage: &BTreeMap<Room, Coverage>,
    findings: &[Finding],
) -> Vec<CategoryReport> {
    let none = Coverage::default();
    Room::ALL
        .into_iter()
        .map(|room| {
            let seen = coverage.get(&room).unwrap_or(&none);
            let found = findings.iter().any(|f| f.category == Category::Room(room));
            let off = mode(&view.header.settings.modes, room) == Some("off");
            let (status, reason) = if off {
                (Status::NotCovered, Some("switched off".to_owned()))
            } else if found {
                (Status::Fail, None)
            } else if !seen.covered {
                (Status::NotCovered, Some("no lane of this run looks at it".to_owned()))
            } else if let Some(what) = lacking(view, room).or_else(|| unsupported(view, room)) {
                (Status::NotCovered, Some(what))
            } else if !seen.undecided.is_empty() || seen.checks == 0 {
                let reasons: Vec<&str> = seen.undecided.iter().map(String::as_str).collect();
                let text = if reasons.is_empty() {
                    "nothing was compared".to_owned()
                } else {
                    reasons.join("; ")
                };
                (Status::Undecided, Some(text))
            } else {
                (Status::Pass, Some(seen.proven.clone()))
            };
            CategoryReport {
                category: room.number(),
                name: room.title(),
                status,
                checks: seen.checks,
                reason,
                topology: seen.topology,
            }
        })
        .collect()
}

/// What the engine cannot do of what the room's lanes ask.
fn unsupported(view: &View<'_>, room: Room) -> Option<String> {
    let beside: &[LaneName] = match room {
        Room::Caches => &[LaneName::Adapters, LaneName::Tiers],
        Room::Routing => &[LaneName::Placement],
        _ => &[],
    };
    view.unsupported(lane_of(room)).or_else(|| beside.iter().find_map(|l| view.unsupported(*l)))
}

/// The lane whose evidence a room is judged by.
const fn lane_of(room: Room) -> LaneName {
    match room {
        Room::Storage | Room::Derived | Room::Lifecycle | Room::State => LaneName::Differential,
        Room::Routing => LaneName::Routing,
        Room::Names => LaneName::Names,
        Room::Caches => LaneName::Caches,
    }
}

/// Why this engine at this topology cannot show what the room asks.
fn lacking(view: &View<'_>, room: Room) -> Option<String> {
    let cannot = |ability: Ability| {
        let lacks = view.header.engine.cannot.contains(&ability);
        lacks.then(|| ability.absence().to_owned())
    };
    match room {
        Room::Storage => cannot(Ability::Graphs),
        Room::Caches => cannot(Ability::PrefixCache),
        Room::Routing => {
            let lanes = [LaneName::Routing, LaneName::Placement];
            let mut arms = view.arms.iter().filter(|arm| lanes.contains(&arm.header.lane));
            let alone = arms.all(|arm| arm.header.topology.ranks().count() == 1);
            alone.then(|| "one rank cannot show a wrong rank: give --tp 2".to_owned())
        }
        _ => None,
    }
}

/// The mode of a room's checker where it is not strict.
fn mode(modes: &BTreeMap<String, String>, room: Room) -> Option<&str> {
    modes.get(room.name()).map(String::as_str).filter(|mode| matches!(*mode, "warn" | "off"))
}

fn outcome(
    categories: &[CategoryReport],
    transition: Status,
    findings: &[Finding],
    required: &[RequiredItem],
    modes: &BTreeMap<String, String>,
) -> VerdictKind {
    let strict = |finding: &&Finding| match finding.category {
        Category::Room(room) => mode(modes, room).is_none(),
        Category::Transition | Category::Wire => true,
    };
    if findings.iter().any(|finding| strict(&finding)) {
        return VerdictKind::Fail;
    }
    let proven = required.iter().all(|item| match item {
        RequiredItem::Transition => transition == Status::Pass,
        RequiredItem::Category(number) => {
            categories.iter().any(|c| c.category == *number && c.status == Status::Pass)
        }
    });
    // A checker set to warn keeps its category failed and leaves the verdict undecided; and where
    // nothing was required, nothing was proven.
    if proven && findings.is_empty() && !required.is_empty() {
        VerdictKind::Pass
    } else {
        VerdictKind::Undecided
    }
}

fn elapsed(record: &Record) -> Option<f64> {
    let last = record.events.iter().filter_map(|event| event.t).max()?;
    Some((last / 1_000) as f64 / 1_000.0)
}
