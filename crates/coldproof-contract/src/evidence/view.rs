//! A record, arranged by arm and phase for the checks.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AdapterFact, ApplicationFact, ArmHeader, CacheFact, CensusFact, CheckpointHeader, ClaimFact,
    Claimed, ControlFact, Event, ExpertMapFact, ExpertPlacementFact, Fact, Header, LaneName,
    LaunchFact, LogitsFact, ManifestFact, NodeFact, Observed, OriginsFact, PostLoadFact,
    ReadBackFact, ReceiptFact, Record, ReorderedFact, SlotFact, SourceHeader, SourceReadBackFact,
    StateFact, StepOutcome, UncontrolledFact,
};
use crate::routing::SourceRule;
use crate::words::{CheckpointLabel, ExpertPlacement, Packing, Rank, SlotName, StepName};

/// A claim about a slot: what reads it gives no sign of a zero.
const ZERO_BLIND: &str = "zero-sign-unseen";

/// A fact and where it stands in the evidence.
#[derive(Debug)]
pub struct Seen<'r, T> {
    /// Which rank.
    pub rank: Rank,
    /// Ordinal of the step in the arm.
    pub step: u32,
    /// Ordinal in (arm, step, rank).
    pub seq: u64,
    /// The fact.
    pub fact: &'r T,
}

impl<T> Clone for Seen<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Seen<'_, T> {}

/// One step.
#[derive(Clone, Debug)]
pub struct StepView {
    /// Which.
    pub name: StepName,
    /// Ordinal in the arm.
    pub step: u32,
    /// How it ended; absent where it never did.
    pub outcome: Option<StepOutcome>,
    /// When it began and ended, in nanoseconds.
    pub times: (Option<u64>, Option<u64>),
}

/// A slot on a rank.
pub type SlotKey<'r> = (Rank, &'r SlotName);

/// A layer's experts on a rank.
pub type ExpertsKey<'r> = (Rank, &'r str);

/// Answers to requests, by name, mode and a number.
pub type Answers<'r> = BTreeMap<(&'r str, &'r str, u32), Observed<Seen<'r, LogitsFact>>>;

