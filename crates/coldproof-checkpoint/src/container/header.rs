//! The header of a safetensors file: 8 bytes of length, then JSON, then data.
//!
//! A visitor of our own: the format's crate keeps the last of two equal keys in silence and wants
//! the whole file.

use std::collections::BTreeSet;
use std::fmt;

use coldproof_contract::words::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::error::Fault;
use crate::json::JsonError;

/// The format's limit on the length of a header.
pub(super) const HEADER_MAX: u64 = 100_000_000;
/// Bytes of the length that stands before the header.
pub(super) const LENGTH_BYTES: u64 = 8;
/// The one key of a header that is no tensor.
const METADATA: &str = "__metadata__";

/// One tensor of a header, checked on its own and against the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    /// First byte, from the beginning of the data.
    pub(super) start: u64,
    /// One past the last byte.
    pub(super) end: u64,
}

/// A fault, and the tensor that has it.
pub(super) type HeaderFault = (Option<String>, Fault);

/// Reads the JSON of a header and checks it against the length of the data that follows. Entries
/// come in the order of their data.
pub(super) fn parse(json: &[u8], data_bytes: u64) -> Result<Vec<Entry>, HeaderFault> {
    if json.first() != Some(&b'{') {
        let reason = "it does not begin with `{`".to_owned();
        return Err((None, Fault::HeaderStructure { reason }));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let raw = RawHeader::deserialize(&mut deserializer)
        .and_then(|raw| deserializer.end().map(|()| raw))
        .map_err(|error| {
            let reason = error.to_string();
            let fault = match error.classify() {
                serde_json::error::Category::Data => Fault::HeaderStructure { reason },
                _ => Fault::Json(JsonError::Malformed { reason }),
            };
            (None, fault)
        })?;
    if let Some(key) = raw.twice {
        return Err((None, Fault::Json(JsonError::KeyTwice { key })));
    }
    let mut entries =
        raw.tensors.into_iter().map(check_entry).collect::<Result<Vec<Entry>, HeaderFault>>()?;
    entries.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    check_layout(&entries, data_bytes)?;
    Ok(entries)
}

/// What one tensor says of itself: dtype, shape and offsets must agree.
fn check_entry((name, raw): (String, RawTensor)) -> Result<Entry, HeaderFault> {
    let fault = |fault| Err((Some(name.clone()), fault));
    let Some(dtype) = dtype_of(&raw.dtype) else {
        return fault(Fault::DtypeUnknown { found: raw.dtype });
    };
    let RawTensor { shape, offsets: (start, end), .. } = raw;
    let Some(expected) = bytes_of(dtype, &shape) else {
        return fault(Fault::ShapeOverflow { shape });
    };
    let Some(found) = end.checked_sub(start) else {
        return fault(Fault::OffsetsReversed { start, end });
    };
    if found != expected {
        return fault(Fault::WrongLength { found, expected, dtype, shape });
    }
    Ok(Entry { name, dtype, shape, start, end })
}

/// Tensors lie one after another, without holes, from the first byte of data to the last.
fn check_layout(entries: &[Entry], data_bytes: u64) -> Result<(), HeaderFault> {
    let mut at = 0;
    let mut before: Option<&Entry> = None;
    for entry in entries {
        let fault = |fault| Err((Some(entry.name.clone()), fault));
        if entry.start < at {
            return fault(Fault::Overlap {
                start: entry.start,
                // Something ends after the first byte, so there is a tensor before.
                other: before.map(|before| before.name.clone()).unwrap_or_default(),
                other_end: at,
            });
        }
        if entry.start > at {
            if entry.end > data_bytes {
                return fault(Fault::OffsetsBeyondData { end: entry.end, data: data_bytes });
            }
            return fault(Fault::Gap { start: entry.start, bytes: entry.start - at });
        }
        at = entry.end;
        before = Some(entry);
    }
    if at > data_bytes {
        let cut = entries.iter().find(|entry| entry.end > data_bytes);
        // The caller adds the header's length to both.
        let fault = Fault::DataTruncated { found: data_bytes, expected: at };
        return Err((cut.map(|entry| entry.name.clone()), fault));
    }
    if at < data_bytes {
        return Err((None, Fault::TrailingBytes { bytes: data_bytes - at }));
    }
    Ok(())
}

/// The dtype of this spelling.
fn dtype_of(name: &str) -> Option<Dtype> {
    let deserializer = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name);
    Dtype::deserialize(deserializer).ok()
}

/// Bytes of a tensor, or nothing where they exceed 64 bits. An empty axis makes it empty.
pub(crate) fn bytes_of(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(dtype.bytes(), |bytes, &extent| bytes.checked_mul(extent))
}

struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    /// The first key given twice.
    twice: Option<String>,
}

struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut seen = BTreeSet::new();
                let mut header = RawHeader { tensors: Vec::new(), twice: None };
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        let metadata = map.next_value::<Metadata>()?;
                        header.twice = header.twice.or(metadata.twice);
                    } else {
                        header.tensors.push((name.clone(), map.next_value()?));
                    }
                    if header.twice.is_none() && seen.contains(&name) {
                        header.twice = Some(name.clone());
                    }
                    seen.insert(name);
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Header)
    }
}

impl<'de> Deserialize<'de> for RawTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensor;
        impl<'de> Visitor<'de> for Tensor {
            type Value = RawTensor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of `dtype`, `shape` and `data_offsets`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawTensor, A::Error> {
                let (mut dtype, mut shape, mut offsets) = (None, None, None);
                while let Some(field) = map.next_key::<String>()? {
                    let repeated = match field.as_str() {
                        "dtype" => dtype.replace(map.next_value()?).is_some(),
                        "shape" => shape.replace(map.next_value()?).is_some(),
                        "data_offsets" => offsets.replace(map.next_value()?).is_some(),
                        _ => {
                            let known = &["dtype", "shape", "data_offsets"];
                            return Err(A::Error::unknown_field(&field, known));
                        }
                    };
                    if repeated {
                        return Err(A::Error::custom(format_args!("`{field}` occurs twice")));
                    }
                }
                Ok(RawTensor {
                    dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
                    shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
                    offsets: offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
                })
            }
        }
        deserializer.deserialize_map(Tensor)
    }
}

/// The metadata of a header: texts by name, which nothing here reads.
struct Metadata {
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut seen = BTreeSet::new();
                let mut twice = None;
                while let Some((name, _)) = map.next_entry::<String, String>()? {
                    if seen.contains(&name) && twice.is_none() {
                        twice = Some(name.clone());
                    }
                    seen.insert(name);
                }
                Ok(Metadata { twice })
            }
        }
        deserializer.deserialize_map(Texts)
    }
}
