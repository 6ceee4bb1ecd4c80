//! A draft model for speculative decoding, in one checkpoint with the model that it drafts for: its
//! configuration is `draft_config.json`, its sources and slots are behind [`DRAFT`].
//!
//! As in vLLM, all of it is on the last pipeline stage.

use coldproof_contract::routing::{SourceRule, Stage};
use coldproof_contract::words::SlotName;

use super::{Catalogue, ConfigError, ModelConfig};

/// What the names of a draft model's sources and slots begin with.
pub const DRAFT: &str = "draft.";

impl ModelConfig {
    /// This model with another that drafts for it.
    ///
    /// # Errors
    /// A pair that cannot decode together.
    pub(super) fn drafted_by(mut self, draft: Self) -> Result<Self, ConfigError> {
        let size = |field: &str, value: u64, reason: String| {
            Err(ConfigError::Size { field: field.to_owned(), value: value.to_string(), reason })
        };
        let kind = |what: &str| {
            Err(ConfigError::Unsupported {
                field: "model_type".to_owned(),
                value: format!("`{}` {what}", draft.family.model_type()),
                supported: "attention over all tokens".to_owned(),
            })
        };
        // A rejected token cannot be taken out of a recurrence's state again.
        if self.state_space.is_some() || draft.state_space.is_some() {
            return kind("where one of the two keeps states");
        }
        if draft.vision.is_some() {
            return kind("takes images");
        }
        if draft.mtp_layers > 0 || self.mtp_layers > 0 {
            return kind("beside layers that predict further tokens");
        }
        if draft.vocab_size != self.vocab_size {
            let reason = format!("the model has {} tokens", self.vocab_size);
            return size("vocab_size", draft.vocab_size, reason);
        }
        if draft.max_positions < self.max_positions {
            let reason = format!("the model has {} positions", self.max_positions);
            return size("max_position_embeddings", draft.max_positions, reason);
        }
        self.draft = Some(Box::new(draft));
        Ok(self)
    }

    /// Whether a source is of what drafts: the draft model, or layers that predict further tokens.
    #[must_use]
    pub fn is_draft(&self, source: &str) -> bool {
        let layers = self.layers..self.layers.saturating_add(self.mtp_layers);
        let numbered = source.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let behind = numbered.is_some_and(|(layer, _)| {
            layer.parse::<u64>().is_ok_and(|layer| layers.contains(&layer))
        });
        behind || (self.draft.is_some() && source.starts_with(DRAFT))
    }
}

impl Catalogue {
    /// This catalogue with that of a draft model.
    pub(super) fn with_draft(mut self, mut draft: Self) -> Self {
        let named = |name: &str| format!("{DRAFT}{name}");
        let groups = draft.groups.iter_mut().flat_map(|group| &mut group.spellings);
        for rule in groups.flat_map(|spelling| &mut spelling.rules) {
            let SourceRule { source, slot, stage, .. } = rule;
            *source = named(source);
            *slot = SlotName(named(&slot.0));
            *stage = Stage::Last;
        }
        for tied in &mut draft.tied {
            tied.source = named(&tied.source);
            tied.target = named(&tied.target);
        }
        self.groups.extend(draft.groups);
        self.tied.extend(draft.tied);
        self
    }
}
