//! Why a rank did not do what it was told.

use crate::device::DeviceError;
use crate::loader::SourceError;
use crate::slots::Unbound;

/// A rank's answer to a command that it did not carry out.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The rank is as it was before, or its transaction failed; it can be told more.
    #[error("{0}")]
    Refused(String),
    /// The device is dead.
    #[error("{0}")]
    Device(DeviceError),
    /// The rank did not answer in time.
    #[error("rank {rank} did not answer before the deadline")]
    Late {
        /// Which.
        rank: usize,
    },
    /// The rank's thread is gone.
    #[error("the thread of rank {rank} ended")]
    Lost {
        /// Which.
        rank: usize,
    },
}

impl Failure {
    /// How near this failure is to its cause: of several ranks' failures the least is reported.
    /// What a rank saw of itself comes before what it saw of another.
    pub(crate) const fn distance(&self) -> u8 {
        match self {
            Self::Device(DeviceError::Collective { .. } | DeviceError::Late { .. }) => 1,
            Self::Device(_) => 0,
            Self::Refused(_) => 2,
            Self::Lost { .. } => 3,
            Self::Late { .. } => 4,
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        if error.is_fatal() { Self::Device(error) } else { Self::Refused(error.to_string()) }
    }
}

impl From<Unbound> for Failure {
    fn from(error: Unbound) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::Refused(error.to_string())
    }
}
