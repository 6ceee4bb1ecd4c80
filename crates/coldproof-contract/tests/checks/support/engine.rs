//! The evidence that a correct engine leaves, arm by arm.

use coldproof_contract::evidence::{
    AllocFact, ArgAccess, ArgFact, ArmHeader, CacheFact, CensusFact, ClaimFact, ControlFact, Event,
    Fact, LaneName, LaunchFact, LogitsFact, LogitsRow, ManifestFact, NodeFact, PhaseFact,
    PostLoadFact, PostLoadStage, ReceiptFact, RegionFact, SourceReadBackFact, StateFact, StepFact,
    StepOutcome,
};
use coldproof_contract::words::{
    Address, Generation, Hex128, Policy, Rank, SlotKind, StepName, Topology, TransactionId,
};

use super::model::{self, content, label};

/// One arm under way.
pub(crate) struct Engine<'e> {
    pub(crate) header: ArmHeader,
    events: &'e mut Vec<Event>,
    step: u32,
    generation: u64,
    clock: u64,
    captured: bool,
}

/// The digest of a graph that is what it was when it was captured.
pub(crate) const AS_CAPTURED: Hex128 = Hex128(u128::MAX);
/// Rows that a request computes where no cache holds any of them.
pub(crate) const CACHE_ROWS: u64 = 71;

impl<'e> Engine<'e> {
    pub(crate) fn start(header: ArmHeader, events: &'e mut Vec<Event>, at: &str) -> Self {
        let mut engine = Self { header, events, step: 0, generation: 0, clock: 0, captured: false };
        engine.step(StepName::Start, |engine| {
            for region in ["weights", "kv_cache"] {
                engine.map(region, true);
            }
        });
        engine.phase("before", at, None);
        engine.step(StepName::Load, |engine| {
            engine.generation = 1;
            engine.each_rank(|engine, rank| {
                for slot in model::slots(engine.header.topology, rank, 1) {
                    if slot.slot_kind != SlotKind::Alias {
                        engine.alloc(rank, &slot.slot.0);
                    }
                }
            });
            engine.committed();
        });
        engine
    }

    fn topology(&self) -> Topology {
        self.header.topology
    }

    pub(crate) fn fact(&mut self, rank: Rank, fact: Fact) {
        self.clock += 1_000;
        let (arm, step, t) = (self.header.arm.clone(), self.step, Some(self.clock));
        self.events.push(Event { arm, step, rank, seq: 0, t, fact });
    }

    fn each_rank(&mut self, mut each: impl FnMut(&mut Self, Rank)) {
        self.topology().ranks().for_each(|rank| each(self, rank));
    }

    pub(crate) fn step(&mut self, name: StepName, inside: impl FnOnce(&mut Self)) {
        self.step += 1;
        self.fact(Rank::default(), Fact::Step(StepFact { name, outcome: None }));
        inside(self);
        let outcome = Some(StepOutcome::Ok);
        self.fact(Rank::default(), Fact::Step(StepFact { name, outcome }));
    }

    fn phase(&mut self, phase: &str, at: &str, from: Option<&str>) {
        self.step += 1;
        let (phase, at, from) = (phase.to_owned(), label(at), from.map(label));
        let fact = PhaseFact { phase, at, from, refused: false };
        self.fact(Rank::default(), Fact::Phase(fact));
    }

    fn map(&mut self, region: &str, mapped: bool) {
        let first = if region == "weights" { 0x1_0000 } else { 0x8_0000 };
        self.each_rank(|engine, rank| {
            let region = region.to_owned();
            let fact = RegionFact { region, address: Address(first), bytes: 0x1_0000, mapped };
            engine.fact(rank, Fact::Region(fact));
        });
    }

    fn alloc(&mut self, rank: Rank, slot: &str) {
        let fact = AllocFact {
            storage: model::storage(slot),
            address: model::address(slot),
            bytes: model::BYTES,
            region: "weights".to_owned(),
            purpose: slot.to_owned(),
        };
        self.fact(rank, Fact::Alloc(fact));
    }

