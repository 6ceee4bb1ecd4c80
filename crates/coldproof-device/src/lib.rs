//! Reads what lies on an accelerator: what a captured graph retains, and digests of memory where it
//! lies.
//!
//! The driver is loaded when a device is opened; without one [`open`] says so in one line and the
//! rest works. This crate reads and reports, in the words of `coldproof-contract`, which judges.

pub mod census;
mod cuda;
mod device;
pub mod digest;
mod error;

pub use device::{Device, GraphHandle, Platform, PreparedDigests, StreamHandle, open};
pub use error::DeviceError;
