//! The one seam to an accelerator.

use std::str::FromStr;

use coldproof_contract::words::{Address, ByteRange, Hex128};

use crate::DeviceError;
use crate::census::Node;
use crate::cuda::Cuda;
use crate::digest::Table;

/// A `CUgraph` of this process, as an integer: `torch.cuda.CUDAGraph(keep_graph=True)` gives it
/// under `raw_cuda_graph()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphHandle(pub(crate) u64);

impl GraphHandle {
    /// Takes an integer for a graph.
    ///
    /// # Safety
    /// It is a `CUgraph` of this process, which lives for as long as the handle is used.
    #[must_use]
    #[expect(unsafe_code, reason = "the driver follows the handle")]
    pub const unsafe fn new(graph: u64) -> Self {
        Self(graph)
    }

    /// The integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A `CUstream` of this process, as an integer; the default one is the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamHandle(pub(crate) u64);

impl StreamHandle {
    /// Takes an integer for a stream; 0 is the default one.
    ///
    /// # Safety
    /// It is 0 or a `CUstream` of this process, which lives for as long as the handle is used.
    #[must_use]
    #[expect(unsafe_code, reason = "the driver follows the handle")]
    pub const unsafe fn new(stream: u64) -> Self {
        Self(stream)
    }
}

/// Whose driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// NVIDIA's, through `libcuda`.
    Cuda,
    /// AMD's: not covered.
    Rocm,
}

impl FromStr for Platform {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        match name {
            "cuda" => Ok(Self::Cuda),
            "rocm" => Ok(Self::Rocm),
            _ => Err(DeviceError::UnknownPlatform { name: name.to_owned() }),
        }
    }
}

/// Digests of the tensors of one table, ready to run again and again.
pub trait PreparedDigests: Send + std::fmt::Debug {
    /// Digests every tensor on the device, behind what `stream` holds, and waits for the sums: 16
    /// bytes a tensor are all that travels. Other streams must not write the tensors meanwhile.
    ///
    /// # Errors
    /// A call that the driver refused.
    fn run(&mut self, stream: StreamHandle) -> Result<Vec<Hex128>, DeviceError>;

    /// Device time of the last run's launch, in milliseconds.
    ///
    /// # Errors
    /// A call that the driver refused; before the first run.
    fn last_ms(&self) -> Result<f32, DeviceError>;
}

/// An accelerator that can be read.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// What it is, in one line.
    fn describe(&self) -> String;

    /// Waits for everything that was launched on the device: a commit does so before it verifies.
    ///
    /// # Errors
    /// A call that the driver refused, which may be an earlier launch's fault.
    fn synchronise(&self) -> Result<(), DeviceError>;

    /// The allocation that holds an address, as the driver has it; nothing where it has none.
    fn allocation(&self, address: Address) -> Option<ByteRange>;

    /// Copies device memory to the host. It waits for no stream that does not wait for others.
    ///
    /// # Errors
    /// A call that the driver refused.
    fn read(&self, address: Address, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Every node of a graph, those of its child graphs in place, with the bytes of its arguments.
    ///
    /// # Errors
    /// A call that the driver refused.
    fn nodes(&self, graph: GraphHandle) -> Result<Vec<Node>, DeviceError>;

    /// The graph that a stream records now.
    ///
    /// # Errors
    /// A stream that captures nothing.
    fn capture_under_way(&self, stream: StreamHandle) -> Result<GraphHandle, DeviceError>;

    /// Loads a table of tensors, for one launch over all of them.
    ///
    /// # Errors
    /// A tensor that does not lie on this device; a call that the driver refused.
    fn prepare(&self, table: &Table) -> Result<Box<dyn PreparedDigests>, DeviceError>;
}

/// Opens the device of this number, counted from 0 in the driver's order.
///
/// # Errors
/// No driver, no such device, or a platform that is not covered.
pub fn open(platform: Platform, ordinal: u32) -> Result<Box<dyn Device>, DeviceError> {
    match platform {
        Platform::Cuda => Ok(Box::new(Cuda::open(ordinal)?)),
        Platform::Rocm => Err(DeviceError::NotCovered {
            platform: "ROCm",
            why: "HIP gives no access to the arguments of a captured kernel node",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_one_line_says_so() {
        let Err(error) = open(Platform::Cuda, u32::MAX) else { panic!("there is no such device") };
        let text = error.to_string();
        assert!(text.starts_with("no CUDA driver: "), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn rocm_is_not_covered_and_says_why() {
        let Err(error) = open(Platform::Rocm, 0) else { panic!("ROCm is not covered") };
        assert!(error.to_string().starts_with("NOT COVERED: ROCm ("), "{error}");
    }

    #[test]
    fn a_platform_is_taken_by_its_name_alone() {
        assert_eq!("cuda".parse(), Ok(Platform::Cuda));
        assert_eq!("rocm".parse(), Ok(Platform::Rocm));
        let error = "ROCm".parse::<Platform>().unwrap_err();
        assert_eq!(error.to_string(), "`ROCm` is no platform; pass `cuda` or `rocm`");
    }
}
