//! `cargo xtask codes`: one page a finding code, with a header made from the one table of codes and
//! prose that people write.

mod page;
mod table;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

pub(crate) use page::{Page, contents, folder};
pub(crate) use table::{Row, TABLE, rows};

use crate::house::House;

/// Writes every page's header and the list of codes anew.
pub(crate) fn run(house: &House) -> Result<()> {
    let text = fs::read_to_string(house.root.join(TABLE))
        .with_context(|| format!("cannot read `{TABLE}`"))?;
    let rows = rows(&text)?;
    for row in &rows {
        let path = house.root.join(folder()).join(format!("{}.md", row.code));
        let old = fs::read_to_string(&path).unwrap_or_default();
        write(&path, &Page::of(&old).with_header(row))?;
    }
    write(&house.root.join(folder()).join("README.md"), &contents(&rows))?;
    println!("codes: {} pages in {}", rows.len(), folder());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make `{}`", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}
