//! Which decode steps replay a captured graph: configuration that no checkpoint holds, and that an
//! update must leave as it is.

use super::BATCH_MAX;
use crate::faults::{FaultId, Faults, Variant};

/// When graphs are replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GraphConfig {
    /// Whether none is, whatever was captured.
    pub(crate) enforce_eager: bool,
    /// Rows of the graphs that are replayed, in rising order.
    pub(crate) capture_sizes: Vec<usize>,
}

impl GraphConfig {
    /// Whether a step of so many rows replays a graph.
    pub(crate) fn replays(&self, rows: usize) -> bool {
        !self.enforce_eager && self.capture_sizes.iter().any(|size| *size >= rows)
    }

    /// The names and values that the engine states.
    pub(crate) fn stated(&self) -> [(&'static str, String); 2] {
        let sizes: Vec<String> = self.capture_sizes.iter().map(usize::to_string).collect();
        let eager = self.enforce_eager || sizes.is_empty();
        [("enforce_eager", eager.to_string()), ("capture_sizes", sizes.join(","))]
    }

    /// What an update makes of it: nothing, unless a fault says otherwise. A twin forgets it as
    /// well and puts it back.
    pub(crate) fn update(&mut self, faults: &Faults) {
        if let Some(variant) = faults.of(FaultId::F4_03) {
            let kept = self.capture_sizes.clone();
            self.capture_sizes.retain(|size| *size < BATCH_MAX as usize);
            if variant == Variant::Twin {
                self.capture_sizes = kept;
            }
        }
        if let Some(variant) = faults.of(FaultId::F4_04) {
            let kept = self.enforce_eager;
            self.enforce_eager = variant == Variant::Faulty || kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultSwitch;

    fn updated(id: FaultId, variant: Variant) -> GraphConfig {
        let mut config = GraphConfig { enforce_eager: false, capture_sizes: vec![1, 2, 4] };
        config.update(&Faults::new(&[FaultSwitch { id, variant }], &[]));
        config
    }

    #[test]
    fn a_graph_holds_as_many_rows_as_it_has_or_fewer() {
        let config = GraphConfig { enforce_eager: false, capture_sizes: vec![1, 4] };
        assert_eq!([1, 3, 4, 5].map(|rows| config.replays(rows)), [true, true, true, false]);
        assert!(!GraphConfig { enforce_eager: true, ..config }.replays(1));
    }

    #[test]
    fn a_faulty_update_forgets_and_its_twin_does_not() {
        // Once forgotten, it stays forgotten, and no more is.
        let mut config = updated(FaultId::F4_03, Variant::Faulty);
        assert_eq!(config.capture_sizes, [1, 2]);
        let switch = FaultSwitch { id: FaultId::F4_03, variant: Variant::Faulty };
        config.update(&Faults::new(&[switch], &[]));
        assert_eq!(config.capture_sizes, [1, 2]);
        assert!(updated(FaultId::F4_04, Variant::Faulty).enforce_eager);
        for id in [FaultId::F4_03, FaultId::F4_04] {
            let twin = updated(id, Variant::Twin);
            assert!(twin.replays(4) && !twin.enforce_eager, "{id}");
        }
    }
}
