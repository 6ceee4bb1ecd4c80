//! Findings that a project knows and has listed: they no longer fail a run, they are always shown,
//! and one that is listed and does not come any more fails it.

use super::{Category, FindingCode, Note, Room, Status, Verdict, VerdictKind};
use crate::evidence::RequiredItem;

/// One listed finding. The reader of the list has already chosen by engine, version, model and day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its code.
    pub code: FindingCode,
    /// Its object; `*` stands for any text.
    pub object: String,
    /// Where it is reported.
    pub link: String,
}

impl Listed {
    /// Whether a finding is this one.
    #[must_use]
    pub fn matches(&self, code: FindingCode, object: &str) -> bool {
        self.code == code && matches(&self.object, object)
    }
}

/// `*` in the pattern stands for any text, also none.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(head) else { return false };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|at| matches(tail, &rest[at..]))
}

/// Holds a verdict against the list.
///
/// A finding that is listed gets its link and a note. Where all findings are listed and all that is
/// required is proven or has listed findings alone, the verdict is a pass: the categories keep
/// their status, and there is no certificate. A listed finding that did not come, of a category
/// that was judged, makes the verdict a failure.
pub fn accept(verdict: &mut Verdict, listed: &[Listed]) {
    let mut vanished = Vec::new();
    for entry in listed {
        let mut found = 0;
        let own = verdict.findings.iter_mut().filter(|f| entry.matches(f.code, &f.object));
        for finding in own {
            finding.known.get_or_insert_with(|| entry.link.clone());
            found += 1;
        }
        if found > 0 {
            let text = format!("known: {} {} ({found}): {}", entry.code, entry.object, entry.link);
            verdict.notes.push(Note { kind: "known".to_owned(), text });
        } else if is_judged(verdict, entry.code.category()) {
            vanished.push(entry);
        }
    }
    let unknown = verdict.findings.iter().any(|finding| finding.known.is_none());
    if verdict.verdict == VerdictKind::Fail && !unknown {
        let proven = verdict.required.iter().all(|item| is_settled(verdict, *item));
        verdict.verdict = if proven { VerdictKind::Pass } else { VerdictKind::Undecided };
    }
    for entry in vanished {
        verdict.verdict = VerdictKind::Fail;
        let text = format!(
            "listed as known and not found: {} {}; take it off the list ({})",
            entry.code, entry.object, entry.link
        );
        verdict.notes.push(Note { kind: "known".to_owned(), text });
    }
}

fn is_judged(verdict: &Verdict, category: Category) -> bool {
    let status = match category {
        Category::Room(room) => status(verdict, room.number()),
        Category::Transition => Some(verdict.transition.status),
        Category::Wire => Some(verdict.wire.status),
    };
    matches!(status, Some(Status::Pass | Status::Fail))
}

/// A category fails by findings alone, and the caller has seen that all of them are listed. So is
/// the transition where outputs differ as those findings explain.
fn is_settled(verdict: &Verdict, item: RequiredItem) -> bool {
    let (status, explained) = match item {
        RequiredItem::Transition => (Some(verdict.transition.status), verdict.transition.explained),
        RequiredItem::Category(number) => (status(verdict, number), false),
    };
    explained || matches!(status, Some(Status::Pass | Status::Fail))
}

fn status(verdict: &Verdict, number: u8) -> Option<Status> {
    Room::from_number(number)?;
    verdict.categories.iter().find(|c| c.category == number).map(|c| c.status)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_is_any_text() {
        assert!(matches("a.*.c", "a.b.c"));
        assert!(matches("a.*.c", "a.b.c.d.c"));
        assert!(matches("*", ""));
        assert!(!matches("a.*.c", "a.b.d"));
        assert!(!matches("a.b", "a.bc"));
        assert!(!matches("*.b", "a.bc"));
    }
}
