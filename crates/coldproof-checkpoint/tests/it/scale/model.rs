//! A model of any number of sources on 16 ranks, and what its names, its applications and the
//! account of them are held against.

use std::collections::BTreeMap;

use coldproof_checkpoint::arch::{Catalogue, ModelConfig};
use coldproof_checkpoint::{Accounting, TensorRef};
use coldproof_contract::evidence::{
    ApplicationFact, ArmHeader, CheckpointHeader, EngineHeader, Event, Fact, Header, LaneName,
    ManifestFact, PhaseFact, PostLoadFact, PostLoadStage, Record, SCHEMA, Settings, StepFact,
    StepOutcome,
};
use coldproof_contract::lifecycle::{ApplicationIdentity, Ledger, ManifestDraft};
use coldproof_contract::routing::{Placement, SourceRule};
use coldproof_contract::verdict::{Category, Verdict};
use coldproof_contract::words::{CheckpointLabel, Rank, StepName, Topology, TransactionId};

/// The ranks of the model.
pub(crate) const RANKS: u32 = 16;

/// A model, its sources, and what each rank must apply.
pub(crate) struct Model {
    pub(crate) catalogue: Catalogue,
    pub(crate) tensors: Vec<TensorRef>,
    pub(crate) rules: Vec<SourceRule>,
    layers: u64,
}

/// A llama of so many layers, nine sources each, and three more.
pub(crate) fn model(layers: u64) -> Model {
    let config = format!(
        r#"{{"model_type":"llama","torch_dtype":"bfloat16","vocab_size":1024,"hidden_size":32,
        "intermediate_size":32,"num_hidden_layers":{layers},"num_attention_heads":16,
        "num_key_value_heads":16,"head_dim":2,"max_position_embeddings":8,"rms_norm_eps":1e-6,
        "rope_theta":10000,"tie_word_embeddings":false}}"#
    );
    let config = ModelConfig::parse(config.as_bytes()).expect("a sound configuration");
    let catalogue = Catalogue::of(&config);
    let rules: Vec<SourceRule> = catalogue.usual_rules().cloned().collect();
    let tensors = rules.iter().map(|rule| TensorRef {
        name: rule.source.clone(),
        file: "model.safetensors".into(),
        offset: 0,
        bytes: rule.shape.iter().product::<u64>() * rule.dtype.bytes(),
        dtype: rule.dtype,
        shape: rule.shape.clone(),
    });
    Model { tensors: tensors.collect(), catalogue, rules, layers }
}

impl Model {
    /// Two-way accounting of names.
    pub(crate) fn keys(&self) -> Accounting {
        Accounting::of(&self.catalogue, &self.tensors)
    }

    /// Every rank's promise, in the order of the model.
    pub(crate) fn promises(&self) -> Vec<Vec<ApplicationIdentity>> {
        let topology = Topology::tensor(RANKS);
        let placement = Placement::of(&self.rules, topology).expect("16 divides everything");
        let pieces = |rank| ManifestDraft::of(&placement, rank, |_| true).pieces;
        topology.ranks().map(pieces).collect()
    }

    /// Seals a ledger for each rank and records everything. Returns what was recorded.
    pub(crate) fn ledgers(&self, promises: &[Vec<ApplicationIdentity>]) -> u64 {
        let recorded = promises.iter().map(|pieces| {
            let draft = ManifestDraft { pieces: pieces.clone(), ..ManifestDraft::default() };
            let mut ledger = Ledger::seal(&draft.seal().expect("disjoint pieces"));
            for piece in pieces {
                ledger.record_named(piece).expect("each comes once");
            }
            assert_eq!(ledger.finish(), []);
            ledger.applications()
        });
        recorded.sum()
    }

    /// The evidence of one update that every rank gives a whole account of.
    pub(crate) fn account(&self, promises: &[Vec<ApplicationIdentity>]) -> Record {
        let label = |text: &str| CheckpointLabel(text.to_owned());
        let topology = Topology::tensor(RANKS);
        let names: Vec<String> = self.rules.iter().map(|rule| rule.source.clone()).collect();
        let arm = ArmHeader::new("names", LaneName::Names, topology, None);
        let mut facts = vec![
            (0, Fact::Phase(phase("before", label("A"), None))),
            (1, Fact::Phase(phase("A>B", label("B"), Some(label("A"))))),
        ];
        facts.push((
            1,
            Fact::Manifest(ManifestFact {
                origin: "caller".to_owned(),
                checkpoint: label("B"),
                required: names.clone(),
                explicitly_preserved: vec![],
                allowed_missing: vec![],
                delivered: names,
            }),
        ));
        let step = |outcome| Fact::Step(StepFact { name: StepName::Update, outcome });
        facts.extend([(2, step(None)), (2, step(Some(StepOutcome::Ok)))]);
        let mut events: Vec<Event> = (0..)
            .zip(facts)
            .map(|(seq, (step, fact))| event(step, Rank::default(), seq, fact))
            .collect();
        for (rank, pieces) in topology.ranks().zip(promises) {
            let applied = pieces.iter().map(|piece| {
                Fact::Application(ApplicationFact {
                    transaction: TransactionId(2),
                    source: piece.source.clone(),
                    source_fragment: piece.source_fragment.clone(),
                    slot: piece.slot.clone(),
                    slot_fragment: piece.slot_fragment.clone(),
                })
            });
            let stages = |stage| (0..self.layers).map(move |layer| post_load(layer, stage));
            let facts = stages(PostLoadStage::Expected).chain(applied);
            let facts = facts.chain(stages(PostLoadStage::Processed));
            let facts = facts.chain(stages(PostLoadStage::Finalised));
            events.extend((4..).zip(facts).map(|(seq, fact)| event(2, rank, seq, fact)));
        }
        Record { header: self.header(arm), events }
    }

    fn header(&self, arm: ArmHeader) -> Header {
        let checkpoint = |name: &str| CheckpointHeader {
            label: CheckpointLabel(name.to_owned()),
            path: name.to_owned(),
            digest: name.to_owned(),
            sources: vec![],
            content: None,
            rules: vec![],
            base: None,
        };
        Header {
            schema: SCHEMA.to_owned(),
            seed: 0,
            engine: EngineHeader {
                kind: "hand-made".to_owned(),
                version: "1".to_owned(),
                topology: arm.topology,
                cannot: vec![],
            },
            environment: BTreeMap::new(),
            settings: Settings::default(),
            checkpoints: vec![checkpoint("A"), checkpoint("B")],
            arms: vec![arm],
            rules: self.rules.clone(),
            notes: vec![],
        }
    }
}

fn phase(name: &str, at: CheckpointLabel, from: Option<CheckpointLabel>) -> PhaseFact {
    PhaseFact { phase: name.to_owned(), at, from, refused: false }
}

fn post_load(layer: u64, stage: PostLoadStage) -> Fact {
    let layer = format!("model.layers.{layer}");
    Fact::PostLoad(PostLoadFact {
        transaction: TransactionId(2),
        layer,
        stage,
        prerequisites: vec![],
    })
}

fn event(step: u32, rank: Rank, seq: u64, fact: Fact) -> Event {
    Event { arm: "names".to_owned(), step, rank, seq, t: None, fact }
}

/// What the account gives rise to. The steps around the update are left out, which is another
/// matter.
pub(crate) fn findings(verdict: &Verdict) -> Vec<(String, Vec<u32>)> {
    let findings = verdict.findings.iter().filter(|f| f.category != Category::Transition);
    findings.map(|finding| (finding.object.clone(), finding.ranks.clone())).collect()
}
