//! 10,000 sources on 16 ranks: names accounted for, every application recorded, the account judged.

mod model;

use coldproof_contract::evidence::{Event, Fact};
use coldproof_contract::verdict::judge;

use model::{RANKS, findings, model};

/// Growth is no test's business; this is that the size is taken at all, to the last piece.
#[test]
fn ten_thousand_sources_on_sixteen_ranks_are_accounted_for() {
    let mut model = model(1_111);
    let sources = model.tensors.len();
    assert_eq!(sources, 10_002);
    let keys = model.keys();
    assert!(keys.is_clean());
    assert_eq!(keys.matched.len(), sources);
    let promises = model.promises();
    let wanted = sources as u64 * u64::from(RANKS);
    assert_eq!(model.ledgers(&promises), wanted);
    let record = model.account(&promises);
    assert_eq!(findings(&judge(&record)), []);
    // One piece of one rank that never came, among all of them.
    let mut gap = record;
    let applied = |event: &Event| matches!(event.fact, Fact::Application(_));
    let last = gap.events.iter().rposition(applied).expect("an application");
    let Fact::Application(application) = gap.events.remove(last).fact else { return };
    assert_eq!(findings(&judge(&gap)), [(application.source, vec![RANKS - 1])]);
    // And one name.
    let gone = model.tensors.remove(5_000);
    let missing = model.keys().missing;
    let missing: Vec<&str> = missing.iter().map(|missing| missing.source.as_str()).collect();
    assert_eq!(missing, [gone.name.as_str()]);
}
