//! The verdict in plain words.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use coldproof_contract::evidence::RequiredItem;
use coldproof_contract::verdict::{Category, Finding, Room, Status, Verdict, VerdictKind};

use crate::error::Failure;

/// Unseen slots that are named; the rest are counted, and all are in `verdict.json`.
const UNSEEN_MAX: usize = 8;

/// Findings of one code that are printed one by one; the rest are counted.
const EACH_MAX: usize = 3;

const fn style(status: Status) -> Style {
    let color = match status {
        Status::Pass => AnsiColor::Green,
        Status::Fail => AnsiColor::Red,
        Status::Undecided => AnsiColor::Yellow,
        Status::NotCovered => AnsiColor::BrightBlack,
    };
    color.on_default().bold()
}

const fn word(status: Status) -> &'static str {
    match status {
        Status::Pass => "PASS",
        Status::Fail => "FAIL",
        Status::Undecided => "UNDECIDED",
        Status::NotCovered => "NOT COVERED",
    }
}

/// A failure, for stderr.
#[must_use]
pub(crate) fn failure(failure: &Failure) -> String {
    let red = AnsiColor::Red.on_default().bold();
    let cyan = AnsiColor::Cyan.on_default().bold();
    format!("{red}error{red:#}: {}\n {cyan}hint{cyan:#}: {}\n", failure.message, failure.hint)
}

/// The verdict, a line a category.
#[must_use]
pub(crate) fn verdict(verdict: &Verdict) -> String {
    let mut text = String::new();
    for report in &verdict.categories {
        let title = format!("{} {}", report.category, report.name);
        line(&mut text, &title, report.status, report.reason.as_deref(), || {
            let room = Room::from_number(report.category);
            room.map_or_else(String::new, |room| counts(verdict, Category::Room(room)))
        });
    }
    let transition = &verdict.transition;
    line(&mut text, "T transition", transition.status, transition.reason.as_deref(), || {
        counts(verdict, Category::Transition)
    });
    findings(&mut text, verdict);
    notes(&mut text, verdict);
    let _ = writeln!(text, "{}", summary(verdict));
    text
}

fn line(
    text: &mut String,
    title: &str,
    status: Status,
    reason: Option<&str>,
    found: impl FnOnce() -> String,
) {
    let style = style(status);
    let reason = reason.map_or_else(found, str::to_owned);
    let _ = writeln!(text, "{title:<28} {style}{:<11}{style:#} {reason}", word(status));
}

fn counts(verdict: &Verdict, category: Category) -> String {
    let found = verdict.findings.iter().filter(|finding| finding.category == category).count();
    format!("{found} finding{}", if found == 1 { "" } else { "s" })
}

fn findings(text: &mut String, verdict: &Verdict) {
    let mut rest: &[Finding] = &verdict.findings;
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|finding| finding.code == first.code).count();
        for finding in &rest[..same.min(EACH_MAX)] {
            one(text, finding);
        }
        if same > EACH_MAX {
            let _ = writeln!(text, "  and {} more of `{}`", same - EACH_MAX, first.code);
        }
        rest = &rest[same..];
    }
}

fn one(text: &mut String, finding: &Finding) {
    let bold = Style::new().bold();
    let ranks: Vec<String> = finding.ranks.iter().map(u32::to_string).collect();
    let _ = writeln!(
        text,
        "\n{bold}{}{bold:#} {} (rank {})",
        finding.code,
        finding.object,
        ranks.join(", ")
    );
    let _ = writeln!(text, "  expected: {}", finding.expected);
    let _ = writeln!(text, "  actual:   {}", finding.actual);
    let _ = writeln!(text, "  why:      {} ({})", finding.why, finding.requirement);
    if let Some(link) = &finding.known {
        let _ = writeln!(text, "  known:    {link}");
    }
    for event in &finding.events {
        let _ = writeln!(text, "  {:<9} in step `{}`: {}", event.what, event.step, event.text);
    }
}

fn notes(text: &mut String, verdict: &Verdict) {
    if !verdict.unseen.is_empty() {
        let shown = &verdict.unseen[..verdict.unseen.len().min(UNSEEN_MAX)];
        let more = match verdict.unseen.len() - shown.len() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let _ = writeln!(
            text,
            "\nunseen by any output (judged by content alone): {}{more}",
            shown.join(", ")
        );
    }
    for note in &verdict.notes {
        let _ = writeln!(text, "note: {}", note.text);
    }
    if let Some(generation) = &verdict.generation {
        let _ = writeln!(text, "generation: {generation}");
    }
}

/// The last line: `PASS (required 2,3; not covered 1: no graphs)`.
#[must_use]
pub(crate) fn summary(verdict: &Verdict) -> String {
    let (word, status) = match verdict.verdict {
        VerdictKind::Pass => ("PASS", Status::Pass),
        VerdictKind::Fail => ("FAIL", Status::Fail),
        VerdictKind::Undecided => ("UNDECIDED", Status::Undecided),
    };
    let required: Vec<String> = verdict.required.iter().map(item).collect();
    let mut parts = vec![format!("required {}", required.join(","))];
    let known = verdict.findings.iter().filter(|finding| finding.known.is_some()).count();
    if known > 0 {
        parts.push(format!("known findings: {known}"));
    }
    for report in &verdict.categories {
        let open = match report.status {
            Status::Undecided => "undecided",
            Status::NotCovered => "not covered",
            Status::Pass | Status::Fail => continue,
        };
        let reason = report.reason.as_deref().unwrap_or("no reason given");
        parts.push(format!("{open} {}: {reason}", report.category));
    }
    let open = match verdict.transition.status {
        Status::Undecided => Some("undecided"),
        Status::NotCovered => Some("not covered"),
        Status::Pass | Status::Fail => None,
    };
    if let Some(open) = open {
        let reason = verdict.transition.reason.as_deref().unwrap_or("no reason given");
        parts.push(format!("{open} transition: {reason}"));
    }
    let style = style(status);
    format!("{style}{word}{style:#} ({})", parts.join("; "))
}

fn item(item: &RequiredItem) -> String {
    match item {
        RequiredItem::Category(number) => number.to_string(),
        RequiredItem::Transition => "transition".to_owned(),
    }
}
