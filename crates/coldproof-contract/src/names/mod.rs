//! Category 6, names and keys: every name resolves, completely and unambiguously.

mod check;
mod rules;

pub(crate) use check::check;
pub use rules::{
    KeyAccount, KeyClass, KeyError, KeyManifest, KeyManifestDraft, KeyManifestError, KeyPattern,
};
