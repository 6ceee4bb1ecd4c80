//! Category 3, loader lifecycle: every promised element is applied exactly once, and every layer is
//! finalised once, after everything it needs.

mod bits;
mod check;
mod cover;
mod facts;
mod intervals;
mod ledger;
mod observed;
mod permuted;
mod post_load;
mod promised;
mod rules;

pub(crate) use check::{check, check_claims};
pub use ledger::{Application, Ledger, LedgerError, SlotKey, SourceKey};
pub use post_load::{LayerPlan, PostLoad, PostLoadError, PostLoadPlan, PostLoadPlanError};
pub use rules::{ApplicationIdentity, Manifest, ManifestDraft, ManifestError};
