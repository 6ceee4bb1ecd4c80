//! One simulated device: memory, a stream, a launch trace and its ends of the ranks' groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use coldproof_contract::evidence::{Fact, LaunchFact, RequestStage};
use coldproof_contract::words::{Address, StorageId};

use crate::arena::{Allocation, Arena, ArenaConfig, ArenaError, Pattern, Region};
use crate::collective::{CollectiveError, Contributions};
use crate::graph::{Graph, Node, Stream};
use crate::groups::Groups;
use crate::kernels::{Context, Kernel};
use crate::trace::Trace;

/// What a device reports. All but [`DeviceError::Arena`] and [`DeviceError::Stream`] are sticky:
/// the device is dead, and every later call fails with the same error, as a CUDA context does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A kernel touched an address that no memory backs.
    #[error("illegal access at {address} in kernel `{kernel}`")]
    IllegalAccess {
        /// The kernel.
        kernel: &'static str,
        /// The first address without memory.
        address: Address,
    },
    /// A kernel touched an address that is no multiple of the element size.
    #[error("misaligned access at {address} in kernel `{kernel}`")]
    Misaligned {
        /// The kernel.
        kernel: &'static str,
        /// The address.
        address: Address,
    },
    /// A kernel found an argument that it cannot work with (a device-side assertion).
    #[error("assertion failed in kernel `{kernel}`: {text}")]
    Assert {
        /// The kernel.
        kernel: &'static str,
        /// What it found.
        text: String,
    },
    /// A kernel was still waiting at the deadline, or when the engine was told to stop.
    #[error("kernel `{kernel}` still waits on {address}")]
    Timeout {
        /// The kernel.
        kernel: &'static str,
        /// The address it waits on.
        address: Address,
    },
    /// A kernel was not begun: the deadline had passed, or the engine was told to stop.
    #[error("kernel `{kernel}` was due after the deadline")]
    Late {
        /// The kernel.
        kernel: &'static str,
    },
    /// A collective did not complete.
    #[error("kernel `{kernel}`: {source}")]
    Collective {
        /// The kernel.
        kernel: &'static str,
        /// Why.
        source: CollectiveError,
    },
    /// The arena refused a request of the host.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A capture was begun within a capture, or ended or replayed out of order.
    #[error("{text}")]
    Stream {
        /// What was wrong, and the mend.
        text: &'static str,
    },
}

impl DeviceError {
    /// Whether the device is dead after it.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        !matches!(self, Self::Arena(_) | Self::Stream { .. })
    }
}

/// One rank's device.
#[derive(Debug)]
pub struct Device {
    arena: Arena,
    stream: Stream,
    trace: Trace,
    groups: Groups,
    cancel: Arc<AtomicBool>,
    deadline: Option<Instant>,
    dead: Option<DeviceError>,
}

