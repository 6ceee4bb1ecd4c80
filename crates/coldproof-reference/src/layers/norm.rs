//! Root-mean-square norms. The final one reads an f32 copy that post-load makes.

use coldproof_checkpoint::arch::Family;
use coldproof_contract::words::{Address, Dtype};

use super::{Forward, LayerError};
use crate::kernels::{NormWeight, RmsNorm};
use crate::loader::HookKind;
use crate::models::Builder;
use crate::slots::{SlotId, SlotSpec};

/// A norm within a layer.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    weight: SlotId,
}

impl Norm {
    /// A norm of the residual stream with its weight at `path`.
    pub(crate) fn declare(builder: &mut Builder<'_>, path: &str) -> Self {
        Self { weight: builder.replicated(&format!("{path}.weight"), &[builder.dims.hidden]) }
    }

    /// The normed residual stream.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
    ) -> Result<Address, LayerError> {
        let weight = stored(forward, self.weight)?;
        launch(forward, x, weight, forward.batch.rows)
    }
}

/// The norm before the output projection.
#[derive(Clone, Debug)]
pub(crate) struct FinalNorm {
    widened: SlotId,
}

impl FinalNorm {
    /// The weight, and the kernel's copy of it in f32.
    pub(crate) fn declare(builder: &mut Builder<'_>) -> Self {
        let hidden = builder.dims.hidden;
        let path = match builder.dims.family {
            Family::Mamba2 => "backbone.norm_f",
            Family::NemotronH => "model.norm_f",
            _ => "model.norm",
        };
        let weight = builder.replicated(&format!("{path}.weight"), &[hidden]);
        let inputs = [builder.name(weight)];
        let name = format!("{path}/kernel.weight_f32");
        let spec = SlotSpec::derived(name, Dtype::F32, &[hidden], &inputs);
        let widened = builder.slots.declare(spec);
        let (less_one, kernel) = (builder.dims.gemma_norms, "rms_norm_f32");
        builder.hook(path, HookKind::Widen { weight, copy: widened, less_one, kernel });
        Self { widened }
    }

    /// `rows` normed rows.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        x: Address,
        rows: usize,
    ) -> Result<Address, LayerError> {
        let weight = NormWeight::F32(forward.slots.address(self.widened)?);
        launch(forward, x, weight, rows)
    }
}

/// A weight as checkpoints of this model store it.
pub(super) fn stored(forward: &Forward<'_>, weight: SlotId) -> Result<NormWeight, LayerError> {
    let address = forward.slots.address(weight)?;
    Ok(if forward.dims.gemma_norms {
        NormWeight::LessOne(address)
    } else {
        NormWeight::Bf16(address)
    })
}

fn launch(
    forward: &mut Forward<'_>,
    x: Address,
    weight: NormWeight,
    rows: usize,
) -> Result<Address, LayerError> {
    let hidden = forward.dims.hidden as usize;
    let y = forward.buffer(rows, hidden, "norm")?;
    forward.launch(RmsNorm { x, weight, y, m: rows, hidden, eps: forward.dims.eps })?;
    Ok(y)
}