    /// What every rank says at the end of a load.
    fn committed(&mut self) {
        let generation = self.generation;
        self.each_rank(|engine, rank| {
            let receipt = ReceiptFact {
                transaction: TransactionId(generation),
                generation: Generation(generation),
                applications: 4,
                unrouted: vec![],
                buffered: vec![],
                committed: true,
            };
            engine.fact(rank, Fact::Receipt(receipt));
        });
    }

    /// The one graph, which retains every storage of the model.
    pub(crate) fn graph(topology: Topology, rank: Rank) -> NodeFact {
        let slots = model::slots(topology, rank, 1);
        let owned = slots.iter().filter(|slot| slot.slot_kind != SlotKind::Alias);
        let args = (0..).zip(owned).map(|(index, slot)| ArgFact {
            index,
            address: model::address(&slot.slot.0),
            bytes: 0,
            access: ArgAccess::Read,
        });
        NodeFact {
            graph: "decode-1".to_owned(),
            node: 0,
            kernel: "forward".to_owned(),
            args: args.collect(),
        }
    }

    /// Captures the graph.
    pub(crate) fn capture(&mut self) {
        self.step(StepName::Capture, |_| ());
        self.each_rank(|engine, rank| {
            let node = Self::graph(engine.topology(), rank);
            engine.fact(rank, Fact::Node(node));
        });
        self.captured = true;
    }

    /// Registers and reads back everything.
    pub(crate) fn look(&mut self, at: &str) {
        let generation = self.generation;
        self.each_rank(|engine, rank| {
            for slot in model::slots(engine.topology(), rank, generation) {
                engine.fact(rank, Fact::Slot(slot));
            }
            let state = StateFact {
                owner: "engine".to_owned(),
                name: "block_size".to_owned(),
                value: "16".to_owned(),
                policy: Policy::Preserve,
            };
            engine.fact(rank, Fact::State(state));
            let cache = CacheFact {
                cache: "prefix-kv".to_owned(),
                generation: Generation(generation),
                entries: 0,
                hits: 0,
                version: None,
            };
            engine.fact(rank, Fact::Cache(cache));
        });
        let value = generation.to_string();
        let claim = ClaimFact { what: "generation".to_owned(), value };
        self.fact(Rank::default(), Fact::Claim(claim));
        self.step(StepName::ReadBack, |_| ());
        self.each_rank(|engine, rank| {
            if engine.captured {
                let graph = "decode-1".to_owned();
                let census = CensusFact { graph, nodes: 1, digest: AS_CAPTURED };
                engine.fact(rank, Fact::Census(census));
            }
            for read in model::read_backs(engine.topology(), rank, at) {
                engine.fact(rank, Fact::ReadBack(read));
            }
        });
        for rule in model::rules() {
            let digest = Some(content(&format!("{at} {}", rule.source)));
            let fact = SourceReadBackFact { source: rule.source, digest, problem: None };
            self.fact(Rank::default(), Fact::SourceReadBack(fact));
        }
    }

    /// One live update. The engine sleeps where the lane is the composite one.
    pub(crate) fn update(&mut self, from: &str, to: &str) {
        let sleeps = self.header.lane == LaneName::Composite;
        let spelling = if to == "B-alt" { model::other_rules() } else { model::rules() };
        self.phase(&format!("{from}>{to}"), to, Some(from));
        self.step(StepName::Pause, |_| ());
        if sleeps {
            self.step(StepName::Sleep, |engine| {
                engine.map("weights", false);
                engine.map("kv_cache", false);
            });
            self.step(StepName::WakeWeights, |engine| engine.map("weights", true));
        }
        let names: Vec<String> = spelling.iter().map(|rule| rule.source.clone()).collect();
        let manifest = ManifestFact {
            origin: "caller".to_owned(),
            checkpoint: label(to),
            required: names.clone(),
            explicitly_preserved: vec![],
            allowed_missing: vec!["rope.inv_freq".to_owned()],
            delivered: names,
        };
        self.fact(Rank::default(), Fact::Manifest(manifest));
        let transaction = self.generation + 1;
        self.step(StepName::Update, |engine| {
            engine.each_rank(|engine, rank| {
                for layer in ["mlp", "norm"] {
                    engine.post_load(rank, transaction, layer, PostLoadStage::Expected);
                }
                let topology = engine.topology();
                for fact in model::applications(topology, rank, transaction, &spelling) {
                    engine.fact(rank, Fact::Application(fact));
                }
            });
        });
        self.step(StepName::Finalize, |engine| {
            engine.generation = transaction;
            engine.each_rank(|engine, rank| {
                for layer in ["mlp", "norm"] {
                    engine.post_load(rank, transaction, layer, PostLoadStage::Processed);
                    engine.post_load(rank, transaction, layer, PostLoadStage::Finalised);
                }
            });
            engine.committed();
        });
        if sleeps {
            self.step(StepName::WakeKv, |engine| engine.map("kv_cache", true));
        }
        self.step(StepName::Invalidate, |_| ());
        self.step(StepName::Resume, |_| ());
    }

