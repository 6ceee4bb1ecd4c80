//! A code's page: a header between two marks, then prose under two headings.

use std::fmt::Write as _;

use super::Row;

const BEGIN: &str = "<!-- made by `cargo xtask codes`: begin -->";
const END: &str = "<!-- made by `cargo xtask codes`: end -->";

/// The headings under which people write.
const HEADINGS: [&str; 2] = ["## What it looks like", "## What to do"];

/// What the page of a code says that nothing raises.
const RESERVED: &str = "Reserved: ";

/// Where the pages lie.
pub(crate) const fn folder() -> &'static str {
    "docs/codes"
}

/// A page, cut at its marks.
#[derive(Clone, Debug)]
pub(crate) struct Page<'t> {
    text: &'t str,
    prose: &'t str,
}

impl<'t> Page<'t> {
    /// Cuts a page; one without marks is all prose.
    pub(crate) fn of(text: &'t str) -> Self {
        let prose = text.split_once(END).map_or(text, |(_, prose)| prose);
        Self { text, prose: prose.trim() }
    }

    /// The page with the header of a row. An empty page gets the headings.
    pub(crate) fn with_header(&self, row: &Row) -> String {
        let empty = HEADINGS.join("\n\n");
        let prose = if self.prose.is_empty() { &empty } else { self.prose };
        format!("{}\n\n{prose}\n", header(row))
    }

    /// What is wrong with the page of a row. `is_raised`: whether a check names the code.
    pub(crate) fn problem(&self, row: &Row, is_raised: bool) -> Option<String> {
        if !self.text.starts_with(&header(row)) {
            return Some("its header is not the table's: run `cargo xtask codes`".to_owned());
        }
        let missing = HEADINGS.into_iter().find(|heading| {
            let body = self.prose.split_once(heading).map_or("", |(_, body)| body);
            body.split("\n## ").next().unwrap_or_default().trim().is_empty()
        });
        if let Some(heading) = missing {
            return Some(format!("nothing under `{heading}`: write it"));
        }
        match (is_raised, self.prose.contains(RESERVED)) {
            (true, true) => Some(format!("says `{RESERVED}`, and a check raises the code")),
            (false, false) => Some(format!("no check raises the code: say `{RESERVED}` and why")),
            _ => None,
        }
    }
}

fn header(row: &Row) -> String {
    format!(
        "{BEGIN}\n# {}\n\n| category | requirement |\n|---|---|\n| {} | {} |\n\n{}\n{END}",
        row.code, row.category, row.requirement, row.meaning
    )
}

/// The list of all codes.
pub(crate) fn contents(rows: &[Row]) -> String {
    let mut text = String::from(
        "<!-- made by `cargo xtask codes` -->\n# Finding codes\n\n\
         One closed list. A finding has one code, a code one category, and each code a page that \
         says what it looks like and what to do.\n\n\
         | code | category | requirement | meaning |\n|---|---|---|---|\n",
    );
    for row in rows {
        // Writing to a `String` does not fail.
        let _ = writeln!(
            text,
            "| [{0}]({0}.md) | {1} | {2} | {3} |",
            row.code, row.category, row.requirement, row.meaning
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(meaning: &str) -> Row {
        Row {
            variant: "SlotMissing".to_owned(),
            code: "slot-missing".to_owned(),
            category: "1, storage identity",
            requirement: "R5".to_owned(),
            meaning: meaning.to_owned(),
        }
    }

    #[test]
    fn prose_is_kept_and_the_header_is_made_anew() {
        let first = Page::of("").with_header(&row("Old."));
        assert!(
            Page::of(&first).problem(&row("Old."), true).is_some(),
            "an empty page is a problem"
        );
        let written = first
            .replace(HEADINGS[0], &format!("{}\n\nSo.", HEADINGS[0]))
            .replace(HEADINGS[1], &format!("{}\n\nThis.", HEADINGS[1]));
        assert_eq!(Page::of(&written).problem(&row("Old."), true), None);
        assert!(
            Page::of(&written).problem(&row("New."), true).is_some(),
            "a stale header is a problem"
        );
        let renewed = Page::of(&written).with_header(&row("New."));
        assert_eq!(Page::of(&renewed).problem(&row("New."), true), None);
        assert!(renewed.contains("So.") && renewed.contains("This."));
        assert_eq!(Page::of(&renewed).with_header(&row("New.")), renewed);
    }

    #[test]
    fn each_heading_needs_words() {
        for heading in HEADINGS {
            let mut text = format!("{}\n\n", header(&row("A.")));
            for each in HEADINGS {
                text.push_str(each);
                text.push_str(if each == heading { "\n\n" } else { "\n\nWords.\n\n" });
            }
            assert!(Page::of(&text).problem(&row("A."), true).is_some_and(|p| p.contains(heading)));
        }
    }

    #[test]
    fn a_code_that_nothing_raises_says_so_and_no_other_does() {
        let page = |end: &str| {
            let prose = format!("{}\n\nSo.\n\n{}\n\nThis.{end}", HEADINGS[0], HEADINGS[1]);
            Page::of(&prose).with_header(&row("A."))
        };
        let (usual, reserved) = (page(""), page(" Reserved: no lane sees it."));
        let problem = |text: &str, is_raised| Page::of(text).problem(&row("A."), is_raised);
        assert_eq!((problem(&usual, true), problem(&reserved, false)), (None, None));
        assert!(problem(&usual, false).is_some_and(|text| text.starts_with("no check")));
        assert!(problem(&reserved, true).is_some_and(|text| text.starts_with("says")));
    }
}
