//! The page that is made of the rows.

use std::fmt::Write as _;

use super::{Instance, Row, Status};

const OPENING: &str = "\
# The RFC, row by row

<!-- Made by `cargo xtask status` from rfc-status.toml: change that file. -->

The RFC on weight reload correctness lists its failures in rows; each has an id here, and so do its
test layers. A row is *done* when the faulty behaviour can be switched on and is reported with the
right category and object, its correct twin passes in silence, and each instance of the real
component was tried. Numbers with # are issues and pull requests of vLLM. A row may have several
instances, a line each, with one of these words:

";
const HEAD: &str = "
| id | row | category | what goes wrong, or what is asked | status | tried on | shown by | remark |
|---|---|---|---|---|---|---|---|
";
const BEYOND: &str = "
## Beyond the RFC

Found on real engines.
";

/// The whole page.
pub(super) fn of(rows: &[Row]) -> String {
    let mut page = OPENING.to_owned();
    for (status, meaning) in Status::ALL {
        line(&mut page, format_args!("- **{status}**: {meaning}."));
    }
    let (beyond, rfc): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.id.starts_with("N."));
    table(&mut page, &rfc);
    if !beyond.is_empty() {
        page.push_str(BEYOND);
        table(&mut page, &beyond);
    }
    let instances: Vec<&Instance> = rows.iter().flat_map(|row| &row.instance).collect();
    let counts = Status::ALL.map(|(status, _)| {
        let count = instances.iter().filter(|one| one.status == status).count();
        format!("{count} {status}")
    });
    let of = format_args!(
        "\n{} rows, {} instances: {}.",
        rows.len(),
        instances.len(),
        counts.join(", ")
    );
    line(&mut page, of);
    page
}

fn table(page: &mut String, rows: &[&Row]) {
    page.push_str(HEAD);
    for row in rows {
        for (index, instance) in row.instance.iter().enumerate() {
            let about = [&row.row, &row.category, &row.wrong].map(|cell| match index {
                0 => escaped(cell),
                _ => String::new(),
            });
            let [name, category, wrong] = about;
            let shown: Vec<String> = instance
                .fault
                .iter()
                .map(|fault| format!("`prove --fault {fault}`"))
                .chain(instance.evidence.iter().map(|item| link(item)))
                .collect();
            line(
                page,
                format_args!(
                    "| {} | {name} | {category} | {wrong} | {} | {} | {} | {} |",
                    row.id,
                    instance.status,
                    escaped(&instance.engine),
                    shown.join("; "),
                    escaped(&instance.remark),
                ),
            );
        }
    }
}

/// `FILE::NAME` as a link from `docs/`.
fn link(item: &str) -> String {
    let (file, name) = item.split_once("::").unwrap_or((item, ""));
    let short = file.rsplit('/').next().unwrap_or(file);
    let link = format!("[{short}](../{file})");
    if name.is_empty() { link } else { format!("{link} `{name}`") }
}

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|")
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(page, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::rows;

    const DATA: &str = r#"
[[row]]
id = "F7.02"
row = "a"
category = "7"
wrong = "x | y"
[[row.instance]]
status = "modelled"
fault = "F7.02"
evidence = ["c/tests/it.rs::finds"]
[[row.instance]]
status = "open"
remark = "adapters"
[[row]]
id = "N.01"
row = "b"
wrong = "z"
[[row.instance]]
status = "reproduced"
engine = "vLLM 1"
evidence = ["docs/run.jsonl"]
"#;

    #[test]
    fn an_instance_is_a_line() {
        let page = of(&rows(DATA).unwrap());
        let lines: Vec<&str> = page.lines().collect();
        let shown = "`prove --fault F7.02`; [it.rs](../c/tests/it.rs) `finds`";
        assert!(
            lines.contains(
                &format!("| F7.02 | a | 7 | x \\| y | modelled |  | {shown} |  |").as_str()
            )
        );
        assert!(lines.contains(&"| F7.02 |  |  |  | open |  |  | adapters |"));
        let beyond = lines.iter().position(|line| *line == "## Beyond the RFC").unwrap();
        let row = "| N.01 | b |  | z | reproduced | vLLM 1 | [run.jsonl](../docs/run.jsonl) |  |";
        assert!(lines.iter().position(|line| *line == row).unwrap() > beyond);
        let counted = "2 rows, 3 instances: 1 modelled, 0 candidate, 1 reproduced, 0 cleared, \
                       0 no hardware, 0 provided, 1 open.";
        assert_eq!(lines.last(), Some(&counted));
    }
}
