//! Category 5: experts that move between ranks, with the map that the forward reads them by.

use coldproof_contract::evidence::{
    ArmHeader, CheckpointHeader, EngineHeader, Event, ExpertMapFact, ExpertPlacementFact, Fact,
    Header, LaneName, PhaseFact, PieceContent, ReadBackFact, RequiredItem, SCHEMA, Settings,
    SlotFact, SourceHeader, SourceReadBackFact, StepFact, StepOutcome,
};
use coldproof_contract::routing::{Placement, Sharding, SourceRule, Stage};
use coldproof_contract::verdict::{FindingCode as Code, Room, Status};
use coldproof_contract::words::{
    Address, Dtype, ExpertPlace, ExpertPlacement, Fingerprint, Generation, Hex128, Packing, Policy,
    Rank, SlotKind, StepName, StorageId, Topology,
};

use crate::support::model::{content, label};
use crate::support::{Run, assert_undecided, one, room};

const MODULE: &str = "moe.experts";
const STACK: &str = "moe.experts.w2";
const MAP: &str = "moe.experts.expert_map";
const TWO: Topology = Topology { ep: 2, ..Topology::SINGLE };
/// Where the experts are that an engine starts with.
const FIRST: [(u32, u64); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];
/// Where they move.
const MOVED: [(u32, u64); 4] = [(0, 1), (1, 0), (1, 1), (0, 0)];

fn source(expert: usize) -> String {
    format!("{MODULE}.{expert}.down")
}

fn rules() -> Vec<SourceRule> {
    let rule = |expert| SourceRule {
        source: source(expert as usize),
        dtype: Dtype::Bf16,
        shape: vec![2, 2],
        slot: STACK.into(),
        sharding: Sharding::ExpertRow { expert, experts: 4 },
        stage: Stage::Everywhere,
    };
    (0..4).map(rule).collect()
}

fn placement(places: [(u32, u64); 4]) -> ExpertPlacement {
    let places = places.map(ExpertPlace::from).to_vec();
    ExpertPlacement { version: 1, layers: [(MODULE.to_owned(), places)].into() }
}

fn checkpoint(name: &str) -> CheckpointHeader {
    let sources = rules().into_iter().map(|rule| SourceHeader {
        digest: of(name, &rule.source),
        name: rule.source,
        dtype: rule.dtype,
        shape: rule.shape,
        unsigned: None,
    });
    CheckpointHeader {
        label: label(name),
        path: name.to_owned(),
        digest: name.to_owned(),
        sources: sources.collect(),
        content: None,
        rules: vec![],
        base: None,
    }
}

fn of(at: &str, source: &str) -> Hex128 {
    content(&format!("{at} {source}"))
}

/// One arm under way.
struct Arm<'e> {
    name: &'static str,
    step: u32,
    events: &'e mut Vec<Event>,
}

