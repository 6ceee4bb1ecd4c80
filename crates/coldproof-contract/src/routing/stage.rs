//! Which pipeline stages hold a source.

use serde::{Deserialize, Serialize};

/// Which pipeline stages hold a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Stage {
    /// Every one.
    #[default]
    Everywhere,
    /// The first: what comes before the layers.
    First,
    /// The last: what comes after them.
    Last,
    /// The first and the last: one table for both ends.
    Ends,
    /// The one that has this layer.
    Layer {
        /// Which layer.
        layer: u64,
        /// Layers of the model.
        layers: u64,
    },
}

impl Stage {
    /// Whether stage `stage` of `stages` holds the source. Layers are cut into consecutive parts of
    /// equal size; what does not divide goes, one each, to the stages before the very last, which
    /// has the head (as vLLM's `get_pp_indices`). A stage may have no layer at all.
    #[must_use]
    pub fn is_on(self, stage: u32, stages: u32) -> bool {
        let last = stage + 1 == stages;
        match self {
            Self::Everywhere => true,
            Self::First => stage == 0,
            Self::Last => last,
            Self::Ends => stage == 0 || last,
            Self::Layer { layer, layers } => {
                let (first, end) = layers_of(u64::from(stage), u64::from(stages.max(1)), layers);
                first <= layer && layer < end
            }
        }
    }

    pub(super) fn is_everywhere(&self) -> bool {
        *self == Self::Everywhere
    }
}

/// The first layer of a stage, and the first behind it.
fn layers_of(stage: u64, stages: u64, layers: u64) -> (u64, u64) {
    let (each, rest) = (layers / stages, layers % stages);
    // The stages that have one layer more are those before the last one.
    let longer = (stages - 1).saturating_sub(rest);
    let before = |stage: u64| stage * each + stage.saturating_sub(longer).min(rest);
    (before(stage), before(stage + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_divide_goes_to_the_last_stages_but_the_very_last() {
        let cut = |stages: u64, layers: u64| -> Vec<u64> {
            let of = |stage| layers_of(stage, stages, layers);
            assert_eq!(of(stages - 1).1, layers);
            (0..stages).map(|stage| of(stage).1 - of(stage).0).collect()
        };
        assert_eq!(cut(2, 2), [1, 1]);
        assert_eq!(cut(2, 3), [2, 1]);
        assert_eq!(cut(4, 2), [0, 1, 1, 0]);
        assert_eq!(cut(4, 7), [2, 2, 2, 1]);
        assert_eq!(cut(3, 10), [3, 4, 3]);
        assert_eq!(cut(1, 5), [5]);
    }

    #[test]
    fn the_ends_of_a_pipeline_of_one_are_one_stage() {
        for stage in [Stage::Everywhere, Stage::First, Stage::Last, Stage::Ends] {
            assert!(stage.is_on(0, 1), "{stage:?}");
        }
        let on = |stage: Stage| (0..3).map(|at| stage.is_on(at, 3)).collect::<Vec<_>>();
        assert_eq!(on(Stage::First), [true, false, false]);
        assert_eq!(on(Stage::Ends), [true, false, true]);
        assert_eq!(on(Stage::Layer { layer: 1, layers: 3 }), [false, true, false]);
    }
}
