//! Where the experts of a model are: on which rank of ep, and at which place of its stack.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where one expert of a layer is; in JSON `[ep, place]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u32, u64)", into = "(u32, u64)")]
pub struct ExpertPlace {
    /// The rank of ep, counted from 0.
    pub ep: u32,
    /// The place in that rank's stack, counted from 0.
    pub place: u64,
}

impl ExpertPlace {
    /// The place at this index where ranks have stacks of `each`, one after another.
    #[must_use]
    pub fn consecutive(index: u64, each: u64) -> Self {
        let each = each.max(1);
        Self { ep: u32::try_from(index / each).unwrap_or(u32::MAX), place: index % each }
    }
}

impl From<(u32, u64)> for ExpertPlace {
    fn from((ep, place): (u32, u64)) -> Self {
        Self { ep, place }
    }
}

impl From<ExpertPlace> for (u32, u64) {
    fn from(ExpertPlace { ep, place }: ExpertPlace) -> Self {
        (ep, place)
    }
}

/// Where the experts of every layer are. An engine starts with version 0, which names no layer:
/// consecutive experts on each rank, as many on each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertPlacement {
    /// Each that is ordered has a higher one than all before it.
    pub version: u64,
    /// By the module that holds the experts: where each of the model's is, by its number.
    pub layers: BTreeMap<String, Vec<ExpertPlace>>,
}

impl ExpertPlacement {
    /// Where the experts of a module are; none where they are consecutive.
    #[must_use]
    pub fn layer(&self, module: &str) -> Option<&[ExpertPlace]> {
        self.layers.get(module).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_a_pair() {
        let layers = BTreeMap::from([("moe".to_owned(), vec![ExpertPlace { ep: 1, place: 0 }])]);
        let placement = ExpertPlacement { version: 2, layers };
        let text = serde_json::to_string(&placement).unwrap();
        assert_eq!(text, r#"{"version":2,"layers":{"moe":[[1,0]]}}"#);
        assert_eq!(serde_json::from_str::<ExpertPlacement>(&text).unwrap(), placement);
    }
}
