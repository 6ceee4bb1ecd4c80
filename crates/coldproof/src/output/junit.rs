//! The verdict as JUnit XML, a test case a category.

use coldproof_contract::verdict::{Category, Room, Status, Verdict};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

/// `junit.xml`.
#[must_use]
pub(crate) fn junit(verdict: &Verdict) -> String {
    let mut suite = TestSuite::new("coldproof");
    for report in &verdict.categories {
        let name = format!("{} {}", report.category, report.name);
        let category = Room::from_number(report.category).map(Category::Room);
        suite.add_test_case(case(
            verdict,
            &name,
            report.status,
            report.reason.as_deref(),
            category,
        ));
    }
    let transition = &verdict.transition;
    suite.add_test_case(case(
        verdict,
        "transition",
        transition.status,
        transition.reason.as_deref(),
        Some(Category::Transition),
    ));
    let mut report = Report::new("coldproof");
    report.add_test_suite(suite);
    report.to_string().unwrap_or_default()
}

fn case(
    verdict: &Verdict,
    name: &str,
    status: Status,
    reason: Option<&str>,
    category: Option<Category>,
) -> TestCase {
    let status = match status {
        Status::Pass => TestCaseStatus::success(),
        Status::NotCovered => {
            let mut skipped = TestCaseStatus::skipped();
            skipped.set_message(reason.unwrap_or("not covered"));
            skipped
        }
        Status::Undecided => {
            let mut error = TestCaseStatus::non_success(NonSuccessKind::Error);
            error.set_type("undecided").set_message(reason.unwrap_or("undecided"));
            error
        }
        Status::Fail => {
            let found = verdict.findings.iter().filter(|f| Some(f.category) == category);
            let lines: Vec<String> =
                found.map(|f| format!("{} {}: {}", f.code, f.object, f.actual)).collect();
            let mut failure = TestCaseStatus::non_success(NonSuccessKind::Failure);
            failure.set_type("finding").set_message(lines.join("\n"));
            failure
        }
    };
    TestCase::new(name, status)
}
