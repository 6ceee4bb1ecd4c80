//! Hand-made runs: a correct one, and what a test changes in it.

pub(crate) mod engine;
pub(crate) mod model;
pub(crate) mod mutate;

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::evidence::{
    ArmHeader, CheckpointHeader, EngineHeader, Event, Fact, Header, LaneName, LogitsRow, NodeFact,
    ReadBackFact, Record, RequiredItem, SCHEMA, Settings, SlotFact, StepFact, StepOutcome,
    census_digest,
};
use coldproof_contract::verdict::{
    Category, FindingCode, Room, Status, Verdict, VerdictKind, judge,
};
use coldproof_contract::words::{Rank, StepName, Topology};

use engine::{CACHE_ROWS, Engine};

/// A run that a test changes before it is judged.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) header: Header,
    pub(crate) events: Vec<Event>,
}

/// All facts of some phases of one arm.
pub(crate) struct Scope<'r> {
    run: &'r mut Run,
    arm: String,
    phases: Vec<String>,
}

/// Category, code, object and ranks of a finding.
pub(crate) type Found = (Category, FindingCode, String, Vec<u32>);

/// A run of every lane in which nothing is wrong, at this tp.
pub(crate) fn correct_at(tp: u32) -> Run {
    correct_with(Topology::tensor(tp))
}

/// A run of every lane in which nothing is wrong, at this topology.
pub(crate) fn correct_with(topology: Topology) -> Run {
    let arm = |name, lane, against| ArmHeader::new(name, lane, topology, against);
    let arms = vec![
        arm("cold-b", LaneName::Differential, None),
        arm("warm", LaneName::Differential, Some("cold-b")),
        ArmHeader::new("routing", LaneName::Routing, Topology { tp: 2, ..topology }, None),
        arm("names", LaneName::Names, Some("cold-b")),
        arm("names-1", LaneName::Names, Some("cold-b")),
        arm("caches", LaneName::Caches, Some("cold-b")),
        arm("composite", LaneName::Composite, Some("cold-b")),
    ];
    let mut events = Vec::new();
    for arm in &arms {
        drive(arm.clone(), &mut events);
    }
    let other = CheckpointHeader {
        content: Some(model::label("B")),
        rules: model::other_rules(),
        ..model::checkpoint("B-alt")
    };
    let mut checkpoints: Vec<_> = ["A", "B", "P"].map(model::checkpoint).into();
    checkpoints.push(other);
    let required = (1..=7).map(RequiredItem::Category).chain([RequiredItem::Transition]);
    let engine = EngineHeader {
        kind: "hand-made".to_owned(),
        version: "1".to_owned(),
        topology,
        cannot: Vec::new(),
    };
    let header = Header {
        schema: SCHEMA.to_owned(),
        seed: 0,
        engine,
        environment: BTreeMap::new(),
        settings: Settings { required: required.collect(), ..Settings::default() },
        checkpoints,
        arms,
        rules: model::rules(),
        notes: vec![],
    };
    Run { header, events }
}

/// A run of every lane in which nothing is wrong.
pub(crate) fn correct() -> Run {
    correct_at(1)
}

fn drive(header: ArmHeader, events: &mut Vec<Event>) {
    let (lane, cold) = (header.lane, header.against.is_none());
    let other = header.arm == "names-1";
    let first = if cold && lane == LaneName::Differential { "B" } else { "A" };
    let mut engine = Engine::start(header, events, first);
    if lane != LaneName::Routing {
        engine.capture();
        engine.look(first);
    }
    match lane {
        LaneName::Differential if cold => {
            engine.serve_all("B");
            engine.serve("cache", "eager", 0, "B", CACHE_ROWS);
        }
        LaneName::Differential => {
            engine.serve_all("A");
            for (from, to) in [("A", "B"), ("B", "A"), ("A", "P"), ("P", "B")] {
                engine.update(from, to);
                engine.look(to);
                engine.pressure();
                engine.serve_all(to);
                if (from, to) == ("A", "B") {
                    engine.control(model::GATE_UP);
                    engine.control(model::ROPE);
                }
            }
        }
        LaneName::Routing => {
            engine.update("A", "S0");
            engine.origins();
            engine.update("S0", "B");
            engine.look("B");
        }
        LaneName::Names => {
            engine.update("A", if other { "B-alt" } else { "B" });
            engine.look("B");
        }
        LaneName::Caches => {
            engine.serve("cache", "eager", 0, "A", CACHE_ROWS);
            engine.serve("cache", "eager", 1, "A", 2);
            engine.update("A", "B");
            engine.look("B");
            engine.serve("cache", "eager", 0, "B", CACHE_ROWS);
            engine.serve("cache", "eager", 1, "B", 2);
        }
        LaneName::Composite => {
            engine.serve_all("A");
            engine.update("A", "B");
            engine.look("B");
            engine.serve_all("B");
        }
        // A test that is about one of these lanes writes its arms itself.
        LaneName::Adapters
        | LaneName::Partial
        | LaneName::Kernel
        | LaneName::Tiers
        | LaneName::Placement => {}
    }
}

