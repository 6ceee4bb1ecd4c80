//! The table of finding codes, read from the text of the macro that defines them.

use anyhow::{Context as _, Result, bail};

/// The file that holds the table.
pub(crate) const TABLE: &str = "crates/coldproof-contract/src/verdict/code.rs";

/// What the table's category constants mean.
const CATEGORIES: [(&str, &str); 9] = [
    ("STORAGE", "1, storage identity"),
    ("DERIVED", "2, runtime value refresh"),
    ("LIFECYCLE", "3, loader lifecycle"),
    ("STATE", "4, reload state preservation"),
    ("ROUTING", "5, routing and sharding"),
    ("NAMES", "6, names and keys"),
    ("CACHES", "7, cache coherence"),
    ("Category::Transition", "transition"),
    ("Category::Wire", "wire"),
];

/// One code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// As Rust spells it.
    pub(crate) variant: String,
    /// As reports spell it.
    pub(crate) code: String,
    /// Number and title of its category.
    pub(crate) category: &'static str,
    /// The requirement that it violates.
    pub(crate) requirement: String,
    /// What it means, in one sentence.
    pub(crate) meaning: String,
}

/// The rows of `codes! { Variant, "code", CATEGORY, "R1", "Meaning."; … }`.
pub(crate) fn rows(text: &str) -> Result<Vec<Row>> {
    const OPEN: &str = "\ncodes! {";
    let start = text.find(OPEN).context("no table `codes! { … }`")? + OPEN.len();
    let mut rows = Vec::new();
    let mut rest = text[start..].trim_start();
    while !rest.starts_with('}') {
        let (fields, after) = statement(rest)?;
        rows.push(row(&fields)?);
        rest = after.trim_start();
    }
    if rows.is_empty() { bail!("the table of codes is empty") } else { Ok(rows) }
}

/// The comma-separated fields up to the next `;` outside a string, and what follows.
fn statement(text: &str) -> Result<(Vec<String>, &str)> {
    let mut fields = vec![String::new()];
    let mut is_string = false;
    let mut characters = text.char_indices().peekable();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => is_string = !is_string,
            '\\' if is_string => match characters.next() {
                // A continued line: the break and the indentation are not part of the text.
                Some((_, '\n')) => {
                    while characters.next_if(|(_, c)| c.is_whitespace()).is_some() {}
                }
                Some((_, escaped)) => push(&mut fields, escaped),
                None => {}
            },
            ',' if !is_string => fields.push(String::new()),
            ';' if !is_string => return Ok((fields, &text[index + 1..])),
            _ if is_string || !character.is_whitespace() => push(&mut fields, character),
            _ => {}
        }
    }
    bail!("the table of codes does not end")
}

fn push(fields: &mut [String], character: char) {
    if let Some(field) = fields.last_mut() {
        field.push(character);
    }
}

fn row(fields: &[String]) -> Result<Row> {
    let [variant, code, category, requirement, meaning] = fields else {
        bail!("a row of the table of codes has {} fields, not 5: {fields:?}", fields.len());
    };
    let (_, category) = CATEGORIES
        .into_iter()
        .find(|(name, _)| name == category)
        .with_context(|| format!("`{code}`: no category `{category}`"))?;
    Ok(Row {
        variant: variant.clone(),
        code: code.clone(),
        category,
        requirement: requirement.clone(),
        meaning: meaning.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_across_lines() {
        let text = "x\ncodes! {\n  A, \"a-b\", STORAGE, \"R5\", \"One; two,\n three.\";\n\
                    B, \"b\", Category::Wire,\n \"R57\",\n \"Long \\\n    line.\";\n}\n";
        let rows = rows(text).unwrap();
        assert_eq!(rows[0].code, "a-b");
        assert_eq!(rows[0].category, "1, storage identity");
        assert_eq!(rows[0].meaning, "One; two,\n three.");
        assert_eq!((rows[1].category, rows[1].meaning.as_str()), ("wire", "Long line."));
    }

    #[test]
    fn a_row_of_another_shape_is_refused() {
        assert!(rows("\ncodes! {\n A, \"a\", STORAGE, \"R5\";\n}").is_err());
        assert!(rows("\ncodes! {\n A, \"a\", NOWHERE, \"R5\", \"M.\";\n}").is_err());
        assert!(rows("\ncodes! {\n}").is_err());
        assert!(rows("nothing").is_err());
    }
}
