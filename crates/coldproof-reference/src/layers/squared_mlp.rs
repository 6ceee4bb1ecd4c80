//! A projection without a gate: `down(max(up(x), 0)²)`.

use coldproof_contract::words::Address;

use super::{Forward, LayerError};
use crate::kernels::SquaredRelu;
use crate::loader::Target;
use crate::models::Builder;
use crate::slots::SlotId;

/// Up and down.
#[derive(Clone, Debug)]
pub(crate) struct SquaredMlp {
    up: SlotId,
    down: SlotId,
}

impl SquaredMlp {
    /// The projections at this path.
    pub(crate) fn declare(builder: &mut Builder<'_>, path: &str) -> Self {
        let (inner, hidden) = (builder.dims.intermediate, builder.dims.hidden);
        let local = inner / builder.shard.ranks;
        let name = format!("{path}.up_proj.weight");
        let up = builder.parameter(&name, &[local, hidden]);
        builder.sharded(name, &[inner, hidden], up, Target::Column);
        let name = format!("{path}.down_proj.weight");
        let down = builder.parameter(&name, &[hidden, local]);
        builder.sharded(name, &[hidden, inner], down, Target::Row);
        [up, down].into_iter().for_each(|weight| builder.adapts(weight));
        Self { up, down }
    }

    /// The layer's output, complete over the ranks.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
    ) -> Result<Address, LayerError> {
        let (m, hidden) = (forward.batch.rows, forward.dims.hidden as usize);
        let width = (forward.dims.intermediate / forward.shard.ranks) as usize;
        let inner = forward.column_parallel(self.up, (x, hidden), (width, "inner"), m)?;
        forward.launch(SquaredRelu { y: inner, m, width })?;
        forward.row_parallel(self.down, (inner, width), "fed")
    }
}
