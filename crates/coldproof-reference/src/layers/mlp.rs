//! A gated projection: `down(activation(gate(x)) * up(x))`.

use coldproof_contract::words::Address;

use super::{Forward, LayerError};
use crate::kernels::GatedMul;
use crate::loader::{Half, Target};
use crate::models::Builder;
use crate::slots::SlotId;

/// Fused gate and up, and down.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    gate_up: SlotId,
    down: SlotId,
    inner: u64,
}

impl Mlp {
    /// The projections at `path`, of this inner width.
    pub(crate) fn declare(builder: &mut Builder<'_>, path: &str, inner: u64) -> Self {
        let hidden = builder.dims.hidden;
        let local = inner / builder.shard.ranks;
        let name = format!("{path}.gate_up_proj.weight");
        let gate_up = builder.parameter(&name, &[2 * local, hidden]);
        for (source, half) in [("gate_proj", Half::Gate), ("up_proj", Half::Up)] {
            let source = format!("{path}.{source}.weight");
            builder.sharded(source, &[inner, hidden], gate_up, Target::GateUp(half));
        }
        let name = format!("{path}.down_proj.weight");
        let down = builder.parameter(&name, &[hidden, local]);
        builder.sharded(name, &[hidden, inner], down, Target::Row);
        [gate_up, down].into_iter().for_each(|weight| builder.adapts(weight));
        Self { gate_up, down, inner }
    }

    /// The layer's output, complete over the ranks.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
    ) -> Result<Address, LayerError> {
        let (m, hidden) = (forward.batch.rows, forward.dims.hidden as usize);
        let width = (self.inner / forward.shard.ranks) as usize;
        let gate_up =
            forward.column_parallel(self.gate_up, (x, hidden), (2 * width, "gate_up"), m)?;
        let inner = forward.buffer(m, width, "inner")?;
        let activation = forward.dims.activation;
        forward.launch(GatedMul { activation, gate_up, y: inner, m, width })?;
        forward.row_parallel(self.down, (inner, width), "fed")
    }
}