impl Arm<'_> {
    fn fact(&mut self, rank: Rank, fact: Fact) {
        let (arm, step) = (self.name.to_owned(), self.step);
        self.events.push(Event { arm, step, rank, seq: 0, t: None, fact });
    }

    fn step(&mut self, name: StepName) {
        self.step += 1;
        for outcome in [None, Some(StepOutcome::Ok)] {
            self.fact(Rank::default(), Fact::Step(StepFact { name, outcome }));
        }
    }

    fn phase(&mut self, phase: &str, at: &str, from: Option<&str>) {
        self.step += 1;
        let (phase, at, from) = (phase.to_owned(), label(at), from.map(label));
        self.fact(Rank::default(), Fact::Phase(PhaseFact { phase, at, from, refused: false }));
    }

    fn place(&mut self, places: [(u32, u64); 4]) {
        self.step(StepName::PlaceExperts);
        self.fact(Rank::default(), Fact::ExpertsPlaced(placement(places)));
    }

    /// Registers and reads everything of an engine that holds experts so.
    fn look(&mut self, at: &str, places: [(u32, u64); 4], version: u64) {
        self.step(StepName::ReadBack);
        let held = placement(places);
        for rank in TWO.ranks() {
            let own = places.map(|(ep, place)| (ep == rank.ep).then_some(place));
            for (slot, kind, shape) in
                [(STACK, SlotKind::Parameter, vec![2, 2, 2]), (MAP, SlotKind::Buffer, vec![4])]
            {
                self.fact(rank, Fact::Slot(registered(slot, kind, shape)));
            }
            self.fact(
                rank,
                Fact::ExpertPlacement(ExpertPlacementFact {
                    layer: MODULE.to_owned(),
                    map: MAP.into(),
                    version,
                    places: held.layers[MODULE].clone(),
                }),
            );
            let map =
                ExpertMapFact { layer: MODULE.to_owned(), map: MAP.into(), places: own.into() };
            self.fact(rank, Fact::ExpertMap(map));
            let placed = Placement::with_experts(&rules(), TWO, Some(&held)).unwrap();
            let pieces = placed.slot(rank, &STACK.into()).unwrap().pieces.iter();
            let pieces = pieces.map(|placed| PieceContent {
                source: placed.source.clone(),
                source_fragment: placed.piece.source_fragment.clone(),
                content: of(at, &placed.source),
            });
            let pieces: Vec<_> = pieces.collect();
            let stack = content(&format!("{:?}", pieces));
            for (slot, content, pieces) in
                [(STACK, stack, pieces), (MAP, content(&format!("{own:?}")), vec![])]
            {
                let (slot, content) = (slot.into(), Some(content));
                let read =
                    ReadBackFact { slot, address: Address(1), content, pieces, padding_written: 0 };
                self.fact(rank, Fact::ReadBack(read));
            }
        }
        for rule in rules() {
            let digest = Some(of(at, &rule.source));
            let fact = SourceReadBackFact { source: rule.source, digest, problem: None };
            self.fact(Rank::default(), Fact::SourceReadBack(fact));
        }
    }
}

fn registered(slot: &str, kind: SlotKind, shape: Vec<u64>) -> SlotFact {
    let dtype = if kind == SlotKind::Buffer { Dtype::I32 } else { Dtype::Bf16 };
    SlotFact {
        slot: slot.into(),
        slot_kind: kind,
        fingerprint: Some(Fingerprint {
            storage: StorageId(1),
            address: Address(1),
            storage_bytes: 64,
            stride: vec![1; shape.len()],
            shape: shape.clone(),
            offset: 0,
            dtype,
            device: String::new(),
        }),
        packing: Packing::Plain,
        logical_shape: shape,
        aliases: vec![],
        policy: if kind == SlotKind::Buffer { Policy::Preserve } else { Policy::Refresh },
        inputs: vec![],
        epoch: Generation(1),
        replaceable: false,
    }
}

/// A run of the lane in which nothing is wrong, with experts ordered there.
fn moved_to(places: [(u32, u64); 4]) -> Run {
    let header = |arm, against| ArmHeader::new(arm, LaneName::Placement, TWO, against);
    let arms = vec![header("cold-placement", None), header("placement", Some("cold-placement"))];
    let mut events = Vec::new();
    let mut cold = Arm { name: "cold-placement", step: 0, events: &mut events };
    cold.place(places);
    cold.phase("before", "B", None);
    cold.step(StepName::Load);
    cold.look("B", places, 1);
    let mut live = Arm { name: "placement", step: 0, events: &mut events };
    live.phase("before", "A", None);
    live.step(StepName::Load);
    live.look("A", FIRST, 0);
    live.phase("A moved", "A", Some("A"));
    live.step(StepName::Pause);
    live.place(places);
    live.step(StepName::Resume);
    live.look("A", places, 1);
    live.phase("A>B", "B", Some("A"));
    for step in StepName::TRANSITION {
        if !matches!(step, StepName::Sleep | StepName::WakeWeights | StepName::WakeKv) {
            live.step(step);
        }
    }
    live.look("B", places, 1);
    let kind = "hand-made".to_owned();
    let header = Header {
        schema: SCHEMA.to_owned(),
        seed: 0,
        engine: EngineHeader { kind, version: String::new(), topology: TWO, cannot: vec![] },
        environment: Default::default(),
        settings: Settings { required: vec![RequiredItem::Category(5)], ..Settings::default() },
        checkpoints: ["A", "B"].map(checkpoint).into(),
        arms,
        rules: rules(),
        notes: vec![],
    };
    Run { header, events }
}