/// What happened under one label of an arm.
#[derive(Debug, Default)]
pub struct PhaseView<'r> {
    /// `before`, `A>B`, …
    pub phase: &'r str,
    /// The checkpoint that must be served at its end.
    pub at: Option<&'r CheckpointLabel>,
    /// The checkpoint that was served before.
    pub from: Option<&'r CheckpointLabel>,
    /// Whether it follows an update that the engine refused.
    pub refused: bool,
    /// Its first step's ordinal.
    pub first_step: u32,
    /// Steps, in order.
    pub steps: Vec<StepView>,
    /// What the caller sealed.
    pub manifests: Vec<Seen<'r, ManifestFact>>,
    /// Slots that the last of them promises to preserve: all of their sources are in it as such.
    pub preserved: BTreeSet<&'r SlotName>,
    /// Adapters that were loaded, in order.
    pub adapters: Vec<Seen<'r, AdapterFact>>,
    /// Where experts are at its end, by the lane's last order in the arm; none: consecutive.
    pub experts: Option<&'r ExpertPlacement>,
    /// Slots as last registered in the phase.
    pub slots: BTreeMap<SlotKey<'r>, Claimed<Seen<'r, SlotFact>>>,
    /// Configuration as last stated in the phase, by (rank, owner, name).
    pub states: BTreeMap<(Rank, &'r str, &'r str), Claimed<Seen<'r, StateFact>>>,
    /// Where experts are, as last stated in the phase.
    pub stated_experts: BTreeMap<ExpertsKey<'r>, Claimed<Seen<'r, ExpertPlacementFact>>>,
    /// Caches, as stated, in order.
    pub caches: Vec<Claimed<Seen<'r, CacheFact>>>,
    /// Applications, in order.
    pub applications: Vec<Claimed<Seen<'r, ApplicationFact>>>,
    /// Post-load stages, in order.
    pub post_loads: Vec<Claimed<Seen<'r, PostLoadFact>>>,
    /// Receipts, in order.
    pub receipts: Vec<Claimed<Seen<'r, ReceiptFact>>>,
    /// Other claims, in order.
    pub claims: Vec<Claimed<Seen<'r, ClaimFact>>>,
    /// Nodes of captured graphs.
    pub nodes: Vec<Observed<Seen<'r, NodeFact>>>,
    /// Launches.
    pub launches: Vec<Observed<Seen<'r, LaunchFact>>>,
    /// Maps of experts as read from memory.
    pub expert_maps: BTreeMap<ExpertsKey<'r>, Observed<Seen<'r, ExpertMapFact>>>,
    /// Slots as read back.
    pub read_backs: BTreeMap<SlotKey<'r>, Observed<Seen<'r, ReadBackFact>>>,
    /// Sources as put together again.
    pub sources: BTreeMap<&'r str, Observed<Seen<'r, SourceReadBackFact>>>,
    /// Decoded origins.
    pub origins: BTreeMap<SlotKey<'r>, Observed<Seen<'r, OriginsFact>>>,
    /// Stored orders of slots that the engine packs.
    pub orders: BTreeMap<SlotKey<'r>, Observed<Seen<'r, OriginsFact>>>,
    /// Such slots in a cold load's order.
    pub reordered: BTreeMap<SlotKey<'r>, Observed<Seen<'r, ReorderedFact>>>,
    /// Outputs of requests that were decoded alone, by (request, mode, repeat).
    pub logits: Answers<'r>,
    /// Outputs of requests that were decoded together, by (request, mode, batch).
    pub batched: Answers<'r>,
    /// What was drafted for requests that were decoded alone, by (request, mode, repeat).
    pub drafts: Answers<'r>,
    /// Captured graphs, as counted again.
    pub censuses: Vec<Observed<Seen<'r, CensusFact>>>,
    /// Slots that got no positive control.
    pub uncontrolled: Vec<Seen<'r, UncontrolledFact>>,
    /// Positive controls.
    pub controls: Vec<Observed<Seen<'r, ControlFact>>>,
}

impl<'r> PhaseView<'r> {
    /// The slot that says how this one is packed: read back through a wrong one, right bytes look
    /// wrong.
    #[must_use]
    pub fn packed_by(&self, slot: &SlotName) -> Option<&'r SlotName> {
        let mut slots = self.slots.iter().filter(|((_, name), _)| *name == slot);
        slots.find_map(|(_, slot)| match &slot.fact.packing {
            Packing::ColumnsPermuted { permutation } => Some(permutation),
            _ => None,
        })
    }

    /// Whether a loaded engine moved its experts in it, and updated nothing.
    #[must_use]
    pub fn moves_experts(&self) -> bool {
        let taken = |name: StepName| self.steps.iter().any(|step| step.name == name);
        taken(StepName::PlaceExperts) && !taken(StepName::Load) && !taken(StepName::Update)
    }

    /// Whether the experts of a module are elsewhere at the end of another phase.
    #[must_use]
    pub fn has_moved(&self, module: &str, other: &Self) -> bool {
        let places = |phase: &Self| phase.experts.and_then(|experts| experts.layer(module));
        places(self) != places(other)
    }

    /// Whether a rank says that this slot can only be read without the sign of its zeros.
    #[must_use]
    pub fn is_zero_blind(&self, rank: Rank, slot: &SlotName) -> bool {
        let mut claims = self.claims.iter().filter(|claim| claim.rank == rank);
        claims.any(|claim| claim.fact.what == ZERO_BLIND && claim.fact.value == slot.0)
    }

    /// The name of the step with this ordinal.
    #[must_use]
    pub fn step_name(&self, step: u32) -> &'static str {
        self.steps.iter().find(|view| view.step == step).map_or("", |view| view.name.name())
    }

    /// The step that did not end well, if any.
    #[must_use]
    pub fn failed_step(&self) -> Option<&StepView> {
        self.steps.iter().find(|view| view.outcome.as_ref().is_none_or(|o| *o != StepOutcome::Ok))
    }
}

