//! Slots read back next to the memory, for an engine that is written in Python.

use coldproof_contract::words::ByteRange;
use coldproof_lanes::engine::{EngineError, ReadBack, ReadBackRequest, Reply};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::Raise;
use crate::memory::Range;

/// Protocol addresses, and the memory that they stand for.
struct Ranges(Vec<(u64, Range)>);

impl Ranges {
    /// The bytes of a range that lies within one of these.
    fn read(&self, wanted: ByteRange) -> Reply<Vec<u8>> {
        let start = wanted.address.0;
        let found = self.0.iter().find_map(|&(first, memory)| {
            let from = usize::try_from(start.checked_sub(first)?).ok()?;
            let to = from.checked_add(usize::try_from(wanted.bytes).ok()?)?;
            memory.as_slice().get(from..to)
        });
        found.map(<[u8]>::to_vec).ok_or_else(|| EngineError::Refused {
            text: format!("no memory was named for {} bytes at {}", wanted.bytes, wanted.address),
        })
    }
}

/// Reads slots back to logical order and to their sources' coordinates.
///
/// `requests` and the result are the JSON lists of the engine protocol (`docs/adapters.md`).
/// `ranges` says which memory protocol addresses stand for: (protocol address, pointer, bytes). The
/// caller keeps that memory readable until it returns. An address outside of them gives a read-back
/// without content.
#[pyfunction]
pub(crate) fn read_back<'py>(
    py: Python<'py>,
    requests: &[u8],
    ranges: Vec<(u64, u64, u64)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let requests: Vec<ReadBackRequest> = serde_json::from_slice(requests)
        .map_err(|e| Raise::Protocol.with(py, format!("no list of read-back requests: {e}")))?;
    if let Some(request) = requests.iter().find(|request| !is_addressable(request)) {
        let text = format!("a slot of shape {:?} is too large", request.logical_shape);
        return Err(Raise::Protocol.with(py, text));
    }
    let memory = |(first, pointer, bytes)| Ok((first, Range::new(py, pointer, bytes)?));
    let ranges = Ranges(ranges.into_iter().map(memory).collect::<PyResult<_>>()?);
    let replies = py.detach(|| {
        let run =
            |request| coldproof_lanes::read_back::run(request, &mut |range| ranges.read(range));
        requests.iter().map(run).collect::<Reply<Vec<ReadBack>>>()
    });
    let replies = replies.map_err(|error| Raise::Protocol.with(py, error))?;
    let text = serde_json::to_vec(&replies).map_err(|error| Raise::Protocol.with(py, error))?;
    Ok(PyBytes::new(py, &text))
}

/// Whether a slot's bytes fit 63 bits, whatever order its axes are multiplied in.
fn is_addressable(request: &ReadBackRequest) -> bool {
    let mut extents = request.logical_shape.iter().map(|&extent| extent.max(1));
    let bytes = extents.try_fold(request.dtype.bytes(), |bytes, extent| bytes.checked_mul(extent));
    bytes.is_some_and(|bytes| bytes <= i64::MAX.unsigned_abs())
}
