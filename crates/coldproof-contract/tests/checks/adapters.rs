//! Category 7: an adapter with new content is not the old one of its name.

use coldproof_contract::evidence::{
    AdapterFact, ArmHeader, Event, Fact, LaneName, LaunchFact, LogitsFact, LogitsRow, PhaseFact,
    RequiredItem, StepFact, StepOutcome,
};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status, VerdictKind};
use coldproof_contract::words::{Rank, StepName, Topology};

use crate::support::model::{content, label};
use crate::support::{Run, assert_silent, assert_undecided, correct, one, room};

pub(crate) const NAME: &str = "adapter";

/// One arm of the lane under way.
pub(crate) struct Arm<'e> {
    pub(crate) name: &'static str,
    pub(crate) events: &'e mut Vec<Event>,
    pub(crate) step: u32,
}

impl Arm<'_> {
    pub(crate) fn fact(&mut self, fact: Fact) {
        let (arm, step) = (self.name.to_owned(), self.step);
        self.events.push(Event { arm, step, rank: Rank::default(), seq: 0, t: None, fact });
    }

    pub(crate) fn phase(&mut self, phase: &str, at: &str, from: Option<&str>) {
        self.step += 1;
        let (phase, at, from) = (phase.to_owned(), label(at), from.map(label));
        let fact = PhaseFact { phase, at, from, refused: false };
        self.fact(Fact::Phase(fact));
    }

    pub(crate) fn step(&mut self, name: StepName, inside: Option<Fact>) {
        self.step += 1;
        self.fact(Fact::Step(StepFact { name, outcome: None }));
        inside.into_iter().for_each(|fact| self.fact(fact));
        self.fact(Fact::Step(StepFact { name, outcome: Some(StepOutcome::Ok) }));
    }

    pub(crate) fn adapter(&mut self, of: &str) {
        let fact = AdapterFact { adapter: NAME.to_owned(), content: content(of) };
        self.fact(Fact::Adapter(fact));
        self.step(StepName::Adapter, None);
    }

    /// The request with what has the name, or on the base model, of 71 rows where none is cached.
    pub(crate) fn serve(&mut self, with: Option<&str>, repeat: u32, rows: u64) {
        let request = if with.is_some() { "adapted" } else { "unadapted" }.to_owned();
        let launch = LaunchFact {
            request: request.clone(),
            kernel: "forward".to_owned(),
            graph: None,
            stage: None,
            launches: 1,
            rows,
        };
        self.step(StepName::Serve, Some(Fact::Launch(launch)));
        let row = |position| LogitsRow {
            position,
            digest: content(&format!("{with:?} {position}")),
            bits: Some(format!("{:08x}", (with.map_or(0, str::len) as f32).to_bits())),
            top: vec![],
        };
        let (mode, rows) = ("eager".to_owned(), vec![row(70), row(71)]);
        let adapter = with.map(|_| NAME.to_owned());
        self.fact(Fact::Logits(LogitsFact {
            request,
            mode,
            adapter,
            repeat,
            stage: None,
            batch: 1,
            rows,
            tokens: vec![],
        }));
    }
}

/// A run in which one adapter took another's name, and nothing is wrong.
pub(crate) fn swapped() -> Run {
    let mut run = correct();
    for (arm, against) in [("cold-adapter", None), ("adapters", Some("cold-adapter"))] {
        let header = ArmHeader::new(arm, LaneName::Adapters, Topology::SINGLE, against);
        run.header.arms.push(header);
    }
    let mut cold = Arm { name: "cold-adapter", events: &mut run.events, step: 0 };
    cold.phase("before", "B", None);
    cold.step(StepName::Load, None);
    cold.serve(None, 0, 71);
    cold.phase("to", "B with new", Some("B"));
    cold.adapter("new one");
    cold.serve(Some("new one"), 0, 71);
    cold.serve(None, 0, 71);
    let mut warm = Arm { name: "adapters", events: &mut run.events, step: 0 };
    warm.phase("before", "B with old", None);
    warm.step(StepName::Load, None);
    warm.serve(None, 0, 71);
    warm.adapter("old");
    warm.serve(Some("old"), 0, 71);
    warm.serve(Some("old"), 1, 7);
    warm.phase("from>to", "B with new", Some("B with old"));
    warm.adapter("new one");
    warm.serve(Some("new one"), 0, 71);
    warm.serve(Some("new one"), 1, 7);
    warm.serve(None, 0, 7);
    run
}

/// Changes the n-th launch of a phase of the live engine.
fn computed(run: &mut Run, phase: &str, nth: usize, rows: u64) {
    let mut seen = 0;
    run.phase("adapters", phase).map(|_, mut fact| {
        if let Fact::Launch(launch) = &mut fact {
            if seen == nth {
                launch.rows = rows;
            }
            seen += 1;
        }
        Some(fact)
    });
}

/// What the live engine answers with the name in a phase is what it answers with other content.
fn answers(run: &mut Run, phase: &str, request: &str, like: &str) {
    run.phase("adapters", phase).map(|_, mut fact| {
        if let Fact::Logits(logits) = &mut fact
            && logits.request == request
        {
            for row in &mut logits.rows {
                row.digest = content(&format!("{:?} {}", Some(like), row.position));
                row.bits = Some(format!("{:08x}", (like.len() as f32).to_bits()));
            }
        }
        Some(fact)
    });
}

