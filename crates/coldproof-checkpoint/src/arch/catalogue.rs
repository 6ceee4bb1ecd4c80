//! The catalogue of one model: every source it expects, in every spelling.

use coldproof_contract::routing::{SourceRule, Stage};
use coldproof_contract::words::Dtype;

use super::{ModelConfig, decoder, llava, mtp};

/// Sources that a checkpoint of one model must hold, in the order of the model: embedding, layers,
/// final norm, head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// Groups; of each, exactly one spelling must be there.
    pub groups: Vec<Group>,
    /// Names that share a storage with another source and need not be there.
    pub tied: Vec<TiedSource>,
}

/// The ways to spell the sources of one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// At least one; the first is the usual one.
    pub spellings: Vec<Spelling>,
}

/// One way to spell the sources of one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelling {
    /// Which.
    pub name: SpellingName,
    /// At least one source.
    pub rules: Vec<SourceRule>,
}

/// How the sources of a slot are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpellingName {
    /// The only way.
    Plain,
    /// One source an expert and projection.
    PerExpert,
    /// One source for all experts (transformers 5).
    Fused,
    /// All parts of a model with a tower within one module (transformers 5, in memory).
    Nested,
    /// The tower with its inner module.
    Inner,
    /// Both.
    NestedInner,
}

impl SpellingName {
    /// Spellings that a checkpoint may be given in beside its own, with their names in evidence.
    pub const OTHERS: [(Self, &str); 4] = [
        (Self::Fused, "fused"),
        (Self::PerExpert, "per-expert"),
        (Self::Nested, "nested"),
        (Self::Inner, "inner"),
    ];
}

/// A name that shares a storage with another source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiedSource {
    /// The name that need not be there.
    pub source: String,
    /// The source whose storage it shares.
    pub target: String,
    /// Element type of both.
    pub dtype: Dtype,
    /// Shape of both.
    pub shape: Vec<u64>,
}

impl Group {
    pub(super) fn plain(rule: SourceRule) -> Self {
        Self { spellings: vec![Spelling { name: SpellingName::Plain, rules: vec![rule] }] }
    }

    /// The same sources, held by these pipeline stages.
    pub(super) fn on(mut self, stage: Stage) -> Self {
        let spellings = self.spellings.iter_mut();
        spellings.flat_map(|spelling| &mut spelling.rules).for_each(|rule| rule.stage = stage);
        self
    }
}

impl Catalogue {
    /// The catalogue of a model.
    #[must_use]
    pub fn of(config: &ModelConfig) -> Self {
        let text = Self::of_text(config);
        let own = match &config.vision {
            None => text,
            Some(vision) => llava::catalogue(config, vision, text),
        };
        match &config.draft {
            None => own,
            Some(draft) => own.with_draft(Self::of(draft)),
        }
    }

    fn of_text(config: &ModelConfig) -> Self {
        let ends = if config.tied { Stage::Ends } else { Stage::First };
        let mut groups = vec![Group::plain(decoder::embedding(config)).on(ends)];
        for layer in 0..config.layers {
            let stage = Stage::Layer { layer, layers: config.layers };
            let of_layer = config.family.layer(config, layer);
            groups.extend(of_layer.into_iter().map(|group| group.on(stage)));
        }
        groups.push(Group::plain(decoder::final_norm(config)).on(Stage::Last));
        groups.extend(mtp::groups(config));
        let head = decoder::head(config);
        if config.tied {
            let target = decoder::embedding(config).source;
            let tied =
                TiedSource { source: head.source, target, dtype: head.dtype, shape: head.shape };
            return Self { groups, tied: vec![tied] };
        }
        groups.push(Group::plain(head).on(Stage::Last));
        Self { groups, tied: Vec::new() }
    }

    /// All rules of the first spelling of each group, in order.
    pub fn usual_rules(&self) -> impl Iterator<Item = &SourceRule> {
        self.groups.iter().filter_map(|group| group.spellings.first()).flat_map(|s| &s.rules)
    }

    /// All rules of all spellings, in order.
    pub fn all_rules(&self) -> impl Iterator<Item = &SourceRule> {
        self.groups.iter().flat_map(|group| &group.spellings).flat_map(|s| &s.rules)
    }
}
