//! Compresses the origin of every element into runs, and equal runs into one.

use coldproof_checkpoint::SentinelPlan;
use coldproof_contract::evidence::{OriginRun, OriginsFact};
use coldproof_contract::words::SlotName;

/// Where a slot's elements came from, as evidence has it: (source of the plan, element) of each, or
/// nothing where it has none.
pub(crate) fn fact(
    plan: &SentinelPlan,
    slot: SlotName,
    origins: impl Iterator<Item = Option<(usize, u64)>>,
) -> OriginsFact {
    let (runs, used) = compress(origins);
    let name = |index: usize| plan.sources().get(index).map(|spec| spec.name.clone());
    let sources = used.into_iter().map(|index| name(index).unwrap_or_default()).collect();
    OriginsFact { slot, sources, runs }
}

/// Runs in slot order and the sources that they refer to. `origins` gives (source, element) of
/// every logical element of a slot, or nothing where it has none.
fn compress(origins: impl Iterator<Item = Option<(usize, u64)>>) -> (Vec<OriginRun>, Vec<usize>) {
    let mut sources: Vec<usize> = Vec::new();
    let mut runs: Vec<OriginRun> = Vec::new();
    let mut open: Option<OriginRun> = None;
    for (slot, origin) in origins.enumerate() {
        let slot = slot as u64;
        let source = origin.map(|(source, _)| index_of(&mut sources, source));
        let element = origin.map_or(0, |(_, element)| element);
        match &mut open {
            Some(run) if run.source == source && follows(run, element) => run.length += 1,
            _ => {
                if let Some(run) = open.take() {
                    push(&mut runs, run);
                }
                open = Some(OriginRun {
                    slot,
                    source,
                    element,
                    length: 1,
                    count: 1,
                    slot_step: 0,
                    source_step: 0,
                });
            }
        }
    }
    if let Some(run) = open {
        push(&mut runs, run);
    }
    (runs, sources)
}

fn follows(run: &OriginRun, element: u64) -> bool {
    run.source.is_none() || run.element + run.length == element
}

fn index_of(sources: &mut Vec<usize>, source: usize) -> u32 {
    let known = sources.iter().rposition(|&known| known == source);
    let index = known.unwrap_or_else(|| {
        sources.push(source);
        sources.len() - 1
    });
    index as u32
}

/// Adds a run, or counts it to the one before where it is the next step of it.
fn push(runs: &mut Vec<OriginRun>, run: OriginRun) {
    if let Some(last) = runs.last_mut().filter(|last| alike(last, &run)) {
        let slot_step = (run.slot - last.slot) / last.count;
        let distance = run.element as i64 - last.element as i64;
        let even = distance % last.count as i64 == 0;
        let source_step = distance / last.count as i64;
        let next = last.count == 1
            || (last.slot_step == slot_step && last.source_step == source_step && even);
        if next && slot_step * last.count == run.slot - last.slot {
            (last.slot_step, last.source_step) = (slot_step, source_step);
            last.count += 1;
            return;
        }
    }
    runs.push(run);
}

fn alike(last: &OriginRun, run: &OriginRun) -> bool {
    last.source == run.source && last.length == run.length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(runs: &[OriginRun], sources: &[usize]) -> Vec<Option<(usize, u64)>> {
        let mut all = Vec::new();
        for run in runs {
            for step in 0..run.count {
                assert_eq!(all.len() as u64, run.slot + step * run.slot_step);
                let first = (run.element as i64 + step as i64 * run.source_step) as u64;
                let source = run.source.map(|index| sources[index as usize]);
                all.extend((0..run.length).map(|i| source.map(|source| (source, first + i))));
            }
        }
        all
    }

    #[test]
    fn a_column_shard_is_one_strided_run() {
        let origins: Vec<_> =
            (0..5_u64).flat_map(|row| (4..8).map(move |c| Some((2, row * 8 + c)))).collect();
        let (runs, sources) = compress(origins.iter().copied());
        assert_eq!(runs.len(), 1);
        assert_eq!(expand(&runs, &sources), origins);
    }

    #[test]
    fn anything_survives_the_round_trip() {
        let origins = [
            None,
            None,
            Some((1, 9)),
            Some((1, 3)),
            Some((1, 2)),
            Some((0, 3)),
            None,
            Some((0, 4)),
            Some((0, 6)),
            Some((0, 9)),
        ];
        let (runs, sources) = compress(origins.iter().copied());
        assert_eq!(expand(&runs, &sources), origins);
    }
}