impl Device {
    /// A device with empty memory. `cancel` ends every wait once it is set.
    ///
    /// # Errors
    /// [`ArenaError::Base`].
    pub fn new(
        config: ArenaConfig,
        groups: Groups,
        cancel: Arc<AtomicBool>,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            arena: Arena::new(config)?,
            stream: Stream::Eager,
            trace: Trace::default(),
            groups,
            cancel,
            deadline: None,
            dead: None,
        })
    }

    /// Until when kernels may wait and begin; nothing for ever. Once it passes, the next launch
    /// kills the device.
    pub const fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// The error that killed the device, if one did.
    #[must_use]
    pub const fn dead(&self) -> Option<&DeviceError> {
        self.dead.as_ref()
    }

    /// This device's rank among those that cut every layer.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.groups.tensor.rank()
    }

    /// This device's ends of its groups.
    #[must_use]
    pub const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Puts in values and takes out those of every rank that holds other experts of the same part.
    ///
    /// # Errors
    /// Any fatal [`DeviceError`]; the device is dead after it and the other ranks are told.
    pub fn exchange_experts(
        &mut self,
        name: &'static str,
        values: Vec<f32>,
    ) -> Result<Contributions, DeviceError> {
        self.alive()?;
        let all = self.groups.experts.exchange(name, values, self.deadline, &self.cancel);
        all.map_err(|source| self.die(DeviceError::Collective { kernel: name, source }))
    }

    /// Runs a kernel, or records it where a capture is going on.
    ///
    /// # Errors
    /// Any fatal [`DeviceError`]; the device is dead after it and the other ranks are told.
    pub fn launch(&mut self, kernel: Kernel) -> Result<(), DeviceError> {
        self.alive()?;
        match &mut self.stream {
            Stream::Capture(graph) => {
                graph.nodes.push(Node { kernel });
                Ok(())
            }
            Stream::Eager => self.execute(&kernel, None),
        }
    }

    /// Begins to record launches as a graph of that name.
    ///
    /// # Errors
    /// [`DeviceError::Stream`] within a capture, or the error of a dead device.
    pub fn begin_capture(&mut self, name: &str) -> Result<(), DeviceError> {
        self.alive()?;
        if matches!(self.stream, Stream::Capture(_)) {
            return Err(DeviceError::Stream { text: "a capture is going on; end it first" });
        }
        self.stream = Stream::capture(name);
        Ok(())
    }

    /// Ends the capture; launches run again.
    ///
    /// # Errors
    /// [`DeviceError::Stream`] where none was begun, or the error of a dead device.
    pub fn end_capture(&mut self) -> Result<Graph, DeviceError> {
        self.alive()?;
        match std::mem::take(&mut self.stream) {
            Stream::Capture(graph) => Ok(graph),
            Stream::Eager => {
                Err(DeviceError::Stream { text: "no capture is going on; begin one first" })
            }
        }
    }

    /// Runs a graph's kernels from the addresses it retains.
    ///
    /// # Errors
    /// As [`Device::launch`]; [`DeviceError::Stream`] within a capture.
    pub fn replay(&mut self, graph: &Graph) -> Result<(), DeviceError> {
        self.alive()?;
        if matches!(self.stream, Stream::Capture(_)) {
            return Err(DeviceError::Stream { text: "a capture is going on; end it first" });
        }
        graph.nodes.iter().try_for_each(|node| self.execute(&node.kernel, Some(&graph.name)))
    }

    /// Ends a graph and frees the activations that it kept.
    ///
    /// # Errors
    /// [`ArenaError::NotLive`], or the error of a dead device.
    pub fn release_graph(&mut self, graph: Graph) -> Result<(), DeviceError> {
        graph.pool.iter().try_for_each(|allocation| self.free(allocation.storage))
    }

    /// A block for an activation: in `runtime`, or within a capture in `graph_pool`, where the
    /// graph keeps it.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    pub fn alloc_activation(
        &mut self,
        bytes: u64,
        purpose: &str,
    ) -> Result<Allocation, DeviceError> {
        self.alive()?;
        match &mut self.stream {
            Stream::Eager => Ok(self.arena.alloc(Region::Runtime, bytes, purpose)?),
            Stream::Capture(graph) => {
                let allocation = self.arena.alloc(Region::GraphPool, bytes, purpose)?;
                graph.pool.push(allocation);
                Ok(allocation)
            }
        }
    }

    /// Gives an activation back; one that a graph keeps stays until the graph is released.
    ///
    /// # Errors
    /// As [`Device::free`].
    pub fn free_activation(&mut self, allocation: Allocation) -> Result<(), DeviceError> {
        match allocation.region {
            Region::GraphPool => self.alive(),
            _ => self.free(allocation.storage),
        }
    }

    /// Hands out a block; its bytes are what lay there before.
    ///
    /// # Errors
    /// [`ArenaError::NotMapped`], [`ArenaError::OutOfMemory`], or the error of a dead device.
    pub fn alloc(
        &mut self,
        region: Region,
        bytes: u64,
        purpose: &str,
    ) -> Result<Allocation, DeviceError> {
        self.alive()?;
        Ok(self.arena.alloc(region, bytes, purpose)?)
    }

    /// Takes a block back.
    ///
    /// # Errors
    /// [`ArenaError::NotLive`], or the error of a dead device.
    pub fn free(&mut self, storage: StorageId) -> Result<(), DeviceError> {
        self.alive()?;
        Ok(self.arena.free(storage)?)
    }

    /// Copies bytes to the host.
    ///
    /// # Errors
    /// [`ArenaError::Unbacked`], or the error of a dead device.
    pub fn read(&self, address: Address, bytes: u64) -> Result<&[u8], DeviceError> {
        self.alive()?;
        Ok(self.arena.read(address, bytes)?)
    }

    /// Copies elements to the host.
    ///
    /// # Errors
    /// [`ArenaError::Unbacked`], [`ArenaError::Misaligned`], or the error of a dead device.
    pub fn view<T: bytemuck::AnyBitPattern>(
        &self,
        address: Address,
        count: usize,
    ) -> Result<&[T], DeviceError> {
        self.alive()?;
        Ok(self.arena.view(address, count)?)
    }

    /// Copies bytes from the host (`bytemuck::cast_slice` makes them of elements).
    ///
    /// # Errors
    /// [`ArenaError::Unbacked`], or the error of a dead device.
    pub fn write(&mut self, address: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.alive()?;
        Ok(self.arena.write(address, bytes)?)
    }

    /// Gives a region's memory back; see [`Arena::unmap`].
    ///
    /// # Errors
    /// [`ArenaError::NotMapped`], or the error of a dead device.
    pub fn unmap(&mut self, region: Region) -> Result<(), DeviceError> {
        self.alive()?;
        Ok(self.arena.unmap(region)?)
    }

    /// Backs a region again at its old addresses; see [`Arena::map`].
    ///
    /// # Errors
    /// [`ArenaError::AlreadyMapped`], or the error of a dead device.
    pub fn map(&mut self, region: Region) -> Result<(), DeviceError> {
        self.alive()?;
        Ok(self.arena.map(region)?)
    }

    /// Fills every free block; see [`Arena::poison_free`].
    ///
    /// # Errors
    /// The error of a dead device.
    pub fn poison_free(&mut self, pattern: Pattern) -> Result<(), DeviceError> {
        self.alive()?;
        self.arena.poison_free(pattern);
        Ok(())
    }

    /// Gives every free block to another owner, who fills it; see [`Arena::pressure`].
    ///
    /// # Errors
    /// The error of a dead device.
    pub fn pressure(&mut self) -> Result<u64, DeviceError> {
        self.alive()?;
        Ok(self.arena.pressure())
    }

    /// Frees what [`Device::pressure`] took.
    ///
    /// # Errors
    /// [`ArenaError::NotLive`], or the error of a dead device.
    pub fn release_pressure(&mut self) -> Result<(), DeviceError> {
        self.alive()?;
        Ok(self.arena.release_pressure()?)
    }

    /// The memory, to look at.
    #[must_use]
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The allocator's events since the last call. A dead device still answers.
    pub fn drain_log(&mut self) -> Vec<Fact> {
        self.arena.drain_log()
    }

    /// Names the request that launches from now on belong to.
    pub fn set_request(&mut self, request: &str) {
        self.trace.set_request(request);
    }

    /// Names the stage of the request that launches from now on belong to.
    pub const fn set_stage(&mut self, stage: Option<RequestStage>) {
        self.trace.set_stage(stage);
    }

    /// The launch trace since the last call. A dead device still answers.
    pub fn drain_launches(&mut self) -> Vec<LaunchFact> {
        self.trace.drain()
    }

    fn alive(&self) -> Result<(), DeviceError> {
        self.dead.clone().map_or(Ok(()), Err)
    }

    fn execute(&mut self, kernel: &Kernel, graph: Option<&str>) -> Result<(), DeviceError> {
        if self.is_late() {
            return Err(self.die(DeviceError::Late { kernel: kernel.name() }));
        }
        self.trace.record(kernel.name(), graph, kernel.rows());
        let mut context = Context {
            kernel: kernel.name(),
            arena: &mut self.arena,
            groups: &self.groups,
            deadline: self.deadline,
            cancel: &self.cancel,
        };
        kernel.run(&mut context).map_err(|error| self.die(error))
    }

    fn is_late(&self) -> bool {
        let passed = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        passed || self.cancel.load(Ordering::Relaxed)
    }

    fn die(&mut self, error: DeviceError) -> DeviceError {
        self.dead = Some(error.clone());
        self.groups.abandon();
        error
    }
}

#[cfg(test)]
mod tests;