/// One arm.
#[derive(Debug)]
pub struct ArmView<'r> {
    /// What it is.
    pub header: &'r ArmHeader,
    /// Its phases, in order.
    pub phases: Vec<PhaseView<'r>>,
    /// All its events, in order (the allocator's log among them).
    pub events: Vec<&'r Event>,
}

impl<'r> ArmView<'r> {
    /// The step's name, wherever in the arm it is.
    #[must_use]
    pub fn step_name(&self, step: u32) -> &'static str {
        let named = self.phases.iter().map(|phase| phase.step_name(step));
        named.into_iter().find(|name| !name.is_empty()).unwrap_or("")
    }

    /// Whether it takes updates by transaction. The adapters lane also loads adapters without, and
    /// seals a manifest where it does not.
    #[must_use]
    pub fn updates(&self) -> bool {
        let sealed = || self.phases.iter().any(|phase| !phase.manifests.is_empty());
        self.header.lane.updates_weights() || sealed()
    }

    /// The phase of its cold load.
    #[must_use]
    pub fn cold(&self) -> Option<&PhaseView<'r>> {
        self.phases.first().filter(|phase| phase.from.is_none())
    }

    /// Phases after an update that went well, with their ordinals.
    pub fn updated(&self) -> impl Iterator<Item = (usize, &PhaseView<'r>)> {
        let phases = self.phases.iter().enumerate();
        phases.filter(|(_, phase)| {
            phase.from.is_some() && phase.failed_step().is_none() && !phase.moves_experts()
        })
    }

    /// The last phase before `index` that ended at `label`.
    #[must_use]
    pub fn earlier(&self, index: usize, label: Option<&CheckpointLabel>) -> Option<&PhaseView<'r>> {
        let label = label?;
        self.phases.get(..index)?.iter().rev().find(|phase| phase.at == Some(label))
    }
}

/// A whole run.
#[derive(Debug)]
pub struct View<'r> {
    /// What the run was.
    pub header: &'r Header,
    /// Its arms, in order.
    pub arms: Vec<ArmView<'r>>,
}

impl<'r> View<'r> {
    /// Arranges a record.
    #[must_use]
    pub fn of(record: &'r Record) -> Self {
        let header = &record.header;
        let mut by_arm: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
        for event in &record.events {
            by_arm.entry(&event.arm).or_default().push(event);
        }
        let arms = header.arms.iter().map(|arm| {
            let events = by_arm.remove(arm.arm.as_str()).unwrap_or_default();
            let mut phases = Vec::new();
            for event in &events {
                place(&mut phases, event);
            }
            let mut experts = None;
            for phase in &mut phases {
                experts = phase.experts.or(experts);
                phase.experts = experts;
                phase.preserved = preserved_by(phase, rules_at(header, phase.at));
            }
            ArmView { header: arm, phases, events }
        });
        Self { header, arms: arms.collect() }
    }

    /// Whether a lane drove an engine under test (the cold load alone is none).
    #[must_use]
    pub fn ran(&self, lane: LaneName) -> bool {
        self.arms.iter().any(|arm| {
            let cold = arm.header.against.is_none() && lane != LaneName::Routing;
            arm.header.lane == lane && !cold
        })
    }

    /// What the engine cannot do of what this lane asks, if there is anything.
    #[must_use]
    pub fn unsupported(&self, lane: LaneName) -> Option<String> {
        let arms = self.arms.iter().filter(|arm| arm.header.lane == lane);
        let mut steps = arms.flat_map(|arm| &arm.phases).flat_map(|phase| &phase.steps);
        steps.find_map(|step| match &step.outcome {
            Some(StepOutcome::Unsupported { what }) => {
                Some(format!("the engine does not support {what} (step `{}`)", step.name))
            }
            _ => None,
        })
    }

