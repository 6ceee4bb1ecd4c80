//! What can be wrong with a `config.json`.

use crate::json::JsonError;

/// A configuration that is malformed, incomplete, impossible, or beyond what is computed here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or a key twice.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A field that is needed and has no default.
    #[error("the field `{field}` is missing")]
    Missing {
        /// The field, with its other spelling where it has two.
        field: String,
    },
    /// A field of another kind than expected.
    #[error("the field `{field}` is {found}; it must be {expected}")]
    Kind {
        /// The field.
        field: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A size that no model can have.
    #[error("the field `{field}` is {value}: {reason}")]
    Size {
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two spellings of one field with two values.
    #[error("the fields `{first}` ({first_value}) and `{second}` ({second_value}) disagree")]
    Disagree {
        /// One spelling.
        first: String,
        /// Its value.
        first_value: String,
        /// The other spelling.
        second: String,
        /// Its value.
        second_value: String,
    },
    /// A feature that changes the forward and is not computed here.
    #[error("the field `{field}` is {value}, which is not supported (supported: {supported})")]
    Unsupported {
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// What would be.
        supported: String,
    },
}

impl ConfigError {
    /// What the reader can do about it.
    #[must_use]
    pub const fn mend(&self) -> &'static str {
        match self {
            Self::Json(_) => "write the file again",
            Self::Missing { .. } => "add it",
            Self::Kind { .. } | Self::Size { .. } => "correct it",
            Self::Disagree { .. } => "keep one of them",
            Self::Unsupported { .. } => "use a supported model",
        }
    }
}
