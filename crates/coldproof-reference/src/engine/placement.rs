//! Where experts are: ordered by the caller, before a load or between two requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use coldproof_contract::transaction::State;
use coldproof_contract::words::{ExpertPlace, ExpertPlacement};

use super::EngineError;
use super::core::Core;
use crate::ranks::expert_layers;

impl Core {
    /// Goes by this placement from here on. What is loaded moves in place; where nothing is, the
    /// next load goes by it.
    pub(crate) fn place_experts(
        &mut self,
        placement: &Arc<ExpertPlacement>,
    ) -> Result<(), EngineError> {
        self.check_placement(placement)?;
        let moves = self.machine.state() == State::Idle;
        let ordered = Arc::clone(placement);
        self.each(move |worker| worker.place_experts(&ordered, moves))?;
        self.placement_version = placement.version;
        Ok(())
    }

    /// Whether [`Core::place_experts`] would take this placement.
    pub(super) fn check_placement(&self, placement: &ExpertPlacement) -> Result<(), EngineError> {
        let ep = self.config.topology.ep;
        if ep == 1 {
            return Err(EngineError::refused(
                "experts of this engine are all on one rank of ep; start it with more of them",
            ));
        }
        // A discarded engine holds nothing that could move, whether it sleeps or not.
        if self.machine.state() != State::Vacant {
            self.check_whole("place_experts")?;
            if !self.paused {
                return Err(EngineError::refused(
                    "the engine is serving; call `pause` before `place_experts`",
                ));
            }
        }
        if placement.version <= self.placement_version {
            return Err(EngineError::refused(format!(
                "version {} of the placement is not above {}, which is in force; count on",
                placement.version, self.placement_version
            )));
        }
        let layers = expert_layers(&self.dims, ep);
        if let Some(layer) = placement.layers.keys().find(|layer| !layers.contains_key(*layer)) {
            return Err(EngineError::refused(format!(
                "no module `{layer}` of this model has experts; leave it out"
            )));
        }
        for (layer, experts) in layers {
            let places = placement.layer(&layer).ok_or_else(|| {
                EngineError::refused(format!(
                    "the placement says nothing of `{layer}`; place the experts of every module"
                ))
            })?;
            permutation(&layer, experts, places, ep)?;
        }
        Ok(())
    }
}

/// Whether every expert has a place of its own, as many on each rank.
fn permutation(
    layer: &str,
    experts: u64,
    places: &[ExpertPlace],
    ep: u32,
) -> Result<(), EngineError> {
    let refused = |text: String| Err(EngineError::refused(text));
    if places.len() as u64 != experts {
        return refused(format!(
            "`{layer}` has {experts} experts and {} are placed; place each of them once",
            places.len()
        ));
    }
    let each = experts / u64::from(ep);
    let mut taken = BTreeSet::new();
    for (expert, at) in places.iter().enumerate() {
        let ExpertPlace { ep: rank, place } = *at;
        if rank >= ep {
            return refused(format!(
                "expert {expert} of `{layer}` is placed on rank {rank} of ep and there are {ep}, \
                 counted from 0"
            ));
        }
        if place >= each {
            return refused(format!(
                "expert {expert} of `{layer}` is placed at {place} and a rank has {each} places, \
                 counted from 0"
            ));
        }
        if !taken.insert(*at) {
            return refused(format!(
                "place {place} of rank {rank} of ep is given to two experts of `{layer}`, one of \
                 them {expert}; give each a place of its own"
            ));
        }
    }
    Ok(())
}
