//! Category 4: what a partial update was told to preserve.

use coldproof_contract::evidence::{Event, Fact, LaneName, ManifestFact};
use coldproof_contract::verdict::{FindingCode as Code, Room};

use crate::support::model::{self, NORM, label};
use crate::support::{Run, assert_silent, assert_undecided, correct, one};

/// One arm again, as one of the partial lane: M has all of B but the norm, which is A's.
fn again(run: &mut Run, of: &str, arm: &str, against: Option<&str>) {
    let mut header = run.header.arms.iter().find(|header| header.arm == of).unwrap().clone();
    let topology = header.topology;
    (header.arm, header.lane) = (arm.to_owned(), LaneName::Partial);
    header.against = against.map(str::to_owned);
    run.header.arms.push(header);
    let mut mixed = false;
    let mut events: Vec<Event> = Vec::new();
    for mut event in run.events.iter().filter(|event| event.arm == of).cloned() {
        event.arm = arm.to_owned();
        match &mut event.fact {
            Fact::Phase(phase) => {
                mixed = phase.at == label("B");
                if mixed {
                    phase.at = label("M");
                    phase.phase = phase.phase.replace('B', "M");
                }
            }
            Fact::Manifest(manifest) => promise(manifest),
            Fact::Application(application) if application.source == NORM => continue,
            Fact::ReadBack(read) if mixed && read.slot.0 == NORM => {
                let old = model::read_backs(topology, event.rank, "A");
                *read = old.into_iter().find(|old| old.slot == read.slot).unwrap();
            }
            Fact::SourceReadBack(read) if mixed && read.source == NORM => {
                read.digest = Some(model::content(&format!("A {NORM}")));
            }
            _ => {}
        }
        events.push(event);
    }
    run.events.extend(events);
}

fn promise(manifest: &mut ManifestFact) {
    manifest.checkpoint = label("M");
    manifest.explicitly_preserved = vec![NORM.to_owned()];
    manifest.required.retain(|source| source != NORM);
    manifest.delivered.retain(|source| source != NORM);
}

/// A run of all lanes and a partial update, in which nothing is wrong.
fn with_a_partial_update() -> Run {
    let mut run = correct();
    let mut mixed = model::checkpoint("M");
    for source in &mut mixed.sources {
        let of = if source.name == NORM { "A" } else { "B" };
        source.digest = model::content(&format!("{of} {}", source.name));
    }
    run.header.checkpoints.push(mixed);
    again(&mut run, "cold-b", "cold-m", None);
    again(&mut run, "names", "partial", Some("cold-m"));
    run
}

#[test]
fn what_is_preserved_counts_as_evidence() {
    let run = with_a_partial_update();
    assert_silent(&run);
    let verdict = run.judge();
    let why = verdict.categories[3].reason.clone().unwrap_or_default();
    assert!(why.ends_with("1 parameters preserved by a partial update"), "{why}");
}

#[test]
fn a_preserved_slot_that_lost_its_bytes_is_lost_state_and_no_gap_of_the_loader() {
    let mut run = with_a_partial_update();
    let garbage = Some(model::content("garbage"));
    run.phase("partial", "A>M").read(NORM, |_, read| read.content = garbage);
    assert_eq!(run.found(), [one(Code::StateLost, NORM, &[0])]);
}

#[test]
fn a_delivered_slot_that_kept_its_bytes_is_the_loaders() {
    let mut run = with_a_partial_update();
    let old = model::read_backs(run.header.arms[0].topology, Default::default(), "A");
    let old = old.into_iter().find(|read| read.slot.0 == model::EMBED).unwrap();
    run.phase("partial", "A>M").read(model::EMBED, |_, read| *read = old.clone());
    let codes: Vec<Code> = run.found().into_iter().map(|(_, code, _, _)| code).collect();
    assert_eq!(codes, [Code::ApplicationMissing]);
}

#[test]
fn a_slot_that_nobody_promised_to_preserve_is_no_evidence_of_preservation() {
    let mut run = with_a_partial_update();
    run.phase("partial", "A>M").map(|_, mut fact| {
        if let Fact::Manifest(manifest) = &mut fact {
            let kept = std::mem::take(&mut manifest.explicitly_preserved);
            manifest.allowed_missing.extend(kept);
        }
        Some(fact)
    });
    assert_undecided(&run, Room::State, "no parameter was seen to be preserved");
}

#[test]
fn a_partial_update_that_was_not_read_back_proves_nothing() {
    let mut run = with_a_partial_update();
    run.phase("partial", "A>M").drop(|_, fact| matches!(fact, Fact::ReadBack(_)));
    assert_undecided(&run, Room::State, "no parameter was seen to be preserved");
}
