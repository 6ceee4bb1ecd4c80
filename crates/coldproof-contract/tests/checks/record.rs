//! Evidence files: what is written is what is read, and what was touched is refused.

use coldproof_contract::evidence::{Record, RecordError, SCHEMA};

use crate::support::correct;

pub(crate) fn written(record: &Record) -> Vec<String> {
    let mut bytes = Vec::new();
    record.write(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

pub(crate) fn read(lines: &[String]) -> Result<Record, RecordError> {
    Record::read(&mut lines.join("\n").as_bytes())
}

/// The lines with a seal that fits them.
pub(crate) fn sealed(lines: &[String]) -> Vec<String> {
    let mut hasher = blake3::Hasher::new();
    let body = &lines[..lines.len() - 1];
    for line in body {
        hasher.update(line.as_bytes());
        hasher.update(b"\n");
    }
    let seal =
        format!(r#"{{"events":{},"blake3":"{}"}}"#, body.len() - 1, hasher.finalize().to_hex());
    [body, &[seal]].concat()
}

#[test]
fn what_is_written_is_read() {
    let record = correct().record();
    let lines = written(&record);
    assert_eq!(read(&lines).unwrap(), record);
    assert_eq!(sealed(&lines), lines);
    assert_eq!(lines.len(), record.events.len() + 2);
}

#[test]
fn an_empty_file_is_named() {
    assert!(matches!(read(&[]), Err(RecordError::Empty)));
}

#[test]
fn a_file_without_its_seal_was_cut_short() {
    let lines = written(&correct().record());
    for end in [1, 2, lines.len() / 2, lines.len() - 1] {
        let error = read(&lines[..end]).unwrap_err();
        assert!(matches!(error, RecordError::Seal { .. }), "{error}");
        assert!(error.to_string().contains("there is no closing line"), "{error}");
    }
}

#[test]
fn a_line_that_was_taken_out_is_counted() {
    let mut lines = written(&correct().record());
    lines.remove(3);
    let error = read(&lines).unwrap_err().to_string();
    assert!(error.contains("events where"), "{error}");
}

#[test]
fn a_line_that_was_changed_is_seen() {
    let mut lines = written(&correct().record());
    lines[3] = lines[3].replace("cold-b", "cold-c");
    let error = read(&lines).unwrap_err().to_string();
    assert!(
        error.contains("its BLAKE3 differs; record the run again")
            || error.contains("its BLAKE3 differs"),
        "{error}"
    );
    // Two lines that changed places as well.
    let mut lines = written(&correct().record());
    lines.swap(3, 4);
    assert!(matches!(read(&lines), Err(RecordError::Seal { .. })));
}

#[test]
fn another_format_is_named_before_it_is_misread() {
    let mut lines = written(&correct().record());
    lines[0] = lines[0].replace(SCHEMA, "coldproof.evidence/2");
    let error = read(&lines).unwrap_err();
    assert!(
        matches!(&error, RecordError::Schema { found } if found == "coldproof.evidence/2"),
        "{error}"
    );
    assert!(matches!(read(&sealed(&lines)), Err(RecordError::Schema { .. })));
}

#[test]
fn a_malformed_line_is_named_with_its_number() {
    let lines = written(&correct().record());
    for (index, text) in [(0, "{}"), (4, "{}"), (lines.len() - 2, "not json")] {
        let mut lines = lines.clone();
        lines[index] = text.to_owned();
        match read(&sealed(&lines)) {
            Err(RecordError::Malformed { line, .. }) => assert_eq!(line, index + 1),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn events_out_of_order_are_refused_though_they_are_sealed() {
    let mut lines = written(&correct().record());
    lines.swap(9, 10);
    let error = read(&sealed(&lines)).unwrap_err();
    assert!(matches!(error, RecordError::Order { line: 11 }), "{error}");
}

#[test]
fn an_event_of_an_arm_that_the_header_does_not_name_is_refused() {
    let mut lines = written(&correct().record());
    let last = lines.len() - 2;
    lines[last] = lines[last].replace("\"composite\"", "\"composite-2\"");
    let error = read(&sealed(&lines)).unwrap_err();
    assert!(matches!(&error, RecordError::Arm { arm, .. } if arm == "composite-2"), "{error}");
}

#[test]
fn a_topology_of_no_ranks_or_too_many_is_refused() {
    for tp in ["0", "4294967295"] {
        let mut lines = written(&correct().record());
        lines[0] = lines[0].replacen("\"tp\":1", &format!("\"tp\":{tp}"), 1);
        let error = read(&sealed(&lines)).unwrap_err();
        assert!(matches!(error, RecordError::Malformed { line: 1, .. }), "{error}");
    }
}

#[test]
fn an_event_of_a_rank_that_its_arm_does_not_have_is_refused() {
    let mut record = correct().record();
    assert!(read(&written(&record)).is_ok());
    record.events.last_mut().unwrap().rank.ep = u32::MAX;
    let error = read(&written(&record)).unwrap_err();
    assert!(matches!(error, RecordError::Rank { .. }), "{error}");
}
