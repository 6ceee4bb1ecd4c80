//! Which checkpoint tensors a model takes, and which part of which slot each one fills.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_checkpoint::TensorRef;
use coldproof_contract::words::Dtype;

use super::{Heads, HeldExperts, SectionRows, Shard};
use crate::slots::SlotId;

/// Which heads of a fused qkv slot a source fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadPart {
    /// Query heads, first.
    Query,
    /// Key heads.
    Key,
    /// Value heads, last.
    Value,
}

/// Which half of a fused gate-and-up slot a source fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// The first rows.
    Gate,
    /// The last rows.
    Up,
}

/// How a source is narrowed to a rank and placed in its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// All of it on every rank.
    Replicated,
    /// All of it on every rank, as rows of a slot that stacks several sources.
    Stacked {
        /// Its first row there.
        first: u64,
    },
    /// Rows of the vocabulary, padded with zeros.
    Vocabulary,
    /// The first axis in equal parts.
    Column,
    /// Columns of a row-parallel layer.
    Row,
    /// Rows of a fused qkv slot of these heads.
    Heads(HeadPart, Heads),
    /// Rows of a fused gate-and-up slot.
    GateUp(Half),
    /// Rows of a slot of several sources of one shape, one after the other.
    Fused {
        /// Which of them.
        part: u64,
    },
    /// One expert's half in a stacked slot.
    ExpertGateUp {
        /// Which expert.
        expert: u64,
        /// Which half.
        half: Half,
    },
    /// One expert's columns in a stacked slot.
    ExpertRow {
        /// Which expert.
        expert: u64,
    },
    /// Gate rows, then up rows, of every expert.
    FusedExpertsGateUp,
    /// The last axis of all experts.
    FusedExpertsRow,
    /// The middle axis of all experts: their inputs, where those come first.
    FusedExpertsInputs,
    /// All of every expert.
    FusedExperts,
    /// Rows of several parts, one behind the other, each cut by itself.
    Sections(Vec<SectionRows>),
}

impl Target {
    /// The same at another place of a stack, where it is of one expert.
    pub(crate) fn at(self, place: u64) -> Self {
        match self {
            Self::ExpertGateUp { half, .. } => Self::ExpertGateUp { expert: place, half },
            Self::ExpertRow { .. } => Self::ExpertRow { expert: place },
            other => other,
        }
    }
}

/// Position of a part in [`Catalogue::parts`].
pub(crate) type PartId = usize;

/// A checkpoint tensor that the model takes.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Elements along each axis, before it is cut.
    pub(crate) shape: Vec<u64>,
    /// Where it goes.
    pub(crate) slot: SlotId,
    /// How.
    pub(crate) target: Target,
    /// What the layer tells its loader about ranks.
    pub(crate) shard: Shard,
    /// Of a source of all experts, those of them that are on this rank.
    pub(crate) held: Option<HeldExperts>,
    /// The parts it fills.
    pub(crate) parts: Vec<PartId>,
}

/// All sources of a model. A part is what must be filled exactly once; spellings of the same
/// weights fill the same parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue {
    sources: BTreeMap<String, Source>,
    /// The part's usual source.
    parts: Vec<String>,
    /// A source that only repeats another one.
    repeats: BTreeMap<String, String>,
    /// Shapes of sources that other ranks alone take.
    elsewhere: BTreeMap<String, Vec<u64>>,
}

/// A tensor that the model cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceError {
    /// No layer takes it.
    #[error(
        "no layer of this model takes the tensor `{name}`; leave it out, or load the checkpoint \
         of this model"
    )]
    Unknown {
        /// Its name.
        name: String,
    },
    /// Another shape than the model's.
    #[error("tensor `{name}` has shape {found:?} where this model has {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// The model's.
        expected: Vec<u64>,
        /// The checkpoint's.
        found: Vec<u64>,
    },
    /// Another element type than the model's.
    #[error("tensor `{name}` is {found} where this model takes BF16; convert the checkpoint")]
    Dtype {
        /// Its name.
        name: String,
        /// The checkpoint's.
        found: Dtype,
    },
    /// The bytes are not those of its shape.
    #[error("tensor `{name}` has {found} bytes where its shape needs {expected}; send all of it")]
    Length {
        /// Its name.
        name: String,
        /// Bytes of the shape.
        expected: u64,
        /// Bytes of the tensor.
        found: u64,
    },
}

impl Catalogue {
    /// Adds a source that fills a part of its own.
    pub(crate) fn add(
        &mut self,
        name: String,
        shape: &[u64],
        slot: SlotId,
        target: Target,
        shard: Shard,
    ) -> PartId {
        let part = self.parts.len();
        self.parts.push(name.clone());
        let (shape, parts) = (shape.to_vec(), vec![part]);
        self.insert(name, Source { shape, slot, target, shard, held: None, parts });
        part
    }

    /// Adds a source of all experts, of which this rank holds some.
    pub(crate) fn add_stacked(&mut self, name: String, source: Source) {
        let part = self.parts.len();
        self.parts.push(name.clone());
        self.insert(name, Source { parts: vec![part], ..source });
    }

