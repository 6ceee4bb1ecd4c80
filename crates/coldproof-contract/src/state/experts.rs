//! Where experts are is state that no checkpoint carries, and it has a version: every rank states
//! the one that was ordered last (R63).

use crate::evidence::PhaseView;
use crate::verdict::{Case, Finding, FindingCode, Room, Site, symptom};

/// Judges what ranks state of a placement that was ordered. What their memory says of it is a
/// matter of routing.
pub(super) fn check(case: &mut Case<'_, '_>) {
    let view = case.view;
    for (index, arm) in view.arms.iter().enumerate() {
        for (phase_index, phase) in arm.phases.iter().enumerate() {
            stated(case, (index, phase_index), phase);
        }
    }
}

fn stated(case: &mut Case<'_, '_>, site: Site, phase: &PhaseView<'_>) {
    let Some(ordered) = phase.experts else { return };
    for ((rank, layer), seen) in &phase.stated_experts {
        let places = ordered.layer(layer);
        let same = places.is_none_or(|places| places == seen.fact.places);
        if same && seen.fact.version == ordered.version {
            continue;
        }
        let (step, rank) = (phase.step_name(seen.step), case.rank_index(site.0, *rank));
        let text = match same {
            true => format!("version {} of `{layer}`", seen.fact.version),
            false => format!("other places of `{layer}`, version {}", seen.fact.version),
        };
        let found = symptom("stated", step, seen.seq, text.clone());
        if case.explain(Room::State, &seen.fact.map.0, rank, site, found.clone()) {
            continue;
        }
        let mut finding = Finding::new(FindingCode::ConfigDrift, seen.fact.map.0.as_str(), rank)
            .expected(format!("version {} as it was ordered", ordered.version), text)
            .why("a later load goes by the placement that the rank believes to be in force");
        finding.events.push(found);
        case.raise(finding, site, &[]);
    }
}
