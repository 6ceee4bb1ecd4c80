//! Digests over memory, without a copy.

use coldproof_contract::digest::{self, SourceKey};
use coldproof_contract::words::Dtype;
use pyo3::prelude::*;

use crate::errors::Raise;
use crate::memory::Range;

/// The digest of raw bytes, as 32 hexadecimal digits.
///
/// The caller keeps `nbytes` bytes of this process's memory at `address` readable until it returns.
#[pyfunction]
pub(crate) fn content_digest(py: Python<'_>, address: u64, nbytes: u64) -> PyResult<String> {
    let range = Range::new(py, address, nbytes)?;
    Ok(py.detach(|| digest::content(range.as_slice())).to_string())
}

/// The digest of a named source (R61), as 32 hexadecimal digits: what `coldproof digest` says of
/// the same tensor in a file.
///
/// `dtype` is spelled as in safetensors; the bytes are row-major and little-endian. The caller
/// keeps them readable until it returns.
#[pyfunction]
pub(crate) fn source_digest(
    py: Python<'_>,
    name: &str,
    dtype: &str,
    shape: Vec<u64>,
    address: u64,
    nbytes: u64,
) -> PyResult<String> {
    let dtype = dtype_of(dtype).ok_or_else(|| {
        let text = format!("`{dtype}` is no element type that coldproof digests; spell it as BF16");
        Raise::Digest.with(py, text)
    })?;
    let key = SourceKey::new(name, dtype, &shape).map_err(|e| Raise::Digest.with(py, e))?;
    let range = Range::new(py, address, nbytes)?;
    let digest = py.detach(|| digest::digest_whole(&key, range.as_slice()));
    digest.map(|digest| digest.to_string()).map_err(|error| Raise::Digest.with(py, error))
}

/// The element type of a safetensors spelling.
pub(crate) fn dtype_of(name: &str) -> Option<Dtype> {
    serde_json::from_value(serde_json::Value::from(name)).ok()
}
