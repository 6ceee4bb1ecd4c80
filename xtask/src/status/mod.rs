//! `cargo xtask status`: the RFC row by row, made from data and held against the files that it
//! names.

mod check;
mod page;
mod table;

use std::fs;

use anyhow::{Context as _, Result};

pub(crate) use check::check;
pub(crate) use table::{Instance, Row, Status, rows};

use crate::house::House;

/// What is known of each row.
pub(crate) const DATA: &str = "docs/rfc-status.toml";
/// What is made of it.
pub(crate) const PAGE: &str = "docs/rfc-status.md";

/// Writes the page anew.
pub(crate) fn run(house: &House) -> Result<()> {
    let data = fs::read_to_string(house.root.join(DATA))
        .with_context(|| format!("cannot read `{DATA}`"))?;
    let rows = rows(&data)?;
    fs::write(house.root.join(PAGE), page::of(&rows))
        .with_context(|| format!("cannot write `{PAGE}`"))?;
    println!("status: {} rows in {PAGE}", rows.len());
    Ok(())
}