fn moved() -> Run {
    moved_to(MOVED)
}

/// In a phase the stack holds the experts of these places under those that were ordered.
fn stack_holds(run: &mut Run, phase: &str, at: &str, held: [(u32, u64); 4]) {
    let instead = |source: &str| {
        let expert = (0..4).find(|expert| self::source(*expert) == source).unwrap();
        let there = held.iter().position(|place| *place == MOVED[expert]).unwrap();
        of(at, &self::source(there))
    };
    run.phase("placement", phase).map(|_, mut fact| {
        match &mut fact {
            Fact::ReadBack(read) if read.slot.0 == STACK => {
                for piece in &mut read.pieces {
                    piece.content = instead(&piece.source);
                }
                read.content = Some(content(&format!("{:?}", read.pieces)));
            }
            Fact::SourceReadBack(read) => read.digest = Some(instead(&read.source)),
            _ => {}
        }
        Some(fact)
    });
}

#[test]
fn experts_that_moved_with_their_map_are_proven() {
    // Ordered where they were, experts stay and that is right too.
    for run in [moved(), moved_to(FIRST)] {
        let verdict = run.judge();
        assert_eq!(verdict.findings, []);
        let (status, why) = room(&verdict, Room::Routing);
        assert_eq!(status, Status::Pass, "{why}");
        assert_eq!(why, "6 maps of experts as ordered, 12 of their sources in place");
    }
}

#[test]
fn a_map_that_stayed_behind_is_found_on_its_rank() {
    let mut run = moved();
    run.since("placement", "A moved").map(|rank, mut fact| {
        if rank.ep == 1 {
            let own = FIRST.map(|(ep, place)| (ep == 1).then_some(place));
            match &mut fact {
                Fact::ExpertMap(map) => map.places = own.into(),
                Fact::ReadBack(read) if read.slot.0 == MAP => {
                    read.content = Some(content(&format!("{own:?}")));
                }
                _ => {}
            }
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::ShardMisplaced, MAP, &[1])]);
}

#[test]
fn experts_that_stayed_behind_their_map_are_found_by_their_bytes() {
    let mut run = moved();
    stack_holds(&mut run, "A moved", "A", FIRST);
    assert_eq!(run.found(), [one(Code::ShardMisplaced, STACK, &[0, 1])]);
}

#[test]
fn a_reload_by_the_first_placement_is_found_by_its_bytes() {
    let mut run = moved();
    stack_holds(&mut run, "A>B", "B", FIRST);
    assert_eq!(run.found(), [one(Code::ShardMisplaced, STACK, &[0, 1])]);
    // Where the placement is held to, the same bytes are right.
    let mut run = moved();
    stack_holds(&mut run, "A>B", "B", MOVED);
    assert_eq!(run.found(), []);
}

#[test]
fn bytes_of_no_expert_are_no_matter_of_placement() {
    let mut run = moved();
    run.phase("placement", "A>B").map(|rank, mut fact| {
        match &mut fact {
            Fact::ReadBack(read) if read.slot.0 == STACK && rank.ep == 0 => {
                read.pieces[0].content = content("garbage");
                read.content = Some(content("garbage"));
            }
            Fact::SourceReadBack(read) if read.source == source(3) => {
                read.digest = Some(content("garbage"));
            }
            _ => {}
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::LoaderStale, STACK, &[0])]);
}