    /// Declares what other ranks take of the model that `all` is the catalogue of: it may arrive
    /// here, and nothing comes of it.
    pub(crate) fn know_elsewhere(&mut self, all: &Self) {
        let shape_of = |name: &str| all.sources.get(name).map(|source| source.shape.clone());
        for name in all.sources.keys() {
            if !self.sources.contains_key(name)
                && let Some(shape) = shape_of(name)
            {
                self.elsewhere.insert(name.clone(), shape);
            }
        }
        for (name, owner) in &all.repeats {
            if !self.repeats.contains_key(name)
                && let Some(shape) = shape_of(owner)
            {
                self.elsewhere.insert(name.clone(), shape);
            }
        }
    }

    /// Whether other ranks alone take a source of that name.
    pub(crate) fn is_elsewhere(&self, name: &str) -> bool {
        self.elsewhere.contains_key(name)
    }

    /// Whether the model takes a source of that name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.source(name).is_some() || self.repeated_by(name).is_some() || self.is_elsewhere(name)
    }

    /// Adds another spelling of parts that exist already.
    pub(crate) fn insert(&mut self, name: String, source: Source) {
        self.sources.insert(name, source);
    }

    /// Declares another spelling of a source.
    pub(crate) fn spell(&mut self, name: &str, other: String) {
        if let Some(source) = self.sources.get(name).cloned() {
            self.insert(other, source);
        }
    }

    /// Adds all that another part of the model takes, under names of its own.
    pub(crate) fn append(&mut self, other: Self) {
        let before = self.parts.len();
        self.parts.extend(other.parts);
        for (name, mut source) in other.sources {
            source.parts.iter_mut().for_each(|part| *part += before);
            self.insert(name, source);
        }
        self.repeats.extend(other.repeats);
    }

    /// Names of all sources.
    pub(crate) fn names(&self) -> Vec<String> {
        self.sources.keys().cloned().collect()
    }

    /// Puts every name behind a prefix.
    pub(crate) fn nest(&mut self, prefix: &str) {
        let nested = |name: String| format!("{prefix}{name}");
        let sources = std::mem::take(&mut self.sources).into_iter();
        self.sources = sources.map(|(name, source)| (nested(name), source)).collect();
        self.parts = std::mem::take(&mut self.parts).into_iter().map(nested).collect();
        let repeats = std::mem::take(&mut self.repeats).into_iter();
        self.repeats = repeats.map(|(name, owner)| (nested(name), nested(owner))).collect();
    }

    /// Declares that `name` may repeat `owner` byte for byte.
    pub(crate) fn repeat(&mut self, name: String, owner: String) {
        self.repeats.insert(name, owner);
    }

    /// The source of that name.
    pub(crate) fn source(&self, name: &str) -> Option<&Source> {
        self.sources.get(name)
    }

    /// All sources, by name.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.sources.iter().map(|(name, source)| (name.as_str(), source))
    }

    /// The source that `name` must repeat, if it is such a one.
    pub(crate) fn repeated_by(&self, name: &str) -> Option<&str> {
        self.repeats.get(name).map(String::as_str)
    }

    /// The source that only repeats `owner`, if there is one.
    pub(crate) fn repeat_of(&self, owner: &str) -> Option<&str> {
        let mut repeats = self.repeats.iter();
        repeats.find(|(_, repeated)| *repeated == owner).map(|(name, _)| name.as_str())
    }

    /// Parts that these names fill.
    pub(crate) fn parts_of<'n>(
        &self,
        names: impl IntoIterator<Item = &'n String>,
    ) -> BTreeSet<PartId> {
        let own = names.into_iter().filter_map(|name| self.sources.get(name));
        own.flat_map(|source| source.parts.iter().copied()).collect()
    }

    /// Parts of each slot.
    pub(crate) fn units(&self) -> BTreeMap<SlotId, BTreeSet<PartId>> {
        let mut units: BTreeMap<SlotId, BTreeSet<PartId>> = BTreeMap::new();
        for source in self.sources.values() {
            units.entry(source.slot).or_default().extend(&source.parts);
        }
        units
    }

    /// Names of the parts.
    pub(crate) fn parts(&self) -> &[String] {
        &self.parts
    }

    /// Whether the model takes this tensor as it is.
    pub(crate) fn admit(&self, tensor: &TensorRef) -> Result<(), SourceError> {
        let name = tensor.name.clone();
        let owner = self.repeated_by(&name).unwrap_or(&name);
        let own = self.sources.get(owner).map(|source| &source.shape);
        let Some(shape) = own.or_else(|| self.elsewhere.get(&name)) else {
            return Err(SourceError::Unknown { name });
        };
        if tensor.dtype != Dtype::Bf16 {
            return Err(SourceError::Dtype { name, found: tensor.dtype });
        }
        if tensor.shape != *shape {
            let expected = shape.clone();
            return Err(SourceError::Shape { name, expected, found: tensor.shape.clone() });
        }
        let expected = shape.iter().product::<u64>() * Dtype::Bf16.bytes();
        if tensor.bytes != expected {
            return Err(SourceError::Length { name, expected, found: tensor.bytes });
        }
        Ok(())
    }
}
