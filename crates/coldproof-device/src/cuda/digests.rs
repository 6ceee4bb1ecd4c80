//! One launch over a table of tensors.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use coldproof_contract::words::Hex128;
use cudarc::driver::sys;

use super::driver::{Context, call};
use crate::digest::Table;
use crate::{DeviceError, PreparedDigests, StreamHandle};

/// `kernels/digest.cu`, compiled ahead: no compiler is needed at run time.
const SM_80: &[u8] = include_bytes!("../../kernels/digest.sm_80.cubin");
const SM_90: &[u8] = include_bytes!("../../kernels/digest.sm_90.cubin");
/// For any later device: its driver compiles it. It ends with a zero byte, as the driver wants.
const PTX: &[u8] = include_bytes!("../../kernels/digest.ptx");
const KERNEL: &std::ffi::CStr = c"coldproof_digest";
const THREADS: u32 = 256;
/// The counter of tiles and a spare word stand before the sums.
const HEAD: usize = 2;

/// The code for a device of this compute capability.
fn code(major: i32) -> &'static [u8] {
    // Code of one major version runs on every minor one at or above its own.
    match major {
        8 => SM_80,
        9 => SM_90,
        _ => PTX,
    }
}

/// The loaded kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    context: Arc<Context>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// As many blocks as are resident at once: each takes tiles until none is left.
    grid: u32,
}

// SAFETY: handles of the driver's, which any thread may use while the context is current on it.
unsafe impl Send for Kernel {}
// SAFETY: as above; nothing here changes once it is loaded.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub(super) fn load(context: Arc<Context>) -> Result<Self, DeviceError> {
        use sys::CUdevice_attribute_enum as Attribute;
        let major = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let processors = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let _current = context.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: the code is a whole module and is copied; a pointer to a live local.
        unsafe { call!(cuModuleLoadData(&raw mut module, code(major).as_ptr().cast()))? };
        let mut kernel =
            Self { context: Arc::clone(&context), module, function: ptr::null_mut(), grid: 1 };
        let mut resident = 0;
        // SAFETY: the module is loaded; both pointers are to live memory.
        unsafe {
            call!(cuModuleGetFunction(&raw mut kernel.function, module, KERNEL.as_ptr()))?;
            call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut resident,
                kernel.function,
                THREADS as i32,
                0,
            ))?;
        }
        kernel.grid = u32::try_from(processors * resident).unwrap_or(1).max(1);
        Ok(kernel)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: loaded once, and every run waits for its launch.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// Device memory of ours: an engine's allocator never sees it.
#[derive(Debug)]
struct Buffer {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl Buffer {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        let _current = context.enter()?;
        let (mut address, bytes) = (0, bytes.max(16));
        // SAFETY: a pointer to a live local. No byte is no allocation.
        unsafe { call!(cuMemAlloc_v2(&raw mut address, bytes))? };
        Ok(Self { context: Arc::clone(context), address, bytes })
    }

