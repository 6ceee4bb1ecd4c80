//! The placement lane: experts move between ranks while graphs that were captured before stay, and
//! an update follows. The engine must then equal one that loaded B where they are now (R63).

use std::collections::BTreeMap;

use coldproof_contract::evidence::{ArmHeader, Fact, LaneName};
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::{ExpertPlace, ExpertPlacement, Rank, StepName, Topology};

use crate::census::capture;
use crate::differential::serve_all;
use crate::driver::{ArmResult, Driver};
use crate::engine::EngineError;
use crate::lane::Lane;
use crate::session::{Order, load, look, update};

/// The arm whose experts are where they end from its load on.
const COLD: &str = "cold-placement";

/// A cold load of B under another placement of experts, and a live engine that takes that placement
/// on A and then goes to B. Nothing where ranks share no experts.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let topology = lane.inputs.topology;
    let Some(placement) = moved(&lane.inputs.rules, topology) else { return };
    if lane.hello.get().is_some_and(|hello| !hello.expert_placement) {
        // Other lanes of the run judge the engine as one whose experts stay.
        return;
    }
    let header = |arm, against| ArmHeader::new(arm, LaneName::Placement, topology, against);
    lane.arm(header(COLD, None), |inputs, driver| {
        place(driver, &placement)?;
        load(driver, &inputs.to)?;
        capture(driver)?;
        look(driver, inputs, topology)?;
        serve_all(inputs, driver)
    });
    lane.arm(header("placement", Some(COLD)), |inputs, driver| {
        let a = &inputs.from.label;
        load(driver, &inputs.from)?;
        capture(driver)?;
        look(driver, inputs, topology)?;
        serve_all(inputs, driver)?;
        driver.phase(&format!("{a} moved"), a, Some(a));
        driver.step(StepName::Pause, |engine| engine.pause())?;
        place(driver, &placement)?;
        driver.step(StepName::Resume, |engine| engine.resume())?;
        look(driver, inputs, topology)?;
        serve_all(inputs, driver)?;
        update(driver, a, &inputs.to, None, Order::File)?;
        look(driver, inputs, topology)?;
        serve_all(inputs, driver)
    });
}

/// Whether ranks share the experts of a model with these rules.
#[must_use]
pub fn applies(rules: &[SourceRule], topology: Topology) -> bool {
    moved(rules, topology).is_some()
}

/// Orders a placement, which is in force from here on.
fn place(driver: &mut Driver<'_, '_>, placement: &ExpertPlacement) -> ArmResult<()> {
    let can = driver.can().expert_placement;
    driver.step(StepName::PlaceExperts, |engine| match can {
        true => engine.place_experts(placement),
        false => Err(EngineError::Unsupported { what: "placement of experts".to_owned() }),
    })?;
    driver.record(Rank::default(), Fact::ExpertsPlaced(placement.clone()));
    driver.placement = Some(placement.clone());
    Ok(())
}

/// A placement in which every expert has moved, some to another rank, others within theirs, and
/// those of each layer in another way than those of the one before. None where no two ranks share
/// experts.
fn moved(rules: &[SourceRule], topology: Topology) -> Option<ExpertPlacement> {
    let own = rules.iter().filter_map(|rule| Some((rule.slot.owner(), rule.experts()?)));
    let experts: BTreeMap<&str, u64> = own.collect();
    let ranks = u64::from(topology.ep);
    let spread = !experts.is_empty() && ranks > 1;
    let even = experts.values().all(|experts| experts.is_multiple_of(ranks) && *experts > 0);
    if !spread || !even {
        return None;
    }
    let layers = (0..).zip(experts).map(|(index, (module, experts))| {
        let each = experts / ranks;
        let shift = shift(index, experts);
        let place = |expert: u64| ExpertPlace::consecutive((expert + shift) % experts, each);
        (module.to_owned(), (0..experts).map(place).collect())
    });
    Some(ExpertPlacement { version: 1, layers: layers.collect() })
}

/// How far the experts of a layer move on. A move by half of them, which is its own inverse, could
/// not show a map that was read the other way round, and is taken of two alone.
fn shift(layer: u64, experts: u64) -> u64 {
    let own = (1..experts).filter(|shift| 2 * shift != experts || experts == 2);
    let shifts: Vec<u64> = own.collect();
    let index = usize::try_from(layer).ok().and_then(|layer| layer.checked_rem(shifts.len()));
    index.and_then(|index| shifts.get(index)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use coldproof_contract::routing::{Sharding, Stage};
    use coldproof_contract::words::Dtype;

    use super::*;

    fn rules(layers: &[u64]) -> Vec<SourceRule> {
        let rule = |(layer, experts): (usize, &u64)| SourceRule {
            source: format!("{layer}.source"),
            dtype: Dtype::Bf16,
            shape: vec![*experts, 2, 2],
            slot: format!("{layer}.experts.w2").as_str().into(),
            sharding: Sharding::FusedExpertsRow,
            stage: Stage::Everywhere,
        };
        layers.iter().enumerate().map(rule).collect()
    }

    #[test]
    fn every_expert_moves_and_the_way_back_is_another_one() {
        let topology = Topology { ep: 2, ..Topology::SINGLE };
        let placement = moved(&rules(&[6, 6, 6, 4]), topology).unwrap();
        let mut ways = BTreeSet::new();
        for (layer, places) in &placement.layers {
            let each = places.len() as u64 / 2;
            let at: Vec<u64> = places.iter().map(|at| u64::from(at.ep) * each + at.place).collect();
            assert_eq!(at.iter().collect::<BTreeSet<_>>().len(), places.len(), "{layer}");
            assert!((0..).zip(&at).all(|(expert, at)| expert != *at), "{layer}");
            assert!((0..).zip(&at).any(|(expert, place)| at[*place as usize] != expert));
            assert!((0..).zip(&at).any(|(expert, at)| expert / each != at / each), "{layer}");
            ways.insert(at);
        }
        assert_eq!(ways.len(), 4);
    }

    #[test]
    fn ranks_that_share_no_experts_have_no_other_placement() {
        let two = Topology { ep: 2, ..Topology::SINGLE };
        assert!(!applies(&rules(&[6]), Topology::SINGLE));
        assert!(!applies(&rules(&[]), two));
        assert!(!applies(&rules(&[5]), two));
        assert!(applies(&rules(&[2]), two));
    }
}
