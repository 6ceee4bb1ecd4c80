//! Post-load accounting: expected = processed = finalised, once each, prerequisites first.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::Ledger;
use crate::order::{Cycle, topological};
use crate::words::SlotName;

/// What one layer's post-load needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerPlan {
    /// Layers that must be finalised before its hook runs.
    pub prerequisites: BTreeSet<String>,
    /// Slots whose promised elements must all be applied before its hook runs.
    pub slots: BTreeSet<SlotName>,
}

/// The layers that must go through post-load, sealed before the first write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostLoadPlan {
    layers: BTreeMap<String, LayerPlan>,
}

/// A plan that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostLoadPlanError {
    /// A prerequisite that is not expected itself.
    #[error("`{layer}` needs `{prerequisite}` first, which is not expected; declare it")]
    UnknownPrerequisite {
        /// The layer.
        layer: String,
        /// What it needs.
        prerequisite: String,
    },
    /// Layers that wait for each other.
    #[error("these layers wait for each other: {}", layers.join(", "))]
    Cycle {
        /// Each needs the next, the last the first.
        layers: Vec<String>,
    },
}

impl PostLoadPlan {
    /// Makes the expected set final.
    ///
    /// # Errors
    /// A prerequisite that is not expected, or layers that wait for each other.
    pub fn seal(layers: BTreeMap<String, LayerPlan>) -> Result<Self, PostLoadPlanError> {
        for (layer, plan) in &layers {
            if let Some(unknown) = plan.prerequisites.iter().find(|p| !layers.contains_key(*p)) {
                return Err(PostLoadPlanError::UnknownPrerequisite {
                    layer: layer.clone(),
                    prerequisite: unknown.clone(),
                });
            }
        }
        let needs: BTreeMap<String, BTreeSet<String>> =
            layers.iter().map(|(k, plan)| (k.clone(), plan.prerequisites.clone())).collect();
        match topological(&needs) {
            Ok(_) => Ok(Self { layers }),
            Err(Cycle(layers)) => Err(PostLoadPlanError::Cycle { layers }),
        }
    }
}

/// A stage of post-load that came when it must not, or never came.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostLoadError {
    /// A layer that is not expected.
    #[error("`{layer}` went through post-load and is not expected")]
    Unexpected {
        /// The layer.
        layer: String,
    },
    /// The hook ran twice.
    #[error("`{layer}` was processed twice")]
    ProcessedTwice {
        /// The layer.
        layer: String,
    },
    /// Finalised twice.
    #[error("`{layer}` was finalised twice")]
    FinalisedTwice {
        /// The layer.
        layer: String,
    },
    /// The hook ran before elements that it reads had arrived.
    #[error("`{layer}` was processed before `{slot}` was complete")]
    ProcessedEarly {
        /// The layer.
        layer: String,
        /// The first incomplete slot.
        slot: SlotName,
    },
    /// Finalised before its elements had arrived.
    #[error("`{layer}` was finalised before `{slot}` was complete")]
    FinalisedEarly {
        /// The layer.
        layer: String,
        /// The first incomplete slot.
        slot: SlotName,
    },
    /// Finalised although its hook never ran.
    #[error("`{layer}` was finalised before it was processed")]
    FinalisedUnprocessed {
        /// The layer.
        layer: String,
    },
    /// The hook ran before a layer that it needs was finalised.
    #[error("`{layer}` was processed before `{prerequisite}` was finalised")]
    PrerequisiteOpen {
        /// The layer.
        layer: String,
        /// What it needs.
        prerequisite: String,
    },
    /// The hook never ran.
    #[error("`{layer}` was never processed")]
    NeverProcessed {
        /// The layer.
        layer: String,
    },
    /// Never finalised.
    #[error("`{layer}` was never finalised")]
    NeverFinalised {
        /// The layer.
        layer: String,
    },
}

