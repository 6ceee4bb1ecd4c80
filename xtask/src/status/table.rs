//! The data: rows, and what is known of each instance of a row.

use std::fmt;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::DATA;

/// One row of the RFC, of its test layers, or of what was found beyond it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// `F1.01`: the category, and the place in its list.
    pub(crate) id: String,
    /// What the RFC calls it.
    pub(crate) row: String,
    /// Categories as the RFC numbers them, or a word where it is none of the seven.
    #[serde(default)]
    pub(crate) category: String,
    /// What goes wrong, or what is asked.
    pub(crate) wrong: String,
    /// What is known, instance by instance; at least one.
    pub(crate) instance: Vec<Instance>,
}

/// What is known of one instance of a row.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    /// One of a closed set.
    pub(crate) status: Status,
    /// The seeded fault that models it.
    pub(crate) fault: Option<String>,
    /// The engine that it was tried on, with its version.
    #[serde(default)]
    pub(crate) engine: String,
    /// Tests as `FILE::NAME`, or files of recorded evidence, from the root of the checkout.
    #[serde(default)]
    pub(crate) evidence: Vec<String>,
    /// One line: what was seen, or what keeps it from being seen.
    #[serde(default)]
    pub(crate) remark: String,
}

/// How far an instance has come.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    /// A seeded fault has the mechanism.
    Modelled,
    /// Read in source, not run.
    Candidate,
    /// The real component shows it.
    Reproduced,
    /// The real component was tried and does not show it.
    Cleared,
    /// The real component runs on no machine that was at hand.
    NoHardware,
    /// A tool or test that a row asks for is there.
    Provided,
    /// Nothing was shown.
    Open,
}

impl Status {
    /// All, with what each says.
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (
            Self::Modelled,
            "the mechanism is a seeded fault of the embedded engine, found with its code and \
             object, also when the engine lies; its twin is silent",
        ),
        (Self::Candidate, "it was read in the engine's source and not run"),
        (
            Self::Reproduced,
            "the real component shows it, and the run is a test or recorded evidence",
        ),
        (Self::Cleared, "the real component was tried, and does not show it"),
        (Self::NoHardware, "the real component runs on no machine that was at hand"),
        (
            Self::Provided,
            "of a row that asks for a tool or a test and names no fault: it is there, as far as \
             the remark says",
        ),
        (Self::Open, "not shown. A finding code may exist all the same"),
    ];

    /// Whether it says that something was run.
    pub(crate) fn is_shown(self) -> bool {
        !matches!(self, Self::NoHardware | Self::Open)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Modelled => "modelled",
            Self::Candidate => "candidate",
            Self::Reproduced => "reproduced",
            Self::Cleared => "cleared",
            Self::NoHardware => "no hardware",
            Self::Provided => "provided",
            Self::Open => "open",
        })
    }
}

/// The rows of the data, in its order.
pub(crate) fn rows(data: &str) -> Result<Vec<Row>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        row: Vec<Row>,
    }
    let table: Table = toml::from_str(data).with_context(|| format!("`{DATA}` is no table"))?;
    Ok(table.row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_or_a_field_that_nobody_knows_is_refused() {
        let data = |line: &str| {
            format!("[[row]]\nid = \"F1.01\"\nrow = \"a\"\nwrong = \"b\"\n[[row.instance]]\n{line}")
        };
        assert_eq!(rows(&data("status = \"no-hardware\"")).unwrap()[0].id, "F1.01");
        assert!(rows(&data("status = \"partly\"")).is_err());
        assert!(rows(&data("status = \"open\"\nwhere = \"here\"")).is_err());
    }
}
