//! What an adapter's configuration says.

use crate::json;

use super::ConfigError;
use super::fields::Fields;

/// `r` of an `adapter_config.json`.
///
/// # Errors
/// Malformed JSON, no rank, or one that is none.
pub(crate) fn adapter_rank(text: &[u8]) -> Result<u64, ConfigError> {
    let value = json::parse(text)?;
    Fields::root(&value)?.required_size("r")
}
