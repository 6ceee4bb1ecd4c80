//! The products of one rank that an adapter is added to, and which part of a module's factors each
//! of them takes. Both follow from where the module's weight goes.

use std::collections::BTreeMap;

use coldproof_contract::words::{Factor, Fragment, Span};

use crate::kernels::ExpertStage;
use crate::loader::{Catalogue, Move, Source, Target, moves};
use crate::models::Dims;
use crate::slots::{SlotId, Slots};

/// The experts of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stack {
    /// Experts on this rank.
    pub(crate) experts: usize,
    /// Which of their products.
    pub(crate) stage: ExpertStage,
}

/// Outputs of one product on one rank that one pair of factors is added to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The weight of the product.
    pub(crate) slot: SlotId,
    /// Outputs of the product.
    pub(crate) width: usize,
    /// Which slice of the weight's rows.
    pub(crate) slice: usize,
    /// The first output that the factors change.
    pub(crate) at: usize,
    /// How many they change: rows of B.
    pub(crate) n: usize,
    /// Inputs: columns of A.
    pub(crate) k: usize,
    /// Blocks of them.
    pub(crate) blocks: usize,
    /// Whether each rank has a part of the inputs.
    pub(crate) split: bool,
    /// Where the product is of experts, each with factors of its own.
    pub(crate) stack: Option<Stack>,
}

impl Site {
    /// Shape of one factor of this rank, with a leading axis where it is of experts.
    pub(crate) fn shape(&self, factor: Factor, rank: u64) -> Vec<u64> {
        let matrix = match factor {
            Factor::A => [rank, self.k as u64],
            Factor::B => [self.n as u64, rank],
        };
        self.stack.map(|stack| stack.experts as u64).into_iter().chain(matrix).collect()
    }

    /// Matrices of each factor.
    pub(crate) fn matrices(&self) -> usize {
        self.stack.map_or(1, |stack| stack.experts)
    }
}

/// The part of a module's factors that is of this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Position in [`Sites::all`].
    pub(crate) site: usize,
    /// Which matrix of the site.
    pub(crate) place: usize,
    /// Rows of B.
    pub(crate) rows: Span,
    /// Columns of A.
    pub(crate) columns: Span,
}

impl Cut {
    /// Which elements of a factor of this rank are which of its slot's.
    pub(crate) fn piece(&self, factor: Factor, stacked: bool, rank: u64) -> Move {
        let all = Span::new(0, rank);
        let from_first = |span: Span| Span::new(0, span.len());
        let (source, slot) = match factor {
            Factor::A => ([all, self.columns], [all, from_first(self.columns)]),
            Factor::B => ([self.rows, all], [from_first(self.rows), all]),
        };
        let place = self.place as u64;
        let expert = stacked.then(|| Span::new(place, place + 1));
        let slot = expert.into_iter().chain(slot).collect();
        Move { source: Fragment(source.to_vec()), slot: Fragment(slot) }
    }
}

/// Every site of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sites {
    /// In the order of their modules' names.
    pub(crate) all: Vec<Site>,
    /// By module.
    pub(crate) cuts: BTreeMap<String, Cut>,
}

/// Sources of these slots, by their modules' names.
pub(super) fn adapted_sources<'a>(
    catalogue: &'a Catalogue,
    adapted: &'a [SlotId],
) -> impl Iterator<Item = (&'a str, &'a Source)> {
    let weights = catalogue
        .sources()
        .filter(|(_, source)| source.shape.len() == 2 && adapted.contains(&source.slot));
    weights.filter_map(|(name, source)| Some((name.strip_suffix(".weight")?, source)))
}

impl Sites {
    /// The sites of these slots.
    pub(crate) fn of(slots: &Slots, catalogue: &Catalogue, adapted: &[SlotId]) -> Self {
        let mut sites = Self::default();
        let mut known: BTreeMap<(SlotId, u64), usize> = BTreeMap::new();
        for (module, source) in adapted_sources(catalogue, adapted) {
            // A weight of two axes goes to one place on each rank.
            for step in moves(&source.target, &source.shape, source.shard) {
                let (slot_rows, place) = match step.slot.0.as_slice() {
                    [rows, _] => (*rows, 0),
                    [expert, rows, _] => (*rows, expert.start as usize),
                    _ => continue,
                };
                let (rows, columns) = (step.source.0[0], step.source.0[1]);
                let site = *known.entry((source.slot, slot_rows.start)).or_insert_with(|| {
                    sites.all.push(site_of(source, slots, slot_rows, columns));
                    sites.all.len() - 1
                });
                sites.cuts.insert(module.to_owned(), Cut { site, place, rows, columns });
            }
        }
        sites.count_slices();
        sites
    }

    /// Numbers the sites of each slot by their first rows.
    fn count_slices(&mut self) {
        let firsts: Vec<(SlotId, usize)> = self.all.iter().map(|s| (s.slot, s.at)).collect();
        for site in &mut self.all {
            let before = |(slot, at): &&(SlotId, usize)| *slot == site.slot && *at < site.at;
            site.slice = firsts.iter().filter(before).count();
        }
    }
}

fn site_of(source: &Source, slots: &Slots, rows: Span, columns: Span) -> Site {
    let shape = &slots[source.slot].spec.shape;
    let stage = match source.target {
        Target::ExpertGateUp { .. } => Some(ExpertStage::GateUp),
        Target::ExpertRow { .. } => Some(ExpertStage::Down),
        _ => None,
    };
    let split = matches!(source.target, Target::Row | Target::ExpertRow { .. });
    let axis = usize::from(stage.is_some());
    Site {
        slot: source.slot,
        width: shape[axis] as usize,
        slice: 0,
        at: rows.start as usize,
        n: rows.len() as usize,
        k: columns.len() as usize,
        blocks: if split { Dims::row_blocks(source.shard) } else { Dims::full_blocks() },
        split,
        stack: stage.map(|stage| Stack { experts: shape[0] as usize, stage }),
    }
}