/// The post-load of one rank in one transaction. A stage counts as taken even where it was taken
/// wrongly, so that one fault is one error.
#[derive(Clone, Debug)]
pub struct PostLoad<'a> {
    plan: &'a PostLoadPlan,
    processed: BTreeSet<&'a str>,
    finalised: BTreeSet<&'a str>,
}

impl<'a> PostLoad<'a> {
    /// Nothing has been processed yet.
    #[must_use]
    pub const fn begin(plan: &'a PostLoadPlan) -> Self {
        Self { plan, processed: BTreeSet::new(), finalised: BTreeSet::new() }
    }

    fn layer(&self, name: &str) -> Result<(&'a str, &'a LayerPlan), PostLoadError> {
        let found = self.plan.layers.get_key_value(name).map(|(key, plan)| (key.as_str(), plan));
        found.ok_or_else(|| PostLoadError::Unexpected { layer: name.to_owned() })
    }

    /// A layer's hook ran.
    ///
    /// # Errors
    /// A layer that is not expected, ran before, or ran before all it needs was there.
    pub fn processed(&mut self, name: &str, ledger: &Ledger) -> Result<(), PostLoadError> {
        let (name, plan) = self.layer(name)?;
        let layer = || name.to_owned();
        if !self.processed.insert(name) {
            return Err(PostLoadError::ProcessedTwice { layer: layer() });
        }
        let open = plan.prerequisites.iter().find(|p| !self.finalised.contains(p.as_str()));
        if let Some(open) = open {
            let prerequisite = open.clone();
            return Err(PostLoadError::PrerequisiteOpen { layer: layer(), prerequisite });
        }
        match incomplete(plan, ledger) {
            Some(slot) => Err(PostLoadError::ProcessedEarly { layer: layer(), slot }),
            None => Ok(()),
        }
    }

    /// A layer is complete, says the engine.
    ///
    /// # Errors
    /// A layer that is not expected, was finalised before, was not processed, or is incomplete.
    pub fn finalised(&mut self, name: &str, ledger: &Ledger) -> Result<(), PostLoadError> {
        let (name, plan) = self.layer(name)?;
        let layer = || name.to_owned();
        if !self.finalised.insert(name) {
            return Err(PostLoadError::FinalisedTwice { layer: layer() });
        }
        if let Some(slot) = incomplete(plan, ledger) {
            return Err(PostLoadError::FinalisedEarly { layer: layer(), slot });
        }
        if self.processed.contains(name) {
            Ok(())
        } else {
            Err(PostLoadError::FinalisedUnprocessed { layer: layer() })
        }
    }

    /// Layers that were left out, by name.
    #[must_use]
    pub fn finish(&self) -> Vec<PostLoadError> {
        let mut errors = Vec::new();
        for name in self.plan.layers.keys() {
            let (processed, finalised) =
                (self.processed.contains(name.as_str()), self.finalised.contains(name.as_str()));
            let layer = name.clone();
            match (processed, finalised) {
                (false, false) => errors.push(PostLoadError::NeverProcessed { layer }),
                (true, false) => errors.push(PostLoadError::NeverFinalised { layer }),
                // Finalised but unprocessed was an error when it happened, or is cured since.
                (_, true) => {}
            }
        }
        errors
    }
}

