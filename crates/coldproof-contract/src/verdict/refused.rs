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
    let cold = view.against(arm);
    let tolerance = outputs::tolerance(arm, cold);
    let other = |seen: Outputs<'_, '_>, reference: &PhaseView<'_>| {
        let LogitsFact { request, mode, rows, .. } = seen.fact;
        let wanted = reference.logits.get(&(request, mode, 0))?;
        Some(outputs::distance(&wanted.fact.rows, rows).1)
    };
    let far = |seen: &Outputs<'_, '_>| other(seen, before).is_some_and(|by| by > tolerance);
    let Some(seen) = phase.logits.values().find(far) else { return };
    let request = outputs::name(seen.fact);
    let refused = site.1.checked_sub(1).and_then(|index| view.content(arm.phases[index].at));
    let mut loads = cold.into_iter().flat_map(|cold| cold.phases.iter().rev());
    let new = loads.find(|load| load.at.is_some() && load.at == refused);
    let text = match new.and_then(|new| other(seen, new)) {
        Some(by) if by <= tolerance => format!("request {request} has the logits of the new one"),
        _ => {
            let largest = other(seen, before).unwrap_or(f64::INFINITY);
            format!("request {request}: largest difference from before {largest:e}")
        }
    };
    let found = symptom("logits", phase.step_name(seen.step), seen.seq, text.clone());
    let mut finding =
        Finding::new(FindingCode::MixedGeneration, format!("transition `{}`", phase.phase), 0)
            .expected("the generation before the update, or no answer", text)
            .why("an update that is refused leaves the engine as it was, or out of service");
    finding.events.push(found);
    case.raise(finding, site, &[]);
}
