//! What the faults that are switched on need: a family, ranks.

use coldproof_contract::routing::{Sharding, SourceRule};
use coldproof_contract::words::Topology;
use coldproof_reference::faults::{FAULTS, FaultRow, Spelling, is_called};

use crate::error::Failure;

/// The option that switches a fault on: the object of every complaint about one.
pub(crate) const FAULT_OPTION: &str = "--fault";

/// The rows of these faults. `F1.05~` is the twin of `F1.05` and needs the same.
///
/// # Errors
/// A fault that nobody knows, or one together with its twin.
pub(crate) fn rows(ids: &[String]) -> Result<Vec<&'static FaultRow>, Failure> {
    let row = |id: &String| {
        let bare = id.strip_suffix('~').unwrap_or(id);
        FAULTS.iter().find(|row| row.id.to_string() == bare).ok_or_else(|| {
            let known: Vec<String> = FAULTS.iter().map(|row| row.id.to_string()).collect();
            Failure::usage(
                FAULT_OPTION,
                format!("there is no fault `{id}`"),
                format!("these are known: {}", known.join(", ")),
            )
        })
    };
    for id in ids {
        if ids.contains(&format!("{id}~")) {
            return Err(Failure::usage(
                FAULT_OPTION,
                format!("`{id}` and its twin `{id}~` contradict each other"),
                "switch one of them on",
            ));
        }
    }
    ids.iter().map(row).collect()
}

/// The family that all of them are made for, if any is made for one.
///
/// # Errors
/// Two of them are made for different families.
pub(crate) fn family(rows: &[&'static FaultRow]) -> Result<Option<&'static str>, Failure> {
    let mut wanted = rows.iter().filter_map(|row| row.family);
    let Some(first) = wanted.next() else { return Ok(None) };
    match wanted.find(|other| *other != first) {
        None => Ok(Some(first)),
        Some(other) => Err(Failure::usage(
            FAULT_OPTION,
            format!("the faults need both `{first}` and `{other}`"),
            "prove them one by one",
        )),
    }
}

/// Whether a model with these rules has the objects of all of them.
///
/// # Errors
/// It has not.
pub(crate) fn fit(
    rows: &[&'static FaultRow],
    rules: &[SourceRule],
    model: &str,
) -> Result<(), Failure> {
    let spelled = |rule: &SourceRule, spelling: Spelling| match (&rule.sharding, spelling) {
        (_, Spelling::Any) | (Sharding::ExpertGateUp { .. }, _) => true,
        (Sharding::FusedExpertsGateUp, Spelling::Fused) => true,
        (_, Spelling::Fused | Spelling::PerExpert) => false,
    };
    let has = |row: &FaultRow| {
        let named = |rule: &SourceRule| {
            row.needs.is_empty() || row.needs.iter().any(|need| is_called(&rule.slot.0, need))
        };
        let mut own = rules.iter().filter(|rule| named(rule));
        own.any(|rule| spelled(rule, row.spelling))
    };
    let Some(row) = rows.iter().find(|row| !has(row)) else { return Ok(()) };
    let family = row.family.unwrap_or("llama");
    Err(Failure::usage(
        FAULT_OPTION,
        format!(
            "{} needs `{}`, and this `{model}` has none",
            row.id,
            row.needs.first().copied().unwrap_or(row.object)
        ),
        format!("leave --from and --to out, or give checkpoints that have it, as a `{family}` may"),
    ))
}

/// The fewest ranks that show all of them.
pub(crate) fn least(rows: &[&'static FaultRow]) -> Topology {
    let most = |of: fn(&FaultRow) -> u32| rows.iter().map(|row| of(row)).max().unwrap_or(1);
    Topology {
        tp: most(|row| row.min_tp),
        pp: 1,
        ep: most(|row| row.min_ep),
        dp: most(|row| row.min_dp),
    }
}

/// The fewest tensor-parallel ranks of every lane that show them. The routing lane, which is its
/// room's, starts more by itself.
pub(crate) fn least_tp_of_all(rows: &[&'static FaultRow]) -> u32 {
    let elsewhere = rows.iter().filter(|row| row.lane().is_some());
    elsewhere.map(|row| row.min_tp).max().unwrap_or(1)
}
