//! What the user can mend: one line that names the object, one that says how.

use serde::Serialize;

/// Bad input or usage (exit code 2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// A stable word for programs.
    pub code: String,
    /// The file, tensor, option or field.
    pub object: String,
    /// What is wrong.
    pub message: String,
    /// How to mend it.
    pub hint: String,
}

/// The document that `--format json` prints on exit 2.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    #[serde(flatten)]
    failure: &'a Failure,
}

/// Names come from files that anybody wrote: what would end the line or steer a terminal is spelled
/// out.
fn one_line(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let spelled = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(spelled).collect()
}

impl Failure {
    /// A failure with everything a user needs.
    #[must_use]
    pub fn new(
        code: &str,
        object: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            code: code.to_owned(),
            object: one_line(object.into()),
            message: one_line(message.into()),
            hint: hint.into(),
        }
    }

    /// Bad usage of an option.
    #[must_use]
    pub fn usage(option: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new("usage", option, message, hint)
    }

    /// An output file or folder that cannot be written.
    #[must_use]
    pub fn output(path: impl Into<String>, error: &std::io::Error) -> Self {
        let path = path.into();
        let message = format!("cannot write `{path}`: {error}");
        Self::new(
            "output",
            path,
            message,
            "free space or choose another folder; what was there before is unchanged",
        )
    }

    /// The JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        let document = Document { schema: "coldproof.error/1", failure: self };
        serde_json::to_string(&document).unwrap_or_default()
    }
}