    fn post_load(&mut self, rank: Rank, transaction: u64, layer: &str, stage: PostLoadStage) {
        let needs = if layer == "norm" { vec!["mlp".to_owned()] } else { vec![] };
        let fact = PostLoadFact {
            transaction: TransactionId(transaction),
            layer: layer.to_owned(),
            stage,
            prerequisites: needs,
        };
        self.fact(rank, Fact::PostLoad(fact));
    }

    /// Serves a request on every replica: it computes `rows` rows and returns the last of them.
    pub(crate) fn serve(&mut self, request: &str, mode: &str, repeat: u32, at: &str, rows: u64) {
        for replica in 0..self.topology().dp {
            let name = if replica == 0 { request.into() } else { format!("{request}@dp{replica}") };
            self.serve_on(replica, (&name, mode, repeat), at, rows);
        }
    }

    fn serve_on(
        &mut self,
        replica: u32,
        (request, mode, repeat): (&str, &str, u32),
        at: &str,
        rows: u64,
    ) {
        let graph = (mode == "graph").then(|| "decode-1".to_owned());
        self.step(StepName::Serve, |engine| {
            let launch = LaunchFact {
                request: request.to_owned(),
                kernel: "forward".to_owned(),
                graph,
                stage: None,
                launches: 1,
                rows,
            };
            engine.fact(Rank::first_of(replica), Fact::Launch(launch));
        });
        let row = |position: u32| LogitsRow {
            position,
            digest: content(&format!("{at} {request} {position}")),
            bits: Some(bits(at, position)),
            top: vec![],
        };
        let rows = (0..4).rev().take(rows.min(4) as usize).map(row).collect();
        let (request, mode) = (request.to_owned(), mode.to_owned());
        self.fact(
            Rank::first_of(replica),
            Fact::Logits(LogitsFact {
                request,
                mode,
                adapter: None,
                repeat,
                stage: None,
                batch: 1,
                rows,
                tokens: vec![7, 8],
            }),
        );
    }

    /// Both modes, each twice.
    pub(crate) fn serve_all(&mut self, at: &str) {
        for mode in ["eager", "graph"] {
            for repeat in 0..2 {
                self.serve("main", mode, repeat, at, 8);
            }
        }
    }

    pub(crate) fn control(&mut self, slot: &str) {
        self.step(StepName::Control, |_| ());
        let (before, after) = (content("as it was"), content(slot));
        for replica in 0..self.topology().dp {
            let control = ControlFact { slot: slot.into(), part: String::new(), before, after };
            self.fact(Rank::first_of(replica), Fact::Control(control));
        }
    }

    pub(crate) fn pressure(&mut self) {
        self.step(StepName::Pressure, |_| ());
    }

    /// Decoded sentinels of every rank.
    pub(crate) fn origins(&mut self) {
        self.step(StepName::ReadBack, |_| ());
        self.each_rank(|engine, rank| {
            for fact in model::origins(engine.topology(), rank) {
                engine.fact(rank, Fact::Origins(fact));
            }
        });
    }
}

/// Two logits of a row, as bits.
pub(crate) fn bits(at: &str, position: u32) -> String {
    let first = at.bytes().next().unwrap_or_default();
    let values = [f32::from(first), position as f32];
    values.iter().map(|value| format!("{:08x}", value.to_bits())).collect()
}
