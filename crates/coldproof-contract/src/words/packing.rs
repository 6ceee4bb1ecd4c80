//! How a slot's bytes are laid out against its logical elements.

use serde::{Deserialize, Serialize};

use super::SlotName;

/// The bijection between a slot's logical elements and the order in which it stores them.
///
/// The logical tensor is what placement speaks of (rows of `q`, then `k`, then `v`; experts in
/// ascending id). A slot that is no bijection of its sources is [`Packing::Opaque`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Packing {
    /// Logical order is storage order.
    Plain,
    /// The innermost matrix `[rows, columns]` of each leading index is stored as column panels of
    /// `width`: panel 0 of all rows, then panel 1, and so on; the last panel may be narrower.
    Panels {
        /// Columns of a panel.
        width: u64,
    },
    /// Columns are permuted: stored column `j` holds logical column `permutation[j]`.
    ColumnsPermuted {
        /// The slot that holds the permutation (I32, one entry a column).
        permutation: SlotName,
    },
    /// Not a bijection of sources: compared with a cold load's slot, never with a source.
    Opaque,
}
