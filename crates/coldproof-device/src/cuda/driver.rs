//! The driver: whether it is there, the device's primary context, memory by address.

use std::ffi::CStr;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use coldproof_contract::words::{Address, ByteRange};
use cudarc::driver::sys;

use super::{digests, graph, spans};
use crate::census::Node;
use crate::digest::Table;
use crate::{Device, DeviceError, GraphHandle, PreparedDigests, StreamHandle};

/// Functions that are called and that an older driver may lack: cudarc panics at one that is not
/// there. The kernel's code is of CUDA 13.0, which came with driver 580.
const FUNCTIONS: [&str; 28] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSynchronize",
    "cuEventElapsedTime_v2",
    "cuPointerGetAttribute",
    "cuMemcpyDtoH_v2",
    "cuStreamGetCaptureInfo_v3",
    "cuGraphGetNodes",
    "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphMemsetNodeGetParams",
    "cuGraphHostNodeGetParams",
    "cuGraphChildGraphNodeGetGraph",
    "cuGraphMemAllocNodeGetParams",
    "cuGraphMemFreeNodeGetParams",
    "cuFuncGetName",
    "cuKernelGetName",
    "cuFuncGetParamInfo",
    "cuKernelGetParamInfo",
];

/// Calls a function of the driver. Every use states why its arguments are what it wants.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::driver::checked(
            stringify!($function),
            cudarc::driver::sys::$function($($argument),*),
        )
    };
}
pub(super) use call;

/// A device's primary context, the one that frameworks use too: kept for as long as this lives.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: a context may be current on any number of threads, and the driver locks what they share.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn retain(device: sys::CUdevice) -> Result<Self, DeviceError> {
        let mut handle = ptr::null_mut();
        // SAFETY: the driver is initialised and gave the device; a pointer to a live local.
        unsafe { call!(cuDevicePrimaryCtxRetain(&raw mut handle, device))? };
        Ok(Self { device, handle })
    }

    /// Makes the context current on this thread.
    pub(super) fn enter(&self) -> Result<Current, DeviceError> {
        // SAFETY: a context that was retained and is released only when this is dropped.
        unsafe { call!(cuCtxPushCurrent_v2(self.handle))? };
        Ok(Current)
    }

    /// One number of the device.
    pub(super) fn attribute(&self, which: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
        let mut value = 0;
        // SAFETY: a pointer to a live local, and a device that the driver gave.
        unsafe { call!(cuDeviceGetAttribute(&raw mut value, which, self.device))? };
        Ok(value)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once when this was made.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// One device.
#[derive(Debug)]
pub(crate) struct Cuda {
    context: Arc<Context>,
    name: String,
    version: i32,
    /// The digest's kernel, loaded when it is first needed: loading may wait for the device.
    kernel: Mutex<Option<Arc<digests::Kernel>>>,
}

/// A refused call, with the driver's words.
pub(super) fn checked(call: &'static str, status: sys::CUresult) -> Result<(), DeviceError> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |of: unsafe fn(sys::CUresult, *mut *const core::ffi::c_char) -> sys::CUresult| {
        let mut words = ptr::null();
        // SAFETY: the driver is loaded, since a call was refused, and writes one pointer to a text
        // of its own that is never freed.
        let found = unsafe { of(status, &raw mut words) };
        if found != sys::CUresult::CUDA_SUCCESS || words.is_null() {
            return format!("{status:?}");
        }
        // SAFETY: as above; the driver's texts end with a zero byte.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    };
    let (code, text) = (text(sys::cuGetErrorName), text(sys::cuGetErrorString));
    Err(DeviceError::Driver { call, code, text })
}

/// The context is current on this thread while this lives; what was current before is then again.
pub(super) struct Current;

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: this thread pushed a context, and guards are dropped in reverse order.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

fn no_driver(why: impl Into<String>) -> DeviceError {
    DeviceError::NoDriver { why: why.into() }
}

/// Loads the driver, where there is one that has everything that is called here.
fn load() -> Result<(), DeviceError> {
    // SAFETY: loading libcuda runs its initialisers, which every CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        return Err(no_driver("libcuda cannot be loaded; install NVIDIA's driver"));
    }
    // SAFETY: it is present, and was loaded just now.
    let library = unsafe { sys::culib() };
    for function in FUNCTIONS {
        // SAFETY: only whether the symbol is there is asked; it is not called.
        if unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) }.is_err() {
            return Err(no_driver(format!(
                "libcuda has no `{function}`; install driver 580 or later"
            )));
        }
    }
    // SAFETY: no arguments; may be called again and again.
    unsafe { call!(cuInit(0)) }
        .map_err(|error| no_driver(format!("it finds no device to work with: {error}")))
}

