//! The digest of a checkpoint: all its sources' digests, bound together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::words::{Dtype, Hex128};

use super::key::absorb_identity;

/// The BLAKE3 derivation context of checkpoint digests.
const CONTEXT: &str = "coldproof.digest/1 checkpoint";

/// A source's dtype, shape and digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceDigest {
    /// Element type.
    pub dtype: Dtype,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// Its digest.
    pub digest: Hex128,
}

/// BLAKE3 over the sources in order of their names (by bytes), as 64 lower-case hexadecimal digits.
#[must_use]
pub fn checkpoint_digest(sources: &BTreeMap<String, SourceDigest>) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&(sources.len() as u64).to_le_bytes());
    for (name, source) in sources {
        absorb_identity(&mut hasher, name, source.dtype, &source.shape);
        hasher.update(&source.digest.0.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