#[test]
fn a_rank_that_states_an_older_version_has_lost_state() {
    let mut run = moved();
    run.since("placement", "A moved").map(|rank, mut fact| {
        if let Fact::ExpertPlacement(stated) = &mut fact
            && rank.ep == 1
        {
            stated.version = 0;
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::ConfigDrift, MAP, &[1])]);
    let mut run = moved();
    run.phase("placement", "A>B").map(|rank, mut fact| {
        if let Fact::ExpertPlacement(stated) = &mut fact
            && rank.ep == 0
        {
            stated.places = FIRST.map(ExpertPlace::from).into();
        }
        Some(fact)
    });
    assert_eq!(run.found(), [one(Code::ConfigDrift, MAP, &[0])]);
}

#[test]
fn a_map_of_more_or_fewer_experts_is_not_the_one_that_was_ordered() {
    for experts in [0, 3, 5] {
        let mut run = moved();
        run.phase("placement", "A moved").map(|rank, mut fact| {
            if let Fact::ExpertMap(map) = &mut fact
                && rank == Rank::default()
            {
                map.places.resize(experts, None);
            }
            Some(fact)
        });
        assert_eq!(run.found(), [one(Code::ShardMisplaced, MAP, &[0])], "{experts}");
    }
}

#[test]
fn what_was_not_read_is_not_proven() {
    let mut run = moved();
    run.phase("placement", "A moved").drop(|_, fact| matches!(fact, Fact::ExpertMap(_)));
    assert_undecided(&run, Room::Routing, "the map of `moe.experts` on rank tp0 was not read");
    let mut run = moved();
    let second = Rank { ep: 1, ..Rank::default() };
    run.phase("placement", "A moved")
        .drop(|rank, fact| rank == second && matches!(fact, Fact::ExpertMap(_)));
    assert_undecided(&run, Room::Routing, "the map of `moe.experts` on rank tp0.ep1 was not read");
    let mut run = moved();
    run.phase("placement", "A moved")
        .drop(|_, fact| matches!(fact, Fact::SourceReadBack(read) if read.source == source(2)));
    let text = format!("`{}` was not read back where it was placed", source(2));
    assert_undecided(&run, Room::Routing, &text);
    let mut run = moved();
    run.phase("placement", "A moved").breaks_off();
    assert_undecided(&run, Room::Routing, "no update was taken after experts moved");
}

#[test]
fn experts_that_were_placed_twice_or_nowhere_cannot_be_placed() {
    for places in [[(0, 0), (0, 0), (1, 0), (1, 1)], [(0, 0), (0, 2), (1, 0), (1, 1)]] {
        let places = Some(placement(places));
        assert!(Placement::with_experts(&rules(), TWO, places.as_ref()).is_err());
    }
    let mut short = placement(FIRST);
    short.layers.get_mut(MODULE).unwrap().pop();
    assert!(Placement::with_experts(&rules(), TWO, Some(&short)).is_err());
    let many = [SourceRule {
        shape: vec![1 << 40, 2, 2],
        sharding: Sharding::FusedExpertsRow,
        ..rules().remove(0)
    }];
    assert!(Placement::of(&many, TWO).is_err());
    let mut other = short;
    other.layers = [("another".to_owned(), vec![])].into();
    let consecutive = Placement::of(&rules(), TWO);
    assert_eq!(Placement::with_experts(&rules(), TWO, Some(&other)), consecutive);
}

#[test]
fn both_spellings_of_placed_experts_are_in_the_same_places() {
    let fused = [SourceRule {
        source: "fused".to_owned(),
        shape: vec![4, 2, 2],
        sharding: Sharding::FusedExpertsRow,
        ..rules().remove(0)
    }];
    let placed = placement(MOVED);
    let [each, all] = [&rules()[..], &fused]
        .map(|rules| Placement::with_experts(rules, TWO, Some(&placed)).unwrap());
    for rank in TWO.ranks() {
        let of = |placement: &Placement| placement.slot(rank, &STACK.into()).unwrap().clone();
        let (each, all) = (of(&each), of(&all));
        assert_eq!(each.shape, all.shape);
        for (one, other) in each.pieces.iter().zip(&all.pieces) {
            assert_eq!(one.piece.slot_fragment, other.piece.slot_fragment);
            let expert = other.piece.source_fragment.0[0].start as usize;
            assert_eq!(one.source, source(expert));
        }
    }
}
