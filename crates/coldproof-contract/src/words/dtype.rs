//! Element types, spelled as safetensors spells them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The element type of a source or a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Dtype {
    /// One byte, 0 or 1.
    #[serde(rename = "BOOL")]
    Bool,
    /// Unsigned 8-bit integer.
    #[serde(rename = "U8")]
    U8,
    /// Signed 8-bit integer.
    #[serde(rename = "I8")]
    I8,
    /// Unsigned 16-bit integer.
    #[serde(rename = "U16")]
    U16,
    /// Signed 16-bit integer.
    #[serde(rename = "I16")]
    I16,
    /// Unsigned 32-bit integer.
    #[serde(rename = "U32")]
    U32,
    /// Signed 32-bit integer.
    #[serde(rename = "I32")]
    I32,
    /// Unsigned 64-bit integer.
    #[serde(rename = "U64")]
    U64,
    /// Signed 64-bit integer.
    #[serde(rename = "I64")]
    I64,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (OCP E4M3FN).
    #[serde(rename = "F8_E4M3")]
    F8E4M3,
    /// 8-bit float, 5 exponent and 2 mantissa bits (OCP E5M2).
    #[serde(rename = "F8_E5M2")]
    F8E5M2,
    /// 8-bit power-of-two scale (OCP E8M0).
    #[serde(rename = "F8_E8M0")]
    F8E8M0,
    /// IEEE binary16.
    #[serde(rename = "F16")]
    F16,
    /// bfloat16.
    #[serde(rename = "BF16")]
    Bf16,
    /// IEEE binary32.
    #[serde(rename = "F32")]
    F32,
    /// IEEE binary64.
    #[serde(rename = "F64")]
    F64,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E4M3 | Self::F8E5M2 | Self::F8E8M0 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The spelling of a safetensors header, for example `BF16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::U16 => "U16",
            Self::I16 => "I16",
            Self::U32 => "U32",
            Self::I32 => "I32",
            Self::U64 => "U64",
            Self::I64 => "I64",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E5M2 => "F8_E5M2",
            Self::F8E8M0 => "F8_E8M0",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
            Self::F64 => "F64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
