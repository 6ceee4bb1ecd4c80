//! What can go wrong with a device.

use coldproof_contract::words::Address;

/// Why a device did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no driver, or it has no device.
    #[error("no CUDA driver: {why}")]
    NoDriver {
        /// What was missing, and how to mend it.
        why: String,
    },
    /// A platform that nothing here reads.
    #[error("NOT COVERED: {platform} ({why})")]
    NotCovered {
        /// The platform.
        platform: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// A name that is no platform's.
    #[error("`{name}` is no platform; pass `cuda` or `rocm`")]
    UnknownPlatform {
        /// The name.
        name: String,
    },
    /// The driver refused a call.
    #[error("the CUDA driver refused {call}: {code} ({text})")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The name of its error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
        code: String,
        /// The driver's own words.
        text: String,
    },
    /// A tensor's memory is not there.
    #[error(
        "{bytes} bytes at {address} of `{name}` are not memory of this device; pass a tensor \
         that lies on it"
    )]
    NotOnDevice {
        /// The tensor.
        name: String,
        /// Its first byte.
        address: Address,
        /// Bytes that it spans.
        bytes: u64,
    },
    /// A stream that records no graph.
    #[error("stream {stream:#x} captures no graph; call this between begin and end of a capture")]
    NoCapture {
        /// The stream's handle.
        stream: u64,
    },
}
