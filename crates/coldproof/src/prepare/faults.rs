//! What the faults that are switched on need: a family, ranks.

use coldproof_reference::faults::{FAULTS, FaultRow};

use crate::error::Failure;

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
                "--fault",
                format!("there is no fault `{id}`"),
                format!("these are known: {}", known.join(", ")),
            )
        })
    };
    for id in ids {
        if ids.contains(&format!("{id}~")) {
            return Err(Failure::usage(
                "--fault",
                format!("`{id}` and its twin `{id}~` contradict each other"),
                "switch one of them on",
            ));
        }
    }
    ids.iter().map(row).collect()
}

/// The family that all of them need, if any needs one.
///
/// # Errors
/// Two of them need different families.
pub(crate) fn family(rows: &[&'static FaultRow]) -> Result<Option<&'static str>, Failure> {
    let mut wanted = rows.iter().filter_map(|row| row.family);
    let Some(first) = wanted.next() else { return Ok(None) };
    match wanted.find(|other| *other != first) {
        None => Ok(Some(first)),
        Some(other) => Err(Failure::usage(
            "--fault",
            format!("the faults need both `{first}` and `{other}`"),
            "prove them one by one",
        )),
    }
}

/// The fewest ranks that show all of them.
pub(crate) fn least_tp(rows: &[&'static FaultRow]) -> u32 {
    rows.iter().map(|row| row.min_tp).max().unwrap_or(1)
}