/// The first slot of a layer with promised elements that were not applied. A slot that nothing in
/// scope belongs to keeps its elements.
fn incomplete(plan: &LayerPlan, ledger: &Ledger) -> Option<SlotName> {
    let is_open = |slot: &&SlotName| ledger.slot(slot).is_ok_and(|key| !ledger.is_complete(key));
    plan.slots.iter().find(is_open).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{ApplicationIdentity, ManifestDraft};
    use crate::words::{Fragment, Span};

    fn piece() -> ApplicationIdentity {
        ApplicationIdentity {
            source: "w".to_owned(),
            source_fragment: Fragment(vec![Span::new(0, 2)]),
            slot: "b.w".into(),
            slot_fragment: Fragment(vec![Span::new(0, 2)]),
        }
    }

    fn plan() -> PostLoadPlan {
        let a = LayerPlan::default();
        let b = LayerPlan {
            prerequisites: BTreeSet::from(["a".to_owned()]),
            slots: BTreeSet::from(["b.w".into()]),
        };
        PostLoadPlan::seal(BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)])).unwrap()
    }

    fn ledger() -> Ledger {
        let draft = ManifestDraft { pieces: vec![piece()], ..ManifestDraft::default() };
        Ledger::seal(&draft.seal().unwrap())
    }

    #[test]
    fn a_plan_has_an_order() {
        let needs = |name: &str| LayerPlan {
            prerequisites: BTreeSet::from([name.to_owned()]),
            slots: BTreeSet::new(),
        };
        let ring = BTreeMap::from([("a".to_owned(), needs("b")), ("b".to_owned(), needs("a"))]);
        assert!(matches!(PostLoadPlan::seal(ring), Err(PostLoadPlanError::Cycle { .. })));
        let open = PostLoadPlan::seal(BTreeMap::from([("a".to_owned(), needs("x"))]));
        assert!(matches!(open, Err(PostLoadPlanError::UnknownPrerequisite { .. })));
    }

    #[test]
    fn the_right_order_is_silent() {
        let (plan, mut ledger) = (plan(), ledger());
        let mut post = PostLoad::begin(&plan);
        post.processed("a", &ledger).unwrap();
        post.finalised("a", &ledger).unwrap();
        ledger.record_named(&piece()).unwrap();
        post.processed("b", &ledger).unwrap();
        post.finalised("b", &ledger).unwrap();
        assert_eq!(post.finish(), []);
    }

    #[test]
    fn early_stages_are_found() {
        let (plan, mut ledger) = (plan(), ledger());
        let mut post = PostLoad::begin(&plan);
        let early = post.finalised("b", &ledger);
        assert!(matches!(early, Err(PostLoadError::FinalisedEarly { .. })));
        let open = post.processed("b", &ledger);
        assert!(matches!(open, Err(PostLoadError::PrerequisiteOpen { .. })));
        let mut post = PostLoad::begin(&plan);
        post.processed("a", &ledger).unwrap();
        post.finalised("a", &ledger).unwrap();
        let early = post.processed("b", &ledger);
        assert!(matches!(early, Err(PostLoadError::ProcessedEarly { .. })));
        ledger.record_named(&piece()).unwrap();
        assert_eq!(post.finalised("b", &ledger), Ok(()));
    }

    #[test]
    fn repeats_and_strangers_are_found() {
        let (plan, ledger) = (plan(), ledger());
        let layer = || "a".to_owned();
        let mut post = PostLoad::begin(&plan);
        let unprocessed = PostLoadError::FinalisedUnprocessed { layer: layer() };
        assert_eq!(post.finalised("a", &ledger), Err(unprocessed));
        let twice = PostLoadError::FinalisedTwice { layer: layer() };
        assert_eq!(post.finalised("a", &ledger), Err(twice));
        assert_eq!(post.processed("a", &ledger), Ok(()));
        let twice = PostLoadError::ProcessedTwice { layer: layer() };
        assert_eq!(post.processed("a", &ledger), Err(twice));
        let stranger = PostLoadError::Unexpected { layer: "z".to_owned() };
        assert_eq!(post.processed("z", &ledger), Err(stranger));
    }

    #[test]
    fn what_was_left_out_is_named() {
        let (plan, ledger) = (plan(), ledger());
        let mut post = PostLoad::begin(&plan);
        post.processed("a", &ledger).unwrap();
        let never = PostLoadError::NeverFinalised { layer: "a".to_owned() };
        let unseen = PostLoadError::NeverProcessed { layer: "b".to_owned() };
        assert_eq!(post.finish(), [never, unseen]);
    }
}
