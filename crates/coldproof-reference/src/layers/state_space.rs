//! A state-space mixer: projection in, convolution and recurrence over paged states, gated norm,
//! projection out.

use coldproof_checkpoint::arch::StateSpace;
use coldproof_contract::words::{Address, Dtype, Policy, SlotKind, SlotName};

use super::{Forward, LayerError};
use crate::kernels::{CausalConv, GatedNorm, StateScan};
use crate::loader::{HookKind, SectionRows, Target};
use crate::models::{Builder, Dims};
use crate::slots::{SlotId, SlotSpec};

/// A state-space mixer. Its convolution reads the view that the mixer has of its child's weight.
#[derive(Clone, Debug)]
pub(crate) struct StateMixer {
    space: StateSpace,
    in_proj: SlotId,
    conv: SlotId,
    conv_bias: Option<SlotId>,
    a: SlotId,
    d: SlotId,
    dt_bias: SlotId,
    norm: SlotId,
    out_proj: SlotId,
    conv_state: SlotId,
    state: SlotId,
}

/// What of a mixer is on one rank.
#[derive(Clone, Copy)]
struct Local {
    heads: usize,
    groups: usize,
    inner: usize,
    convolved: usize,
    projected: usize,
}

impl Local {
    fn of(space: &StateSpace, ranks: u64) -> Self {
        let (heads, groups) = (space.heads / ranks, (space.groups / ranks).max(1));
        let inner = heads * space.head_dim;
        let convolved = inner + 2 * groups * space.state_size;
        Self {
            heads: heads as usize,
            groups: groups as usize,
            inner: inner as usize,
            convolved: convolved as usize,
            projected: (inner + convolved + heads) as usize,
        }
    }
}

impl StateMixer {
    /// The mixer at this path.
    pub(crate) fn declare(builder: &mut Builder<'_>, path: &str, space: &StateSpace) -> Self {
        let local = Local::of(space, builder.shard.ranks);
        let hidden = builder.dims.hidden;
        let rows = SectionRows { rows: space.inner(), units: space.heads };
        let groups = SectionRows { rows: space.group_rows(), units: space.groups };
        let steps = SectionRows { rows: space.heads, units: space.heads };
        let sections = |rows: &[SectionRows]| Target::Sections(rows.to_vec());
        let mut parameter = |name: &str, row: &[u64], (all, own): (u64, usize), target| {
            let name = format!("{path}.{name}");
            let slot = builder.parameter(&name, &[&[own as u64], row].concat());
            builder.sharded(name, &[&[all], row].concat(), slot, target);
            slot
        };
        let projected = [rows, rows, groups, groups, steps];
        let all = (space.projected_rows(), local.projected);
        let in_proj = parameter("in_proj.weight", &[hidden], all, sections(&projected));
        let convolved = (space.conv_rows(), local.convolved);
        let taps = [1, space.kernel];
        let conv = parameter("conv1d.weight", &taps, convolved, sections(&projected[1..4]));
        let conv_bias = space
            .conv_bias
            .then(|| parameter("conv1d.bias", &[], convolved, sections(&projected[1..4])));
        let heads = (space.heads, local.heads);
        let log = parameter("A_log", &[], heads, Target::Column);
        let d = parameter("D", &[], heads, Target::Column);
        let dt_bias = parameter("dt_bias", &[], heads, Target::Column);
        let norm = parameter("norm.weight", &[], (space.inner(), local.inner), Target::Column);
        let out = format!("{path}.out_proj.weight");
        let out_proj = builder.parameter(&out, &[hidden, local.inner as u64]);
        builder.sharded(out, &[hidden, space.inner()], out_proj, Target::Row);
        builder.slots.alias(SlotName(format!("{path}.conv_weights")), conv);
        let inputs = [builder.name(log)];
        let spec =
            SlotSpec::derived(format!("{path}.A"), Dtype::F32, &[local.heads as u64], &inputs);
        let a = builder.slots.declare(spec);
        builder.hook(path, HookKind::Decay { log, a });
        let past = [local.convolved as u64, space.kernel - 1];
        let states = [local.heads as u64, space.head_dim, space.state_size];
        Self {
            space: space.clone(),
            in_proj,
            conv,
            conv_bias,
            a,
            d,
            dt_bias,
            norm,
            out_proj,
            conv_state: declare_states(builder, &format!("{path}/conv_state"), &past),
            state: declare_states(builder, &format!("{path}/ssm_state"), &states),
        }
    }

