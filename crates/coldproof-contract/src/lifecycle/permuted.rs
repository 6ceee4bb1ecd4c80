//! A slot that holds the right elements in another order than a cold load stores them.

use crate::evidence::{ArmView, Difference, OriginsFact, PhaseView};
use crate::verdict::Case;

/// What the sentinels say of a differing slot that the engine packs, in words; nothing where they
/// show no other order.
pub(super) fn text(case: &Case<'_, '_>, difference: &Difference<'_>) -> Option<String> {
    let key = (difference.rank, &difference.slot.slot);
    let topology = case.view.arms[case.arm_index(difference.arm)].header.topology;
    let arms = || case.view.arms.iter().filter(move |arm| arm.header.topology == topology);
    let order = |arm: &ArmView<'_>| -> Option<OriginsFact> {
        arm.phases.iter().rev().find_map(|phase| Some(phase.orders.get(&key)?.fact.clone()))
    };
    let cold = arms().filter(|arm| arm.header.against.is_none()).find_map(order)?;
    let (arm, warm) = arms()
        .filter(|arm| arm.header.against.is_some())
        .find_map(|arm| Some((arm, order(arm)?)))?;
    let moved = moved(&cold, &warm)?;
    let proof = arm.phases.iter().rev().find_map(|phase| reordered(case, arm, phase, difference));
    let proof = match proof {
        Some(true) => "put in the cold load's order its bytes are those of the cold load",
        Some(false) => {
            "and in the cold load's order its bytes are still not those of the cold load"
        }
        None => "and it was not put in the cold load's order",
    };
    Some(format!("permuted: {moved}; {proof}"))
}

/// Whether the slot, put in the cold load's order, has the cold load's bytes.
fn reordered(
    case: &Case<'_, '_>,
    arm: &ArmView<'_>,
    phase: &PhaseView<'_>,
    difference: &Difference<'_>,
) -> Option<bool> {
    let key = (difference.rank, &difference.slot.slot);
    let reordered = phase.reordered.get(&key)?.fact;
    let cold = case.view.against(arm)?;
    let same = cold.phases.iter().find(|cold| cold.at == phase.at)?;
    Some(same.read_backs.get(&key)?.fact.content == Some(reordered.content))
}

/// How many elements lie elsewhere, and the first of them; nothing where none does, or where one
/// order has elements that the other has not.
fn moved(cold: &OriginsFact, warm: &OriginsFact) -> Option<String> {
    let (cold, warm) = (elements(cold)?, elements(warm)?);
    let first = cold.iter().zip(&warm).position(|(cold, warm)| cold != warm)?;
    let count = cold.iter().zip(&warm).filter(|(cold, warm)| cold != warm).count();
    let (mut all, mut other) = (cold.clone(), warm.clone());
    all.sort_unstable();
    other.sort_unstable();
    let name = |(source, element): (&str, u64)| format!("`{source}`[{element}]");
    (all == other).then(|| {
        format!(
            "{count} of {} elements lie elsewhere (stored element {first} is {}, after a cold load \
             {})",
            cold.len(),
            name(warm[first]),
            name(cold[first])
        )
    })
}

/// The most elements of one slot that are taken apart.
const ELEMENTS_MAX: u64 = 1 << 28;

/// The origin of every stored element; nothing where one has none.
fn elements(order: &OriginsFact) -> Option<Vec<(&str, u64)>> {
    let mut elements = Vec::new();
    for run in &order.runs {
        let source = order.sources.get(usize::try_from(run.source?).ok()?)?.as_str();
        if run.length.checked_mul(run.count)? > ELEMENTS_MAX - elements.len() as u64 {
            return None;
        }
        for step in 0..run.count {
            let by = run.source_step.checked_mul(i64::try_from(step).ok()?)?;
            let first = run.element.checked_add_signed(by)?;
            let last = first.checked_add(run.length)?;
            elements.extend((first..last).map(|element| (source, element)));
        }
    }
    Some(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::OriginRun;

    /// Runs of (source, first element, length).
    fn order(sources: &[&str], runs: &[(Option<u32>, u64, u64)]) -> OriginsFact {
        let mut slot = 0;
        let runs = runs.iter().map(|&(source, element, length)| {
            let first = slot;
            slot += length;
            let (count, slot_step, source_step) = (1, 0, 0);
            OriginRun { slot: first, source, element, length, count, slot_step, source_step }
        });
        let sources = sources.iter().map(|source| (*source).to_owned()).collect();
        OriginsFact { slot: "w".into(), sources, runs: runs.collect() }
    }

    #[test]
    fn the_same_elements_in_another_order_are_permuted() {
        let cold = order(&["q", "k"], &[(Some(0), 0, 2), (Some(1), 0, 2)]);
        let warm = order(&["k", "q"], &[(Some(1), 0, 1), (Some(0), 0, 2), (Some(1), 1, 1)]);
        let text = moved(&cold, &warm).unwrap();
        assert!(text.starts_with("3 of 4 elements lie elsewhere"), "{text}");
        assert!(text.contains("stored element 1 is `k`[0], after a cold load `q`[1]"), "{text}");
    }

    #[test]
    fn the_same_order_and_other_elements_are_not() {
        let cold = order(&["q", "k"], &[(Some(0), 0, 2), (Some(1), 0, 2)]);
        assert_eq!(moved(&cold, &cold), None);
        let doubled = order(&["q"], &[(Some(0), 0, 2), (Some(0), 0, 2)]);
        assert_eq!(moved(&cold, &doubled), None);
        let unwritten = order(&["q", "k"], &[(Some(0), 0, 2), (Some(1), 1, 1), (None, 0, 1)]);
        assert_eq!(moved(&cold, &unwritten), None);
        let nameless = order(&[], &[(Some(7), 0, 4)]);
        assert_eq!(moved(&cold, &nameless), None);
    }
}
