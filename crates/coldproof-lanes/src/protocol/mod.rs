//! The engine protocol: JSON lines over stdin and stdout, the seam for every engine that is not in
//! this process. Tensors travel by reference (file, offset, dtype, shape).

mod client;
#[cfg(test)]
mod documented;
mod messages;
mod server;

pub use client::{ProcessEngine, Spawned};
pub use messages::{Answer, OutputBits, Request};
pub use server::{Starter, serve};