    fn of<T: bytemuck::Pod>(context: &Arc<Context>, records: &[T]) -> Result<Self, DeviceError> {
        let bytes: &[u8] = bytemuck::cast_slice(records);
        let buffer = Self::new(context, bytes.len())?;
        if !bytes.is_empty() {
            let stream = Stream::new(context)?;
            let _current = context.enter()?;
            // SAFETY: the buffer is as long as the slice, which lives until the stream is done: a
            // copy of pageable memory may return before its bytes have arrived, and the stream of
            // a run waits for no other.
            unsafe {
                let copied = call!(cuMemcpyHtoDAsync_v2(
                    buffer.address,
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    stream.handle,
                ));
                call!(cuStreamSynchronize(stream.handle))?;
                copied?;
            }
        }
        Ok(buffer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: allocated once, and every run waits for its launch.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// A stream of ours, which waits for no other.
#[derive(Debug)]
struct Stream {
    context: Arc<Context>,
    handle: sys::CUstream,
}

impl Stream {
    fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let _current = context.enter()?;
        let mut handle = ptr::null_mut();
        let apart = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a pointer to a live local.
        unsafe { call!(cuStreamCreate(&raw mut handle, apart))? };
        Ok(Self { context: Arc::clone(context), handle })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: made once, and synchronised by whoever gave it work.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
    }
}

/// A point of a stream.
#[derive(Debug)]
struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

impl Event {
    fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let _current = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: a pointer to a live local.
        unsafe { call!(cuEventCreate(&raw mut handle, 0))? };
        Ok(Self { context: Arc::clone(context), handle })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: made once, and every run waits for its launch.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

/// A loaded table.
#[derive(Debug)]
pub(super) struct Prepared {
    kernel: Arc<Kernel>,
    /// Tensors, layouts, tiles, then the state.
    buffers: [Buffer; 4],
    events: [Event; 2],
    tiles: u64,
    tile_blocks: u64,
    tensors: usize,
}

// SAFETY: handles of the driver's, which any thread may use while the context is current on it.
unsafe impl Send for Prepared {}

impl Prepared {
    pub(super) fn new(kernel: Arc<Kernel>, table: &Table) -> Result<Self, DeviceError> {
        let context = &kernel.context;
        let buffers = [
            Buffer::of(context, &table.tensors)?,
            Buffer::of(context, &table.layouts)?,
            Buffer::of(context, &table.tiles)?,
            Buffer::new(context, (HEAD + 2 * table.len()) * 8)?,
        ];
        let events = [Event::new(context)?, Event::new(context)?];
        Ok(Self {
            buffers,
            events,
            tiles: table.tiles.len() as u64,
            tile_blocks: table.tile_blocks,
            tensors: table.len(),
            kernel,
        })
    }

    fn launch(&mut self, stream: sys::CUstream) -> Result<(), DeviceError> {
        let state = &self.buffers[3];
        let addresses: [u64; 4] = std::array::from_fn(|index| self.buffers[index].address);
        let [mut tensors, mut layouts, mut tiles, mut sums] = addresses;
        let (mut count, mut blocks) = (self.tiles, self.tile_blocks);
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut tensors).cast(),
            (&raw mut layouts).cast(),
            (&raw mut tiles).cast(),
            (&raw mut count).cast(),
            (&raw mut blocks).cast(),
            (&raw mut sums).cast(),
        ];
        // SAFETY: six arguments of the kernel's types, which the driver copies at once; records and
        // sums are as long as the kernel is told; the tensors were memory of this device when the
        // table was loaded, and stay so by the caller's promise.
        unsafe {
            call!(cuMemsetD8Async(state.address, 0, state.bytes, stream))?;
            call!(cuEventRecord(self.events[0].handle, stream))?;
            call!(cuLaunchKernel(
                self.kernel.function,
                self.kernel.grid,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            ))?;
            call!(cuEventRecord(self.events[1].handle, stream))
        }
    }
}

impl PreparedDigests for Prepared {
    fn run(&mut self, stream: StreamHandle) -> Result<Vec<Hex128>, DeviceError> {
        let _current = self.kernel.context.enter()?;
        let stream = stream.0 as sys::CUstream;
        self.launch(stream)?;
        let mut words = vec![0_u64; 2 * self.tensors];
        let sums = self.buffers[3].address + (HEAD * 8) as u64;
        // SAFETY: two words a tensor stand there. The copy waits for the stream, then the host for
        // the copy, which is of pageable memory and done when the call returns.
        unsafe {
            if !words.is_empty() {
                let bytes = words.len() * 8;
                call!(cuMemcpyDtoHAsync_v2(words.as_mut_ptr().cast(), sums, bytes, stream))?;
            }
            call!(cuStreamSynchronize(stream))?;
        }
        let (pairs, _) = words.as_chunks::<2>();
        let join = |[low, high]: &[u64; 2]| Hex128(u128::from(*high) << 64 | u128::from(*low));
        Ok(pairs.iter().map(join).collect())
    }

    fn last_ms(&self) -> Result<f32, DeviceError> {
        let _current = self.kernel.context.enter()?;
        let mut ms = 0.0;
        // SAFETY: both events live; the driver says so itself where none was recorded.
        unsafe {
            call!(cuEventElapsedTime_v2(&raw mut ms, self.events[0].handle, self.events[1].handle))?
        };
        Ok(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_there_for_each_generation() {
        assert_eq!(code(8)[..4], *b"\x7fELF");
        assert_eq!(code(9)[..4], *b"\x7fELF");
        assert_ne!(code(8), code(9));
        assert!(code(10).starts_with(b"//"));
        assert_eq!(code(12).last(), Some(&0));
    }
}
