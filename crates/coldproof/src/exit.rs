//! Exit codes, the first that applies.

use std::process::ExitCode;

use coldproof_contract::verdict::VerdictKind;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All that is required is proven; no difference.
    Proven,
    /// A finding; a difference.
    Found,
    /// Bad input or usage.
    Usage,
    /// No finding, but something required is undecided or not covered.
    Undecided,
    /// A bug of coldproof's.
    Bug,
}

impl Exit {
    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Proven => 0,
            Self::Found => 1,
            Self::Usage => 2,
            Self::Undecided => 3,
            Self::Bug => 70,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl From<VerdictKind> for Exit {
    fn from(verdict: VerdictKind) -> Self {
        match verdict {
            VerdictKind::Pass => Self::Proven,
            VerdictKind::Fail => Self::Found,
            VerdictKind::Undecided => Self::Undecided,
        }
    }
}