    /// The layer's output, complete over the ranks.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
    ) -> Result<Address, LayerError> {
        let local = Local::of(&self.space, forward.shard.ranks);
        let (m, hidden) = (forward.batch.rows, forward.dims.hidden as usize);
        let width = local.projected;
        let projected =
            forward.column_parallel(self.in_proj, (x, hidden), (width, "projected_in"), m)?;
        let convolved = self.convolve(forward, projected, local)?;
        let scanned = self.scan(forward, projected, convolved, local)?;
        let normed = self.gated_norm(forward, scanned, projected, local)?;
        forward.row_parallel(self.out_proj, (normed, local.inner), "mixed")
    }

    fn convolve(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        local: Local,
    ) -> Result<Address, LayerError> {
        let m = forward.batch.rows;
        let taps = self.space.kernel as usize;
        let y = forward.buffer(m, local.convolved, "convolved")?;
        let bias = self.conv_bias.map(|bias| forward.slots.address(bias)).transpose()?;
        forward.launch(CausalConv {
            x,
            weight: forward.slots.view_address(self.conv)?,
            bias,
            states: forward.states(self.conv_state, local.convolved * (taps - 1))?,
            y,
            m,
            width: local.projected,
            first: local.inner,
            channels: local.convolved,
            taps,
        })?;
        Ok(y)
    }

    fn scan(
        &self,
        forward: &mut Forward<'_>,
        projected: Address,
        x: Address,
        local: Local,
    ) -> Result<Address, LayerError> {
        let m = forward.batch.rows;
        let (head_dim, state_size) = (self.space.head_dim as usize, self.space.state_size as usize);
        let y = forward.buffer(m, local.inner, "scanned")?;
        forward.launch(StateScan {
            x,
            projected,
            a: forward.slots.address(self.a)?,
            d: forward.slots.address(self.d)?,
            dt_bias: forward.slots.address(self.dt_bias)?,
            states: forward.states(self.state, local.inner * state_size)?,
            y,
            m,
            width: local.projected,
            heads: local.heads,
            groups: local.groups,
            head_dim,
            state_size,
        })?;
        Ok(y)
    }

    fn gated_norm(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        gate: Address,
        local: Local,
    ) -> Result<Address, LayerError> {
        let m = forward.batch.rows;
        let ranks = forward.shard.ranks;
        // Whole groups are on one rank, or one group is on all.
        let shared = self.space.norm_groups == 1;
        let groups = if shared { 1 } else { self.space.norm_groups / ranks };
        let blocks = if shared { Dims::row_blocks(forward.shard) } else { Dims::full_blocks() };
        let y = forward.buffer(m, local.inner, "gated")?;
        forward.launch(GatedNorm {
            x,
            gate,
            weight: forward.slots.address(self.norm)?,
            y,
            m,
            width: local.inner,
            gate_width: local.projected,
            groups: groups as usize,
            blocks,
            sharing: if shared { ranks as usize } else { 1 },
            eps: forward.dims.eps,
        })?;
        Ok(y)
    }
}

/// The states of a layer, one a block of the cache.
fn declare_states(builder: &mut Builder<'_>, name: &str, state: &[u64]) -> SlotId {
    let shape = [&[builder.kv.blocks], state].concat();
    let (kind, policy) = (SlotKind::Scratch, Policy::Invalidate);
    let spec = SlotSpec::unsourced(name.to_owned(), kind, Dtype::F32, &shape, policy);
    builder.paged(spec)
}
