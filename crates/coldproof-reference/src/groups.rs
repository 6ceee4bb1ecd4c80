//! The groups that one rank belongs to: with whom it cuts layers, experts, and the pipeline.

use coldproof_contract::words::{Rank, Topology};

use crate::collective::Collective;

/// One rank's ends of its groups.
#[derive(Debug)]
pub struct Groups {
    /// Ranks that cut every layer among them.
    pub tensor: Collective,
    /// Ranks that hold the same part of every layer, and other experts.
    pub experts: Collective,
    /// The pipeline stage before, then this one.
    pub previous: Option<Collective>,
    /// This pipeline stage, then the one behind.
    pub next: Option<Collective>,
}

impl Groups {
    /// A rank that is alone.
    #[must_use]
    pub fn single() -> Self {
        Self::tensor(Collective::single())
    }

    /// A rank that cuts layers with others, and nothing else.
    #[must_use]
    pub fn tensor(tensor: Collective) -> Self {
        Self { tensor, experts: Collective::single(), previous: None, next: None }
    }

    /// The groups of every rank of one replica of a topology, in rank order: replicas share none.
    #[must_use]
    pub fn of(topology: Topology) -> Vec<Self> {
        let topology = topology.replica();
        let Topology { tp, pp, ep, .. } = topology;
        let mut groups: Vec<Self> = topology.ranks().map(|_| Self::single()).collect();
        let mut meet = |ranks: Vec<Rank>, end: fn(&mut Self, Collective)| {
            for (rank, collective) in ranks.iter().zip(Collective::group(ranks.len())) {
                if let Some(groups) = groups.get_mut(topology.index(*rank) as usize) {
                    end(groups, collective);
                }
            }
        };
        for (pp, ep) in pairs(pp, ep) {
            let ranks = (0..tp).map(|tp| Rank { dp: 0, pp, ep, tp });
            meet(ranks.collect(), |groups, end| groups.tensor = end);
        }
        for (pp, tp) in pairs(pp, tp) {
            let ranks = (0..ep).map(|ep| Rank { dp: 0, pp, ep, tp });
            meet(ranks.collect(), |groups, end| groups.experts = end);
        }
        for (ep, tp) in pairs(ep, tp) {
            for pp in 1..pp {
                let ranks = vec![Rank { dp: 0, pp: pp - 1, ep, tp }, Rank { dp: 0, pp, ep, tp }];
                meet(ranks, |groups, end| match end.rank() {
                    0 => groups.next = Some(end),
                    _ => groups.previous = Some(end),
                });
            }
        }
        groups
    }

    /// Tells the ranks of all groups that this one is lost: their waits end at once.
    pub fn abandon(&self) {
        let pipeline = self.previous.iter().chain(&self.next);
        [&self.tensor, &self.experts].into_iter().chain(pipeline).for_each(Collective::abandon);
    }
}

fn pairs(first: u32, second: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..first).flat_map(move |a| (0..second).map(move |b| (a, b)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn every_rank_meets_those_that_share_all_but_one_coordinate() {
        let topology = Topology { tp: 2, pp: 3, ep: 2, dp: 1 };
        let all = Groups::of(topology);
        thread::scope(|scope| {
            for (rank, groups) in topology.ranks().zip(&all) {
                scope.spawn(move || {
                    let own = topology.index(rank) as f32;
                    let met = |end: &Collective| -> Vec<f32> {
                        let never = AtomicBool::new(false);
                        let all = end.exchange("x", vec![own], None, &never).unwrap();
                        all.iter().flatten().copied().collect()
                    };
                    let index = |rank: Rank| topology.index(rank) as f32;
                    let tensor = (0..2).map(|tp| index(Rank { tp, ..rank })).collect::<Vec<_>>();
                    assert_eq!(met(&groups.tensor), tensor);
                    let experts = (0..2).map(|ep| index(Rank { ep, ..rank })).collect::<Vec<_>>();
                    assert_eq!(met(&groups.experts), experts);
                    // Stage by stage, as a forward goes.
                    assert_eq!(groups.previous.is_some(), rank.pp > 0);
                    assert_eq!(groups.next.is_some(), rank.pp < 2);
                    if let Some(end) = &groups.previous {
                        let before = index(Rank { pp: rank.pp - 1, ..rank });
                        assert_eq!(met(end), [before, own]);
                    }
                    if let Some(end) = &groups.next {
                        let behind = index(Rank { pp: rank.pp + 1, ..rank });
                        assert_eq!(met(end), [own, behind]);
                    }
                });
            }
        });
    }
}
