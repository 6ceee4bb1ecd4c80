//! What the engine answers when it does not do what it was told.

use coldproof_contract::words::Address;

use crate::collective::CollectiveError;
use crate::device::DeviceError;
use crate::ranks::Failure;

/// Why a call did not do what it was asked. After a timeout or a death the engine is ended, and
/// every later call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The call is wrong, or came at a wrong time.
    #[error("{text}")]
    Refused {
        /// What is wrong, and the mend.
        text: String,
    },
    /// The deadline passed.
    #[error("no answer within {deadline_ms} ms{}", place(kernel.as_deref(), *address))]
    Timeout {
        /// The kernel that was running, where it is known.
        kernel: Option<String>,
        /// The address that it was waiting on, where it is known.
        address: Option<Address>,
        /// The deadline of a call.
        deadline_ms: u64,
    },
    /// A device or a rank died.
    #[error("the engine died: {text}")]
    Died {
        /// What was seen of it.
        text: String,
        /// The kernel that was running, where it is known.
        kernel: Option<String>,
        /// The address that it touched, where it is known.
        address: Option<Address>,
    },
}

fn place(kernel: Option<&str>, address: Option<Address>) -> String {
    let kernel = kernel.map(|kernel| format!(" in kernel `{kernel}`")).unwrap_or_default();
    let address = address.map(|address| format!(" at {address}")).unwrap_or_default();
    kernel + &address
}

impl EngineError {
    /// A refusal.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::Refused { text: text.into() }
    }

    /// Whether the engine is ended after it.
    #[must_use]
    pub const fn ends(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }

    /// What a rank's failure is to the caller.
    pub(crate) fn of(failure: Failure, deadline_ms: u64) -> Self {
        let text = failure.to_string();
        match failure {
            Failure::Refused(text) => Self::Refused { text },
            Failure::Late { .. } => Self::Timeout { kernel: None, address: None, deadline_ms },
            Failure::Lost { .. } => Self::Died { text, kernel: None, address: None },
            Failure::Device(error) => Self::of_device(error, deadline_ms),
        }
    }

    fn of_device(error: DeviceError, deadline_ms: u64) -> Self {
        let text = error.to_string();
        let kernel = |kernel: &str| Some(kernel.to_owned());
        match error {
            DeviceError::Timeout { kernel: name, address } => {
                Self::Timeout { kernel: kernel(name), address: Some(address), deadline_ms }
            }
            DeviceError::Late { kernel: name }
            | DeviceError::Collective { kernel: name, source: CollectiveError::Late { .. } } => {
                Self::Timeout { kernel: kernel(name), address: None, deadline_ms }
            }
            DeviceError::IllegalAccess { kernel: name, address }
            | DeviceError::Misaligned { kernel: name, address } => {
                Self::Died { text, kernel: kernel(name), address: Some(address) }
            }
            DeviceError::Assert { kernel: name, .. }
            | DeviceError::Collective { kernel: name, .. } => {
                Self::Died { text, kernel: kernel(name), address: None }
            }
            DeviceError::Arena(_) | DeviceError::Stream { .. } => Self::Refused { text },
        }
    }
}
