//! What a manifest promises against what was delivered.

use coldproof_contract::evidence::{
    ApplicationFact, Fact, ManifestFact, PostLoadStage, StepOutcome,
};
use coldproof_contract::verdict::FindingCode as Code;
use coldproof_contract::words::{Rank, StepName};

use crate::support::model::{HEAD, NORM, UP};
use crate::support::{Run, assert_silent, correct, one};

/// States the manifest of the phase twice: as it was sealed, and with what was delivered.
fn restate(run: &mut Run, change: impl Fn(&mut ManifestFact)) {
    let mut sealed = None;
    run.phase("names", "A>B").map(|_, mut fact| {
        if let Fact::Manifest(manifest) = &mut fact {
            let mut last = manifest.clone();
            change(&mut last);
            sealed = Some(last);
            manifest.delivered.clear();
        }
        Some(fact)
    });
    let last = Fact::Manifest(sealed.unwrap());
    run.phase("names", "A>B").add(StepName::Update, Rank::default(), vec![last]);
}

#[test]
fn the_manifest_as_it_was_sealed_says_nothing_of_the_delivery() {
    let mut run = correct();
    restate(&mut run, |_| ());
    assert_silent(&run);
    restate(&mut run, |manifest| manifest.delivered.retain(|source| source != UP));
    assert_eq!(run.found(), [one(Code::SourceMissing, UP, &[0])]);
}

#[test]
fn what_a_broken_delivery_did_not_bring_is_not_missing() {
    let refused = || StepOutcome::Error { text: "no memory".to_owned() };
    let mut run = correct();
    restate(&mut run, |manifest| manifest.delivered.clear());
    run.phase("names", "A>B").ends(StepName::Update, refused());
    assert_eq!(run.found(), [one(Code::StepRefused, "update", &[0])]);
    // What it brought is judged all the same.
    let mut run = correct();
    restate(&mut run, |manifest| manifest.delivered = vec!["stranger".to_owned()]);
    run.phase("names", "A>B").ends(StepName::Update, refused());
    let codes: Vec<Code> = run.found().into_iter().map(|(_, code, _, _)| code).collect();
    assert!(codes.contains(&Code::SourceUnexpected), "{codes:?}");
    assert!(!codes.contains(&Code::SourceMissing), "{codes:?}");
    // A delivery that was over when the engine failed is judged in full.
    let mut run = correct();
    restate(&mut run, |manifest| manifest.delivered.retain(|source| source != UP));
    run.phase("names", "A>B").ends(StepName::Finalize, refused());
    let codes: Vec<Code> = run.found().into_iter().map(|(_, code, _, _)| code).collect();
    assert!(codes.contains(&Code::SourceMissing), "{codes:?}");
}

#[test]
fn a_second_name_of_a_tied_source_may_be_sent_too() {
    let sent_as = |allowed: bool| {
        let mut run = correct();
        let mut second = Vec::new();
        run.phase("warm", "A>B").map(|_, mut fact| {
            match &mut fact {
                Fact::Manifest(manifest) => {
                    manifest.delivered.push("head.second".to_owned());
                    manifest.allowed_missing.extend(allowed.then(|| "head.second".to_owned()));
                }
                Fact::Application(application) if application.source == HEAD => {
                    let source = "head.second".to_owned();
                    second
                        .push(Fact::Application(ApplicationFact { source, ..application.clone() }));
                }
                _ => {}
            }
            Some(fact)
        });
        run.phase("warm", "A>B").add(StepName::Finalize, Rank::default(), second);
        run
    };
    assert_silent(&sent_as(true));
    let found = sent_as(false).found();
    assert_eq!(found, [one(Code::SourceUnexpected, "head.second", &[0])]);
}

#[test]
fn a_layer_that_waits_for_what_never_came_is_no_second_finding() {
    let not_sent = |source: &'static str| {
        let mut run = correct();
        run.phase("warm", "A>B").map(|_, mut fact| {
            match &mut fact {
                Fact::Manifest(manifest) => manifest.delivered.retain(|sent| sent != source),
                Fact::PostLoad(stage) if stage.layer == "norm" => {
                    return (stage.stage == PostLoadStage::Expected).then_some(fact);
                }
                _ => {}
            }
            Some(fact)
        });
        run.found()
    };
    assert_eq!(not_sent(NORM), [one(Code::SourceMissing, NORM, &[0])]);
    // What another layer waits for explains nothing here.
    let wanted = [one(Code::FinalisedNever, "norm", &[0]), one(Code::SourceMissing, UP, &[0])];
    assert_eq!(not_sent(UP), wanted);
}