impl Run {
    /// The record of it, in order.
    pub(crate) fn record(&self) -> Record {
        let mut events = self.events.clone();
        let arms: Vec<&str> = self.header.arms.iter().map(|arm| arm.arm.as_str()).collect();
        let arm = |event: &Event| arms.iter().position(|arm| *arm == event.arm);
        events.sort_by_key(|event| (arm(event), event.step, event.rank));
        self.count(&mut events);
        let mut next = BTreeMap::new();
        for event in &mut events {
            let seq = next.entry((event.arm.clone(), event.step, event.rank)).or_insert(0);
            event.seq = *seq;
            *seq += 1;
        }
        Record { header: self.header.clone(), events }
    }

    /// Graphs that no test counts otherwise are as they were captured.
    fn count(&self, events: &mut [Event]) {
        let mut graphs: BTreeMap<(String, Rank, String), Vec<NodeFact>> = BTreeMap::new();
        let mut updated: BTreeSet<String> = BTreeSet::new();
        for event in events {
            let key = |graph: &str| (event.arm.clone(), event.rank, graph.to_owned());
            match &mut event.fact {
                Fact::Phase(fact) if fact.from.is_some() => drop(updated.insert(event.arm.clone())),
                Fact::Node(node) if !updated.contains(&event.arm) => {
                    graphs.entry(key(&node.graph)).or_default().push(node.clone());
                }
                Fact::Census(census) if census.digest == engine::AS_CAPTURED => {
                    let nodes = graphs.get(&key(&census.graph)).map_or(&[][..], Vec::as_slice);
                    (census.nodes, census.digest) = (nodes.len() as u64, census_digest(nodes));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn judge(&self) -> Verdict {
        judge(&self.record())
    }

    /// What is found.
    pub(crate) fn found(&self) -> Vec<Found> {
        let findings = self.judge().findings.into_iter();
        findings.map(|f| (f.category, f.code, f.object, f.ranks)).collect()
    }

    /// One phase of an arm.
    pub(crate) fn phase(&mut self, arm: &str, phase: &str) -> Scope<'_> {
        Scope { run: self, arm: arm.to_owned(), phases: vec![phase.to_owned()] }
    }

    /// Every phase of an arm from this one on.
    pub(crate) fn since(&mut self, arm: &str, phase: &str) -> Scope<'_> {
        let own = self.events.iter().filter(|event| event.arm == arm);
        let names = own.filter_map(|event| match &event.fact {
            Fact::Phase(fact) => Some(fact.phase.clone()),
            _ => None,
        });
        let phases = names.skip_while(|name| name != phase).collect();
        Scope { run: self, arm: arm.to_owned(), phases }
    }

    /// Without an arm.
    pub(crate) fn without_arm(mut self, arm: &str) -> Self {
        self.header.arms.retain(|header| header.arm != arm);
        self.events.retain(|event| event.arm != arm);
        self
    }
}

impl Scope<'_> {
    /// Keeps what `keep` returns, changed.
    pub(crate) fn map(&mut self, mut keep: impl FnMut(Rank, Fact) -> Option<Fact>) -> &mut Self {
        let mut phase = "before".to_owned();
        let mut kept = Vec::new();
        for mut event in std::mem::take(&mut self.run.events) {
            if event.arm == self.arm {
                if let Fact::Phase(fact) = &event.fact {
                    phase.clone_from(&fact.phase);
                } else if self.phases.contains(&phase) {
                    let Some(fact) = keep(event.rank, event.fact) else { continue };
                    event.fact = fact;
                }
            }
            kept.push(event);
        }
        self.run.events = kept;
        self
    }

    /// Drops facts.
    pub(crate) fn drop(&mut self, mut drop: impl FnMut(Rank, &Fact) -> bool) -> &mut Self {
        self.map(|rank, fact| (!drop(rank, &fact)).then_some(fact))
    }

    /// Changes how a slot is registered.
    pub(crate) fn slot(&mut self, name: &str, change: impl Fn(Rank, &mut SlotFact)) -> &mut Self {
        self.map(|rank, mut fact| {
            if let Fact::Slot(slot) = &mut fact
                && slot.slot.0 == name
            {
                change(rank, slot);
            }
            Some(fact)
        })
    }

    /// Changes what a slot is read to hold.
    pub(crate) fn read(
        &mut self,
        name: &str,
        change: impl Fn(Rank, &mut ReadBackFact),
    ) -> &mut Self {
        self.map(|rank, mut fact| {
            if let Fact::ReadBack(read) = &mut fact
                && read.slot.0 == name
            {
                change(rank, read);
            }
            Some(fact)
        })
    }

    /// The slot still holds what it held at `at`.
    pub(crate) fn still_holds(&mut self, name: &str, at: &str) -> &mut Self {
        let header = self.run.header.arms.iter().find(|header| header.arm == self.arm);
        let topology = header.expect("an arm of the run").topology;
        self.read(name, |rank, read| {
            let old = model::read_backs(topology, rank, at).into_iter();
            *read = old.clone().find(|old| old.slot == read.slot).expect("a slot that is read");
        })
    }

    /// Adds facts at the end of the first step of this name.
    pub(crate) fn add(&mut self, step: StepName, rank: Rank, facts: Vec<Fact>) -> &mut Self {
        let mut phase = "before".to_owned();
        let at = self.run.events.iter().position(|event| {
            if event.arm != self.arm {
                return false;
            }
            if let Fact::Phase(fact) = &event.fact {
                phase.clone_from(&fact.phase);
            }
            let ends = match &event.fact {
                Fact::Step(fact) => fact.name == step && fact.outcome.is_some(),
                _ => false,
            };
            ends && self.phases.contains(&phase)
        });
        let at = at.expect("a step of the phase");
        let event = Event { rank, ..self.run.events[at].clone() };
        let new = facts.into_iter().map(|fact| Event { fact, ..event.clone() });
        self.run.events.splice(at..at, new.collect::<Vec<_>>());
        self
    }

    /// The first step of this name ends so, and with it the arm.
    pub(crate) fn ends(&mut self, name: StepName, outcome: StepOutcome) -> &mut Self {
        let mut over = false;
        let mut phases = self.phases.clone();
        let last = phases.remove(0);
        let mut later = false;
        let arm = self.arm.clone();
        self.run.events.retain_mut(|event| {
            if event.arm != arm {
                return true;
            }
            if let Fact::Phase(fact) = &event.fact {
                later = fact.phase == last || later;
            }
            if over {
                return false;
            }
            if let Fact::Step(StepFact { name: step, outcome: end @ Some(_) }) = &mut event.fact
                && later
                && *step == name
            {
                *end = Some(outcome.clone());
                over = true;
            }
            true
        });
        self
    }

    /// The arm ends with its last event of this phase, and nothing says why.
    pub(crate) fn breaks_off(&mut self) -> &mut Self {
        let (arm, last) = (self.arm.clone(), self.phases[0].clone());
        let (mut here, mut over) = (false, false);
        self.run.events.retain(|event| {
            if event.arm == arm
                && let Fact::Phase(fact) = &event.fact
            {
                over |= here;
                here |= fact.phase == last;
            }
            event.arm != arm || !over
        });
        self
    }
}

/// The first logit of a row, moved.
pub(crate) fn moved(row: &mut LogitsRow, by: f32) {
    row.digest = model::content(&format!("{} moved by {by}", row.digest));
    let bits = row.bits.as_mut().unwrap();
    let first = f32::from_bits(u32::from_str_radix(&bits[..8], 16).unwrap());
    bits.replace_range(..8, &format!("{:08x}", (first + by).to_bits()));
}

/// Rank 1 of the routing arm, which has two, holds the gate rows of rank 0.
pub(crate) fn misplaced(run: &mut Run) {
    run.phase("routing", "A>S0").map(|rank, mut fact| {
        if let Fact::Origins(origins) = &mut fact
            && origins.slot.0 == model::GATE_UP
            && rank.tp == 1
        {
            origins.runs[0].element = 0;
        }
        Some(fact)
    });
}

/// A finding, for comparison with [`Run::found`].
pub(crate) fn one(code: FindingCode, object: &str, ranks: &[u32]) -> Found {
    (code.category(), code, object.to_owned(), ranks.to_vec())
}

/// What a verdict says of a room: its status, its reason.
pub(crate) fn room(verdict: &Verdict, room: Room) -> (Status, String) {
    let report = &verdict.categories[usize::from(room.number()) - 1];
    (report.status, report.reason.clone().unwrap_or_default())
}

/// The room has no finding and cannot pass, for this reason.
#[track_caller]
pub(crate) fn assert_undecided(run: &Run, of: Room, reason: &str) {
    let verdict = run.judge();
    let (status, why) = room(&verdict, of);
    assert_eq!(status, Status::Undecided, "{why} {:?}", verdict.findings);
    assert!(why.contains(reason), "{why}");
    assert_eq!(verdict.verdict, VerdictKind::Undecided, "{:?}", verdict.findings);
}

/// Nothing is found, and everything is proven.
#[track_caller]
pub(crate) fn assert_silent(run: &Run) {
    let verdict = run.judge();
    assert_eq!(verdict.findings, []);
    let open: Vec<_> = verdict.categories.iter().filter(|c| c.status != Status::Pass).collect();
    assert!(open.is_empty(), "{open:?}");
    assert_eq!(verdict.transition.status, Status::Pass, "{:?}", verdict.transition.reason);
    assert_eq!(verdict.verdict, VerdictKind::Pass);
}
