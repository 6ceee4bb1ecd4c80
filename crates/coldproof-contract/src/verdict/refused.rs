//! What an engine serves after an update that it refused: what it served before, or nothing (R44).

use super::case::{Case, symptom};
use super::{Finding, FindingCode, Site, outputs};
use crate::evidence::{LogitsFact, Observed, PhaseView, Seen};

type Outputs<'v, 'r> = &'v Observed<Seen<'r, LogitsFact>>;

/// Compares each request with the same one before the update.
pub(super) fn check(case: &mut Case<'_, '_>, site: Site) {
    let view = case.view;
    let arm = &view.arms[site.0];
    let phase = &arm.phases[site.1];
    let Some(before) = arm.earlier(site.1, phase.at) else { return };
    let Some((seen, largest)) = other(before, phase).next() else { return };
    let request = outputs::name(seen.fact);
    let new = view.against(arm).and_then(|cold| cold.phases.last());
    let text = match new {
        Some(new) if other(new, phase).next().is_none() => {
            format!("request {request} has the logits of the new one")
        }
        _ => format!("request {request}: largest difference from before {largest:e}"),
    };
    let found = symptom("logits", phase.step_name(seen.step), seen.seq, text.clone());
    let mut finding =
        Finding::new(FindingCode::MixedGeneration, format!("transition `{}`", phase.phase), 0)
            .expected("the generation before the update, or no answer", text)
            .why("an update that is refused leaves the engine as it was, or out of service");
    finding.events.push(found);
    case.raise(finding, site, &[]);
}

/// Outputs of `phase` that `reference` has too, and that differ from its.
fn other<'v, 'r>(
    reference: &'v PhaseView<'r>,
    phase: &'v PhaseView<'r>,
) -> impl Iterator<Item = (Outputs<'v, 'r>, f64)> {
    phase.logits.iter().filter_map(|((request, mode, _), seen)| {
        let wanted = reference.logits.get(&(*request, *mode, 0))?;
        let (_, largest) = outputs::distance(&wanted.fact.rows, &seen.fact.rows);
        (largest > 0.0).then_some((seen, largest))
    })
}