#[test]
fn every_row_computed_again_with_the_new_content_is_silent() {
    let run = swapped();
    assert_silent(&run);
    let (_, proven) = room(&run.judge(), Room::Caches);
    assert!(proven.contains("64 cached rows served with one adapter"), "{proven}");
    assert!(proven.starts_with("69 cached rows served on the old generation"), "{proven}");
    // Alone it is judged as well.
    let mut alone = run;
    let others: Vec<String> = alone.header.arms.iter().map(|arm| arm.arm.clone()).collect();
    for arm in others.iter().filter(|arm| !arm.ends_with("adapter") && *arm != "adapters") {
        alone = alone.without_arm(arm);
    }
    alone.header.settings.required = vec![RequiredItem::Category(7)];
    let verdict = alone.judge();
    assert_eq!(room(&verdict, Room::Caches).0, Status::Pass);
    assert_eq!(verdict.categories[6].checks, 1);
    // It updates no weights, so it needs no receipt of an update.
    assert_eq!(verdict.verdict, VerdictKind::Pass);
    assert!(verdict.certificate.is_none());
}

#[test]
fn rows_from_the_old_content_name_the_adapter() {
    let mut run = swapped();
    computed(&mut run, "from>to", 0, 7);
    assert_eq!(run.found(), [one(Code::AdapterReused, NAME, &[0])]);
    answers(&mut run, "from>to", "adapted", "neither");
    assert_eq!(run.found(), [one(Code::AdapterReused, NAME, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert_eq!((&*finding.expected, &*finding.actual), ("71 rows computed", "7 rows computed"));
    let (old, new) = (content("old"), content("new one"));
    let why = format!("took 64 rows from entries computed with content {old}, and the name has");
    assert!(finding.why.contains(&why) && finding.why.ends_with(&new.to_string()), "{finding:?}");
    assert_eq!(finding.events.last().unwrap().what, "logits");
}

#[test]
fn the_old_content_under_the_new_label_is_the_old_adapter() {
    let mut run = swapped();
    answers(&mut run, "from>to", "adapted", "old");
    assert_eq!(run.found(), [one(Code::AdapterReused, NAME, &[0])]);
    let finding = run.judge().findings.remove(0);
    assert!(finding.actual.contains(&content("old").to_string()), "{finding:?}");
    // Other wrong outputs are no sign of the old content.
    let mut run = swapped();
    answers(&mut run, "from>to", "adapted", "neither");
    assert_eq!(run.found(), [one(Code::OutputUnexplained, "adapted", &[0])]);
}

#[test]
fn the_base_model_is_no_adapter_and_no_adapter_is_the_base_model() {
    let mut run = swapped();
    computed(&mut run, "before", 1, 7);
    assert_eq!(run.found(), [one(Code::AdapterReused, NAME, &[0])]);
    assert!(run.judge().findings[0].why.contains("from entries of the base model"));
    for phase in ["before", "from>to"] {
        let mut run = swapped();
        answers(&mut run, phase, "unadapted", "old");
        assert_eq!(run.found(), [one(Code::OutputUnexplained, "unadapted", &[0])], "{phase}");
    }
}

#[test]
fn the_name_alone_is_no_identity() {
    // The same content again may be served from what it computed.
    let mut run = swapped();
    run.phase("adapters", "from>to").map(|_, mut fact| {
        if let Fact::Adapter(adapter) = &mut fact {
            adapter.content = content("old");
        }
        Some(fact)
    });
    computed(&mut run, "from>to", 0, 7);
    assert_undecided(&run, Room::Caches, "`adapter` had the same content before and after");
}

#[test]
fn what_was_not_exercised_is_undecided() {
    let mut run = swapped();
    computed(&mut run, "before", 2, 71);
    assert_undecided(&run, Room::Caches, "request `adapted` hit no cache with the first");
    let mut run = swapped();
    computed(&mut run, "from>to", 0, 0);
    assert_undecided(&run, Room::Caches, "no launch of request `adapted` was seen");
    let mut run = swapped();
    run.phase("adapters", "before").breaks_off();
    assert_undecided(&run, Room::Caches, "ended before its adapter was replaced");
    for (request, reason) in [
        ("adapted", "request `adapted` was not repeated with the new"),
        ("unadapted", "request `unadapted` was not repeated on the base model"),
    ] {
        let mut run = swapped();
        run.phase("adapters", "from>to")
            .drop(|_, fact| matches!(fact, Fact::Logits(logits) if logits.request == request));
        assert_undecided(&run, Room::Caches, reason);
    }
    // Two adapters that nothing tells apart.
    let mut run = swapped();
    answers(&mut run, "before", "adapted", "new one");
    assert_undecided(&run, Room::Caches, "does not tell two `adapter` apart");
}

#[test]
fn an_engine_without_adapters_is_not_covered_and_its_transition_is_proven() {
    let mut run = swapped();
    let what = "adapters".to_owned();
    run.phase("adapters", "before").ends(StepName::Adapter, StepOutcome::Unsupported { what });
    let verdict = run.judge();
    assert_eq!(verdict.findings, []);
    let (status, why) = room(&verdict, Room::Caches);
    assert_eq!(status, Status::NotCovered);
    assert!(why.contains("the engine does not support adapters"), "{why}");
    assert_eq!(verdict.transition.status, Status::Pass, "{:?}", verdict.transition.reason);
}
