//! A part of a model whose slots and sources have names of their own.

use super::Builder;
use crate::loader::{Shard, Target};
use crate::slots::SlotId;

/// Where the names of a part begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// Of its slots.
    pub(crate) slots: &'static str,
    /// Of its sources, in every spelling, the usual one first.
    pub(crate) sources: &'static [&'static str],
}

impl Names {
    /// A bf16 parameter of this local shape.
    pub(crate) fn parameter(self, builder: &mut Builder<'_>, name: &str, shape: &[u64]) -> SlotId {
        builder.parameter(&format!("{}{name}", self.slots), shape)
    }

    /// A source of this full shape.
    pub(crate) fn source(
        self,
        builder: &mut Builder<'_>,
        (name, shape): (&str, &[u64]),
        slot: SlotId,
        (target, shard): (Target, Shard),
    ) {
        let spelled = |prefix: &&str| format!("{prefix}{name}");
        let mut names = self.sources.iter().map(spelled);
        let Some(usual) = names.next() else { return };
        builder.catalogue.add(usual.clone(), shape, slot, target, shard);
        for other in names {
            builder.catalogue.spell(&usual, other);
        }
    }

    /// A parameter that every rank holds whole, with its source.
    pub(crate) fn replicated(self, builder: &mut Builder<'_>, name: &str, shape: &[u64]) -> SlotId {
        let slot = self.parameter(builder, name, shape);
        self.source(builder, (name, shape), slot, (Target::Replicated, Shard::WHOLE));
        slot
    }
}
