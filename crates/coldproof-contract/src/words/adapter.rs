//! Names of what an engine holds of an adapter. All begin with `adapter.NAME/`, so that none is one
//! of the base model's.

use serde::{Deserialize, Serialize};

use super::SlotName;

/// What stands before an adapter's name.
const ADAPTER: &str = "adapter.";

/// A factor of what an adapter adds to a product: `scale · B (A x)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Factor {
    /// `[rank, inputs]`.
    A,
    /// `[outputs, rank]`.
    B,
}

impl Factor {
    /// The name that PEFT gives it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "lora_A",
            Self::B => "lora_B",
        }
    }
}

/// The source that a tensor of an adapter's file is:
/// `adapter.NAME/base_model.model.….lora_A.weight`.
#[must_use]
pub fn adapter_source(adapter: &str, tensor: &str) -> String {
    format!("{ADAPTER}{adapter}/{tensor}")
}

impl SlotName {
    /// The slot of one factor for one slice of a weight's rows. A weight that fuses several modules
    /// has a slice for each, in the order of its rows: 0, 1 and 2 of a qkv projection are q, k and
    /// v. `adapter.NAME/model.layers.0.self_attn.qkv_proj.lora_A.0`.
    #[must_use]
    pub fn of_factor(adapter: &str, weight: &Self, slice: usize, factor: Factor) -> Self {
        let module = weight.0.strip_suffix(".weight").unwrap_or(&weight.0);
        Self(adapter_source(adapter, &format!("{module}.{}.{slice}", factor.name())))
    }

    /// The slot of the scale: F32 `[1]`, derived from the adapter's configuration.
    #[must_use]
    pub fn of_scaling(adapter: &str) -> Self {
        Self(adapter_source(adapter, "scaling"))
    }

    /// The adapter that the slot is of; none for one of the base model.
    #[must_use]
    pub fn adapter(&self) -> Option<&str> {
        self.0.strip_prefix(ADAPTER)?.rsplit_once('/').map(|(adapter, _)| adapter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_an_adapter_say_whose_they_are() {
        let weight = SlotName::from("model.layers.0.self_attn.qkv_proj.weight");
        let factor = SlotName::of_factor("org/name.v1", &weight, 2, Factor::B);
        let named = "adapter.org/name.v1/model.layers.0.self_attn.qkv_proj.lora_B.2";
        assert_eq!(factor.0, named);
        assert_eq!(factor.adapter(), Some("org/name.v1"));
        assert_eq!(SlotName::of_scaling("a").adapter(), Some("a"));
        assert_eq!(weight.adapter(), None);
        let stack = SlotName::from("model.layers.0.mlp.experts.w13_weight");
        let factor = SlotName::of_factor("a", &stack, 0, Factor::A);
        assert_eq!(factor.0, "adapter.a/model.layers.0.mlp.experts.w13_weight.lora_A.0");
    }
}