    /// The arm of this name.
    #[must_use]
    pub fn arm(&self, name: &str) -> Option<&ArmView<'r>> {
        self.arms.iter().find(|arm| arm.header.arm == name)
    }

    /// Whether adapters were delivered in transactions.
    #[must_use]
    pub fn updated_adapters(&self) -> bool {
        let mut arms = self.arms.iter().filter(|arm| arm.header.lane == LaneName::Adapters);
        arms.any(ArmView::updates)
    }

    /// Whether an engine under test took an update of which parameters and what is computed from
    /// them are judged by their content.
    #[must_use]
    pub fn covers_content(&self) -> bool {
        let lanes = [LaneName::Differential, LaneName::Kernel];
        lanes.into_iter().any(|lane| self.ran(lane)) || self.updated_adapters()
    }

    /// The arm that this one must equal. One that names itself must equal nothing.
    #[must_use]
    pub fn against(&self, arm: &ArmView<'r>) -> Option<&ArmView<'r>> {
        let name = arm.header.against.as_deref().filter(|name| *name != arm.header.arm);
        name.and_then(|name| self.arm(name))
    }

    /// The label of the checkpoint whose content this one has, under whatever names.
    #[must_use]
    pub fn content(&self, label: Option<&'r CheckpointLabel>) -> Option<&'r CheckpointLabel> {
        let header = self.checkpoint(label?);
        header.and_then(|header| header.content.as_ref()).or(label)
    }

    /// Whether the catalogue does not know the model: where its cold load was seen to put sources
    /// is then the placement, and what the cold load keeps of them the baseline.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.header.rules.is_empty()
    }

    /// Of a model that the catalogue does not know: sources that this rank left out at its own cold
    /// load. An update may leave them out as well.
    #[must_use]
    pub fn left_out(&self, arm: &ArmView<'r>, rank: Rank) -> BTreeSet<&'r str> {
        let cold = arm.cold().filter(|_| self.is_unknown());
        let receipts = cold.into_iter().flat_map(|cold| &cold.receipts);
        let own = receipts.filter(|receipt| receipt.rank == rank);
        own.flat_map(|receipt| &receipt.fact.unrouted).map(String::as_str).collect()
    }

    /// Those of them that all ranks left out.
    #[must_use]
    pub fn left_out_by_all(&self, arm: &ArmView<'r>) -> BTreeSet<&'r str> {
        let ranks = arm.header.topology.ranks().map(|rank| self.left_out(arm, rank));
        ranks.reduce(|all, own| &all & &own).unwrap_or_default()
    }

    /// Sources that slots hold with the bytes of their files after this arm's own cold load, and
    /// after the one that it must equal: what either converts is compared slot by slot.
    #[must_use]
    pub fn kept(&self, arm: &ArmView<'r>) -> BTreeSet<&'r str> {
        let own = self.kept_by(arm);
        match self.against(arm) {
            Some(cold) => &own & &self.kept_by(cold),
            None => own,
        }
    }

    fn kept_by(&self, arm: &ArmView<'r>) -> BTreeSet<&'r str> {
        let Some(cold) = arm.cold() else { return BTreeSet::new() };
        let file = self.content(cold.at).and_then(|at| self.checkpoint(at));
        let sources = file.into_iter().flat_map(|file| &file.sources);
        let kept = sources.filter(|source| {
            let read = cold.sources.get(source.name.as_str());
            read.is_some_and(|read| self.is_file(arm, cold, source, read.fact))
        });
        kept.map(|source| source.name.as_str()).collect()
    }

    /// Whether what was put together of a source is what its file holds. Where all its slots are
    /// read by their multiplication, which gives no sign of a zero, up to the sign of zeros.
    #[must_use]
    pub fn is_file(
        &self,
        arm: &ArmView<'r>,
        phase: &PhaseView<'r>,
        source: &SourceHeader,
        read: &SourceReadBackFact,
    ) -> bool {
        let Some(digest) = read.digest else { return false };
        if digest == source.digest {
            return true;
        }
        let slots = self.slots_of(arm, phase, &source.name);
        let mut read = phase.read_backs.keys().filter(|(_, slot)| slots.contains(slot)).peekable();
        source.unsigned == Some(digest)
            && read.peek().is_some()
            && read.all(|(rank, slot)| phase.is_zero_blind(*rank, slot))
    }

    /// The checkpoint of a phase, where its names are those of another spelling.
    #[must_use]
    pub fn spelling(&self, phase: &PhaseView<'_>) -> Option<&'r CheckpointHeader> {
        let checkpoint = phase.at.and_then(|at| self.checkpoint(at));
        checkpoint.filter(|checkpoint| !checkpoint.rules.is_empty())
    }

    /// The rules that the names of a phase's checkpoint follow.
    #[must_use]
    pub fn rules_of(&self, phase: &PhaseView<'_>) -> &'r [SourceRule] {
        rules_at(self.header, phase.at)
    }

    /// The source that is all of a slot on a rank, where the names of a phase's checkpoint are
    /// those of slots as ranks store them.
    #[must_use]
    pub fn shard(&self, phase: &PhaseView<'_>, rank: Rank, slot: &SlotName) -> Option<&'r str> {
        let own = |rule: &&SourceRule| rule.own_rank() == Some(rank.in_replica());
        let mut rules = self.rules_of(phase).iter().filter(own);
        rules.find(|rule| rule.slot == *slot).map(|rule| rule.source.as_str())
    }

    /// The slots that hold a source of a phase: the first of the catalogue's, or all that a cold
    /// load was seen to write where the catalogue has none.
    #[must_use]
    pub fn slots_of(
        &self,
        arm: &ArmView<'r>,
        phase: &PhaseView<'r>,
        source: &str,
    ) -> BTreeSet<&'r SlotName> {
        let own = phase.at.and_then(|at| self.checkpoint(at)).into_iter();
        let mut rules = own.flat_map(|checkpoint| &checkpoint.rules).chain(&self.header.rules);
        if let Some(rule) = rules.find(|rule| rule.source == source) {
            return BTreeSet::from([&rule.slot]);
        }
        let seen = arm.cold().filter(|_| self.is_unknown());
        let seen = seen.into_iter().flat_map(|cold| &cold.applications);
        let seen = seen.filter(|application| application.fact.source == source);
        seen.map(|application| &application.fact.slot).collect()
    }

    /// The checkpoint of this label.
    #[must_use]
    pub fn checkpoint(&self, label: &CheckpointLabel) -> Option<&'r CheckpointHeader> {
        self.header.checkpoints.iter().find(|checkpoint| checkpoint.label == *label)
    }
}

fn seen<'r, T>(event: &Event, fact: &'r T) -> Seen<'r, T> {
    Seen { rank: event.rank, step: event.step, seq: event.seq, fact }
}

/// The rules that the names of the checkpoint of this label follow.
fn rules_at<'r>(header: &'r Header, at: Option<&CheckpointLabel>) -> &'r [SourceRule] {
    let own = at.and_then(|at| header.checkpoints.iter().find(|file| file.label == *at));
    own.map(|file| &file.rules).filter(|rules| !rules.is_empty()).unwrap_or(&header.rules)
}

fn preserved_by<'r>(phase: &PhaseView<'r>, rules: &'r [SourceRule]) -> BTreeSet<&'r SlotName> {
    let promised = phase.manifests.last().map(|seen| &seen.fact.explicitly_preserved);
    let kept: BTreeSet<_> = promised.into_iter().flatten().collect();
    if kept.is_empty() {
        return BTreeSet::new();
    }
    let (old, new): (Vec<_>, Vec<_>) = rules.iter().partition(|rule| kept.contains(&rule.source));
    let new: BTreeSet<_> = new.into_iter().map(|rule| &rule.slot).collect();
    old.into_iter().map(|rule| &rule.slot).filter(|slot| !new.contains(slot)).collect()
}

fn place<'r>(phases: &mut Vec<PhaseView<'r>>, event: &'r Event) {
    if let Fact::Phase(fact) = &event.fact {
        // What happened before the first label, the start of the engine, belongs to it.
        let mut phase = phases.pop_if(|phase| phase.at.is_none()).unwrap_or_default();
        phase.phase = &fact.phase;
        phase.at = Some(&fact.at);
        phase.from = fact.from.as_ref();
        phase.refused = fact.refused;
        phase.first_step = event.step;
        phases.push(phase);
        return;
    }
    if phases.is_empty() {
        phases.push(PhaseView::default());
    }
    let Some(phase) = phases.last_mut() else { return };
    match &event.fact {
        Fact::Step(fact) => match &fact.outcome {
            None => phase.steps.push(StepView {
                name: fact.name,
                step: event.step,
                outcome: None,
                times: (event.t, None),
            }),
            Some(outcome) => {
                if let Some(open) = phase.steps.last_mut() {
                    open.outcome = Some(outcome.clone());
                    open.times.1 = event.t;
                }
            }
        },
        Fact::Phase(_) | Fact::Alloc(_) | Fact::Free(_) | Fact::Region(_) => {}
        Fact::Manifest(fact) => phase.manifests.push(seen(event, fact)),
        Fact::Adapter(fact) => phase.adapters.push(seen(event, fact)),
        Fact::Uncontrolled(fact) => phase.uncontrolled.push(seen(event, fact)),
        Fact::ExpertsPlaced(experts) => phase.experts = Some(experts),
        _ => place_claim(phase, event),
    }
}

