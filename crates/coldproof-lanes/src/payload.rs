//! Deliveries that a faulty or an unusual sender makes of a checkpoint. The manifest still promises
//! the whole of it.

use std::fmt;
use std::str::FromStr;

use coldproof_checkpoint::TensorRef;

/// One thing that a sender does to a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// It stops after so many tensors.
    Cut(usize),
    /// It leaves a tensor out.
    Without(String),
    /// It sends a tensor again at the end.
    Twice(String),
    /// It sends the old checkpoint's tensor again at the end.
    StaleCopy(String),
    /// It sends a tensor under a name that belongs to nothing.
    Extra(String),
    /// It sends the tensors whose names begin so under names that begin otherwise.
    Rename {
        /// How the checkpoint's names begin.
        from: String,
        /// How the names that are sent begin instead.
        to: String,
    },
    /// It sends everything backwards.
    Reversed,
    /// It sends BF16 and F16 as F32, as a trainer holds them.
    Float32,
}

/// A word that names no payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no payload")]
pub struct UnknownPayload(String);

impl FromStr for Payload {
    type Err = UnknownPayload;

    /// `cut:10`, `without:NAME`, `twice:NAME`, `stale-copy:NAME`, `extra:NAME`,
    /// `rename:OLD=NEW`, `reversed`, `float32`.
    fn from_str(text: &str) -> Result<Self, UnknownPayload> {
        let unknown = || UnknownPayload(text.to_owned());
        let (word, value) = text.split_once(':').unwrap_or((text, ""));
        let name = || if value.is_empty() { Err(unknown()) } else { Ok(value.to_owned()) };
        match word {
            "cut" => value.parse().map(Self::Cut).map_err(|_| unknown()),
            "without" => name().map(Self::Without),
            "twice" => name().map(Self::Twice),
            "stale-copy" => name().map(Self::StaleCopy),
            "extra" => name().map(Self::Extra),
            "rename" => match value.split_once('=') {
                Some((from, to)) if !from.is_empty() => {
                    Ok(Self::Rename { from: from.to_owned(), to: to.to_owned() })
                }
                _ => Err(unknown()),
            },
            "reversed" if value.is_empty() => Ok(Self::Reversed),
            "float32" if value.is_empty() => Ok(Self::Float32),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut(count) => write!(f, "cut:{count}"),
            Self::Without(name) => write!(f, "without:{name}"),
            Self::Twice(name) => write!(f, "twice:{name}"),
            Self::StaleCopy(name) => write!(f, "stale-copy:{name}"),
            Self::Extra(name) => write!(f, "extra:{name}"),
            Self::Rename { from, to } => write!(f, "rename:{from}={to}"),
            Self::Reversed => f.write_str("reversed"),
            Self::Float32 => f.write_str("float32"),
        }
    }
}

impl Payload {
    /// The name that it is about, where `tensors` have none such.
    #[must_use]
    pub fn absent(&self, tensors: &[TensorRef]) -> Option<&str> {
        let (name, is_there) = match self {
            Self::Without(name) | Self::Twice(name) | Self::StaleCopy(name) => {
                (name, tensors.iter().any(|tensor| tensor.name == *name))
            }
            Self::Rename { from, .. } => {
                (from, tensors.iter().any(|tensor| tensor.name.starts_with(from)))
            }
            Self::Cut(_) | Self::Extra(_) | Self::Reversed | Self::Float32 => return None,
        };
        (!is_there).then_some(name)
    }

    /// What is delivered instead of `tensors`; `old` is what the engine serves before, `wide` the
    /// new content as F32.
    #[must_use]
    pub fn of(
        &self,
        mut tensors: Vec<TensorRef>,
        old: &[TensorRef],
        wide: &[TensorRef],
    ) -> Vec<TensorRef> {
        let find = |among: &[TensorRef], name: &str| {
            among.iter().find(|tensor| tensor.name == name).cloned()
        };
        match self {
            Self::Cut(count) => tensors.truncate(*count),
            Self::Without(name) => tensors.retain(|tensor| tensor.name != *name),
            Self::Twice(name) => tensors.extend(find(&tensors, name)),
            Self::StaleCopy(name) => tensors.extend(find(old, name)),
            Self::Extra(name) => {
                let copy = tensors.first().cloned();
                tensors.extend(copy.map(|tensor| TensorRef { name: name.clone(), ..tensor }));
            }
            Self::Rename { from, to } => {
                for tensor in &mut tensors {
                    if let Some(rest) = tensor.name.strip_prefix(from.as_str()) {
                        tensor.name = format!("{to}{rest}");
                    }
                }
            }
            Self::Reversed => tensors.reverse(),
            Self::Float32 => {
                for tensor in tensors.iter_mut().filter(|tensor| !old.contains(tensor)) {
                    if let Some(wide) = find(wide, &tensor.name) {
                        *tensor = wide;
                    }
                }
            }
        }
        tensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coldproof_contract::words::Dtype;

    fn tensors(file: &str) -> Vec<TensorRef> {
        let tensor = |name: &str| TensorRef {
            name: name.to_owned(),
            file: file.into(),
            offset: 0,
            bytes: 2,
            dtype: Dtype::Bf16,
            shape: vec![1],
        };
        ["q", "k", "v"].map(tensor).into()
    }

    fn delivered(text: &str) -> Vec<String> {
        let payload: Payload = text.parse().unwrap();
        let sent = payload.of(tensors("new"), &tensors("old"), &tensors("wide"));
        sent.iter().map(|tensor| format!("{}/{}", tensor.file, tensor.name)).collect()
    }

    #[test]
    fn each_does_what_its_name_says() {
        assert_eq!(delivered("cut:1"), ["new/q"]);
        assert_eq!(delivered("cut:0"), [""; 0]);
        assert_eq!(delivered("without:k"), ["new/q", "new/v"]);
        assert_eq!(delivered("twice:q"), ["new/q", "new/k", "new/v", "new/q"]);
        assert_eq!(delivered("stale-copy:q"), ["new/q", "new/k", "new/v", "old/q"]);
        assert_eq!(delivered("extra:x"), ["new/q", "new/k", "new/v", "new/x"]);
        assert_eq!(delivered("rename:k=b.k"), ["new/q", "new/b.k", "new/v"]);
        assert_eq!(delivered("rename:x=y"), ["new/q", "new/k", "new/v"]);
        assert_eq!(delivered("reversed"), ["new/v", "new/k", "new/q"]);
        assert_eq!(delivered("float32"), ["wide/q", "wide/k", "wide/v"]);
    }

    #[test]
    fn a_name_that_is_not_there_is_told() {
        let absent = |text: &str| {
            let payload: Payload = text.parse().unwrap();
            payload.absent(&tensors("new")).map(str::to_owned)
        };
        for text in ["without:k", "rename:k=x", "extra:x", "cut:9", "reversed"] {
            assert_eq!(absent(text), None, "{text}");
        }
        for text in ["without:x", "twice:x", "stale-copy:x", "rename:x=k"] {
            assert_eq!(absent(text), Some("x".to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let none = "cut cut:x without twice: reversed:q float32:q rename:q rename:=q late";
        for text in none.split(' ').chain([""]) {
            assert!(text.parse::<Payload>().is_err(), "{text}");
        }
    }
}