impl Cuda {
    pub(crate) fn open(ordinal: u32) -> Result<Self, DeviceError> {
        load()?;
        let (mut count, mut device, mut version) = (0, 0, 0);
        let mut name = [0_u8; 128];
        // SAFETY: the driver is initialised; every pointer is to a live local, and the name's
        // length is stated.
        unsafe {
            call!(cuDeviceGetCount(&raw mut count))?;
            if i32::try_from(ordinal).map_or(true, |ordinal| ordinal >= count) {
                return Err(no_driver(format!("device {ordinal} of {count} was asked for")));
            }
            call!(cuDeviceGet(&raw mut device, ordinal as i32))?;
            call!(cuDriverGetVersion(&raw mut version))?;
            call!(cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))?;
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let context = Arc::new(Context::retain(device)?);
        Ok(Self { context, name, version, kernel: Mutex::new(None) })
    }

    fn kernel(&self) -> Result<Arc<digests::Kernel>, DeviceError> {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = &*kernel {
            return Ok(Arc::clone(kernel));
        }
        let loaded = Arc::new(digests::Kernel::load(Arc::clone(&self.context))?);
        *kernel = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// The device's number in the driver's order.
    pub(super) fn ordinal(&self) -> i32 {
        self.context.device
    }

    /// One attribute of memory at an address, with the context current.
    pub(super) fn attribute_of(
        &self,
        which: sys::CUpointer_attribute,
        address: Address,
    ) -> Option<u64> {
        let _current = self.context.enter().ok()?;
        Self::pointer_attribute(which, address)
    }

    /// One attribute of memory at an address; nothing where the driver knows no memory there.
    fn pointer_attribute(which: sys::CUpointer_attribute, address: Address) -> Option<u64> {
        let mut value = 0_u64;
        // SAFETY: the attributes asked for here are written as 8 bytes or fewer; the address is
        // looked up in the driver's own tables and not followed.
        let status =
            unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), which, address.0) };
        (status == sys::CUresult::CUDA_SUCCESS).then_some(value)
    }
}

impl Device for Cuda {
    fn describe(&self) -> String {
        let (major, minor) = (self.version / 1000, self.version % 1000 / 10);
        format!("{}, CUDA driver {major}.{minor}", self.name)
    }

    fn synchronise(&self) -> Result<(), DeviceError> {
        let _current = self.context.enter()?;
        // SAFETY: no arguments; a context is current.
        unsafe { call!(cuCtxSynchronize()) }
    }

    fn allocation(&self, address: Address) -> Option<ByteRange> {
        use sys::CUpointer_attribute_enum as Attribute;
        let _current = self.context.enter().ok()?;
        let of = |which| Self::pointer_attribute(which, address);
        let start = of(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?;
        let bytes = of(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?;
        let range = ByteRange { address: Address(start), bytes };
        // A range may be reserved and backed by nothing, as a sleeping engine's is. Memory that was
        // never reserved apart from its backing has no range either once it is freed.
        let mapped = of(Attribute::CU_POINTER_ATTRIBUTE_MAPPED);
        (mapped != Some(0) && range.contains(address)).then_some(range)
    }

    fn read(&self, address: Address, into: &mut [u8]) -> Result<(), DeviceError> {
        let _current = self.context.enter()?;
        // SAFETY: the slice is as long as stated. The driver checks the source against its tables,
        // and refuses what is no memory.
        unsafe { call!(cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), address.0, into.len())) }
    }

    fn nodes(&self, graph: GraphHandle) -> Result<Vec<Node>, DeviceError> {
        let _current = self.context.enter()?;
        graph::nodes(graph)
    }

    fn capture_under_way(&self, stream: StreamHandle) -> Result<GraphHandle, DeviceError> {
        let _current = self.context.enter()?;
        graph::capture_under_way(stream)
    }

    fn prepare(&self, table: &Table) -> Result<Box<dyn PreparedDigests>, DeviceError> {
        spans::check(self, table)?;
        Ok(Box::new(digests::Prepared::new(self.kernel()?, table)?))
    }
}
