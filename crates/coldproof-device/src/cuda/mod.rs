//! CUDA through its driver, which is loaded when a device is opened.
#![expect(unsafe_code, reason = "the driver is a C library")]

mod arguments;
mod copy;
mod digests;
mod driver;
mod graph;
mod spans;

pub(crate) use driver::Cuda;