fn place_claim<'r>(phase: &mut PhaseView<'r>, event: &'r Event) {
    match &event.fact {
        Fact::Slot(fact) => {
            phase.slots.insert((event.rank, &fact.slot), Claimed(seen(event, fact)));
        }
        Fact::State(fact) => {
            let key = (event.rank, fact.owner.as_str(), fact.name.as_str());
            phase.states.insert(key, Claimed(seen(event, fact)));
        }
        Fact::ExpertPlacement(fact) => {
            let key = (event.rank, fact.layer.as_str());
            phase.stated_experts.insert(key, Claimed(seen(event, fact)));
        }
        Fact::Cache(fact) => phase.caches.push(Claimed(seen(event, fact))),
        Fact::Application(fact) => phase.applications.push(Claimed(seen(event, fact))),
        Fact::PostLoad(fact) => phase.post_loads.push(Claimed(seen(event, fact))),
        Fact::Receipt(fact) => phase.receipts.push(Claimed(seen(event, fact))),
        Fact::Claim(fact) => phase.claims.push(Claimed(seen(event, fact))),
        _ => place_observation(phase, event),
    }
}

fn place_observation<'r>(phase: &mut PhaseView<'r>, event: &'r Event) {
    match &event.fact {
        Fact::Node(fact) => phase.nodes.push(Observed(seen(event, fact))),
        Fact::Launch(fact) => phase.launches.push(Observed(seen(event, fact))),
        Fact::ExpertMap(fact) => {
            let key = (event.rank, fact.layer.as_str());
            phase.expert_maps.insert(key, Observed(seen(event, fact)));
        }
        Fact::ReadBack(fact) => {
            phase.read_backs.insert((event.rank, &fact.slot), Observed(seen(event, fact)));
        }
        Fact::SourceReadBack(fact) => {
            phase.sources.insert(&fact.source, Observed(seen(event, fact)));
        }
        Fact::Origins(fact) => {
            phase.origins.insert((event.rank, &fact.slot), Observed(seen(event, fact)));
        }
        Fact::Order(fact) => {
            phase.orders.insert((event.rank, &fact.slot), Observed(seen(event, fact)));
        }
        Fact::Reordered(fact) => {
            phase.reordered.insert((event.rank, &fact.slot), Observed(seen(event, fact)));
        }
        Fact::Logits(fact) => {
            let (request, mode) = (fact.request.as_str(), fact.mode.as_str());
            let (answers, number) = match (&fact.stage, fact.batch) {
                (None, 1) => (&mut phase.logits, fact.repeat),
                (None, batch) => (&mut phase.batched, batch),
                (Some(_), 1) => (&mut phase.drafts, fact.repeat),
                // Drafts are of one sequence, whatever is decoded beside it.
                (Some(_), _) => return,
            };
            answers.insert((request, mode, number), Observed(seen(event, fact)));
        }
        Fact::Census(fact) => phase.censuses.push(Observed(seen(event, fact))),
        Fact::Control(fact) => phase.controls.push(Observed(seen(event, fact))),
        _ => {}
    }
}
