//! An accelerator: what its captured graphs retain, and digests of memory where it lies.
#![expect(unsafe_code, reason = "Python passes graphs and streams as integers")]

use std::sync::{Mutex, PoisonError};

use coldproof_contract::words::{Address, ByteRange, Hex128};
use coldproof_device::census::{Census, census};
use coldproof_device::digest::{DEFAULT_TILE_BLOCKS, Table, TensorView};
use coldproof_device::{
    Device, DeviceError, GraphHandle, Platform, PreparedDigests, StreamHandle, open,
};
use pyo3::prelude::*;

use crate::digest::dtype_of;
use crate::errors::Raise;

/// A tensor as Python passes it: name, element type, shape, stride, address.
type TensorTuple = (String, String, Vec<u64>, Vec<i64>, u64);
/// An address of a node: node, argument, byte offset in it, address, place in a table.
type AddressTuple = (u32, u32, u32, u64, Option<u64>);
/// A node: path, kind, kernel, arguments, why it could not be read.
type NodeTuple = (Vec<u32>, &'static str, String, usize, Option<String>);

/// One line about a device: its name and driver, or what is missing. Never raises.
#[pyfunction]
#[pyo3(signature = (ordinal = 0, platform = "cuda"))]
pub(crate) fn device_status(ordinal: u32, platform: &str) -> String {
    match platform.parse().and_then(|platform: Platform| open(platform, ordinal)) {
        Ok(device) => device.describe(),
        Err(error) => error.to_string(),
    }
}

fn raise(py: Python<'_>) -> impl Fn(DeviceError) -> PyErr + '_ {
    move |error| Raise::Device.with(py, error)
}

/// A device, opened by its number in the driver's order.
#[pyclass(frozen, name = "Device", module = "coldproof")]
#[derive(Debug)]
pub(crate) struct DeviceReader(Box<dyn Device>);

#[pymethods]
impl DeviceReader {
    #[new]
    #[pyo3(signature = (ordinal = 0, platform = "cuda"))]
    fn new(py: Python<'_>, ordinal: u32, platform: &str) -> PyResult<Self> {
        let opened = platform.parse().and_then(|platform: Platform| open(platform, ordinal));
        opened.map(Self).map_err(raise(py))
    }

    /// Its name and driver, in one line.
    fn describe(&self) -> String {
        self.0.describe()
    }

    /// Waits for everything that was launched on it: a commit does so before it verifies.
    fn synchronise(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.synchronise()).map_err(raise(py))
    }

    /// The driver's allocation around an address, as (address, bytes), or None where no memory is.
    fn allocation(&self, address: u64) -> Option<(u64, u64)> {
        self.0.allocation(Address(address)).map(|range| (range.address.0, range.bytes))
    }

    /// The handle of the graph that a stream records now. `stream` is a raw `CUstream`, which the
    /// caller keeps alive.
    fn capture_under_way(&self, py: Python<'_>, stream: u64) -> PyResult<u64> {
        // SAFETY: the caller keeps the stream, as the method asks.
        let stream = unsafe { StreamHandle::new(stream) };
        let graph = self.0.capture_under_way(stream).map_err(raise(py))?;
        Ok(graph.get())
    }

    /// What a graph retains. `graph` is a raw `CUgraph`, which the caller keeps alive; `known` has
    /// (address, bytes) of memory that is or was there. `table_bytes` are read behind each address;
    /// 0 follows no table, as it must be while a capture is under way.
    #[pyo3(signature = (graph, known = Vec::new(), table_bytes = 4096))]
    fn census(
        &self,
        py: Python<'_>,
        graph: u64,
        known: Vec<(u64, u64)>,
        table_bytes: u64,
    ) -> PyResult<GraphCensus> {
        let known: Vec<ByteRange> = known.into_iter().map(range).collect();
        // SAFETY: the caller keeps the graph, as the method asks.
        let graph = unsafe { GraphHandle::new(graph) };
        let found = py.detach(|| census(&*self.0, graph, &known, table_bytes));
        found.map(GraphCensus).map_err(raise(py))
    }

    /// Loads tensors for one launch over all of them, each as (name, dtype, shape, stride, address)
    /// with a dtype as in safetensors. They stay where they are until the plan is dropped.
    #[pyo3(signature = (tensors, tile_blocks = DEFAULT_TILE_BLOCKS))]
    fn digests(
        &self,
        py: Python<'_>,
        tensors: Vec<TensorTuple>,
        tile_blocks: u64,
    ) -> PyResult<DigestPlan> {
        let mut table = Table::new(tile_blocks);
        for (name, dtype, shape, stride, address) in tensors {
            let dtype = dtype_of(&dtype).ok_or_else(|| {
                let text = format!("`{dtype}` of `{name}` is no element type that is digested");
                Raise::Digest.with(py, text)
            })?;
            let view = TensorView { address: Address(address), dtype, shape, stride };
            table.push(&name, &view).map_err(|error| Raise::Digest.with(py, error))?;
        }
        let prepared = py.detach(|| self.0.prepare(&table)).map_err(raise(py))?;
        Ok(DigestPlan {
            prepared: Mutex::new(prepared),
            bytes: table.bytes(),
            tensors: table.len(),
        })
    }
}

/// A range as Python passes it.
pub(crate) fn range((address, bytes): (u64, u64)) -> ByteRange {
    ByteRange { address: Address(address), bytes }
}

/// Tensors whose digests can be taken again and again.
#[pyclass(frozen, module = "coldproof")]
#[derive(Debug)]
pub(crate) struct DigestPlan {
    prepared: Mutex<Box<dyn PreparedDigests>>,
    bytes: u64,
    tensors: usize,
}

#[pymethods]
impl DigestPlan {
    /// The digest of each tensor, as 32 hexadecimal digits, in the order in which they were given:
    /// behind what `stream` holds, a raw `CUstream` that the caller keeps alive, and waited for.
    #[pyo3(signature = (stream = 0))]
    fn run(&self, py: Python<'_>, stream: u64) -> PyResult<Vec<String>> {
        // SAFETY: the caller keeps the stream, as the method asks.
        let stream = unsafe { StreamHandle::new(stream) };
        let found = py.detach(|| {
            let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
            prepared.run(stream)
        });
        let digits = |digests: Vec<Hex128>| digests.iter().map(Hex128::to_string).collect();
        found.map(digits).map_err(raise(py))
    }

    /// Milliseconds of device time that the last run's launch took.
    fn last_ms(&self, py: Python<'_>) -> PyResult<f32> {
        let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        prepared.last_ms().map_err(raise(py))
    }

    /// Bytes of all tensors.
    #[getter]
    const fn bytes(&self) -> u64 {
        self.bytes
    }

    const fn __len__(&self) -> usize {
        self.tensors
    }
}

/// What one graph retains.
#[pyclass(frozen, name = "Census", module = "coldproof")]
#[derive(Debug)]
pub(crate) struct GraphCensus(Census);

#[pymethods]
impl GraphCensus {
    /// Every node as (path, kind, kernel, arguments, why it could not be read or None).
    #[getter]
    fn nodes(&self) -> Vec<NodeTuple> {
        let nodes = self.0.nodes.iter().map(|node| {
            let (path, kernel) = (node.path.clone(), node.kernel.clone());
            (path, node.kind.name(), kernel, node.arguments.len(), node.unread.clone())
        });
        nodes.collect()
    }

    /// Every address as (node, argument, byte in it, address, place in a table or None).
    #[getter]
    fn addresses(&self) -> Vec<AddressTuple> {
        let tuple = |found: &coldproof_device::census::NodeAddress| {
            let through = found.through.map(|place| place.0);
            (found.node, found.argument, found.offset, found.address.0, through)
        };
        self.0.addresses.iter().map(tuple).collect()
    }

    /// The driver's allocations under addresses that the caller did not know, as (address, bytes).
    #[getter]
    fn others(&self) -> Vec<(u64, u64)> {
        self.0.others.iter().map(|range| (range.address.0, range.bytes)).collect()
    }

    /// Addresses behind which no table could be looked for: no memory is there any more, or it
    /// cannot be read and may hold any address.
    #[getter]
    fn unfollowed(&self) -> Vec<u64> {
        self.0.unfollowed.iter().map(|address| address.0).collect()
    }

    fn __len__(&self) -> usize {
        self.0.addresses.len()
    }

    fn __repr__(&self) -> String {
        format!("Census({} nodes, {} addresses)", self.0.nodes.len(), self.0.addresses.len())
    }
}
