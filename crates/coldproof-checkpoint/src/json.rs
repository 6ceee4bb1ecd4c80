//! JSON in which no key occurs twice, at any depth: most parsers silently keep the last.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Text that is not JSON, or not unambiguous.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not JSON.
    #[error("not well-formed JSON: {reason}")]
    Malformed {
        /// What the parser says, with line and column.
        reason: String,
    },
    /// A key given twice in one object.
    #[error("the key `{key}` occurs twice in one object")]
    KeyTwice {
        /// The key.
        key: String,
    },
}

/// Parses a document.
///
/// # Errors
/// Malformed JSON, trailing characters, or a key given twice in one object.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let mut twice = None;
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { twice: &mut twice }.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    match (twice, value) {
        (Some(key), _) => Err(JsonError::KeyTwice { key }),
        (None, Ok(value)) => Ok(value),
        (None, Err(error)) => Err(JsonError::Malformed { reason: error.to_string() }),
    }
}

/// Parses a document that Python's `json` may have written: its `Infinity`, `-Infinity` and `NaN`,
/// which are no JSON, become strings.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_configuration(bytes: &[u8]) -> Result<Value, JsonError> {
    const WORDS: [&[u8]; 3] = [b"Infinity", b"-Infinity", b"NaN"];
    let mut quoted = Vec::with_capacity(bytes.len());
    let (mut rest, mut in_string) = (bytes, false);
    while let Some((&byte, after)) = rest.split_first() {
        let word = WORDS.into_iter().find(|word| !in_string && rest.starts_with(word));
        let taken = match (word, after) {
            (Some(word), _) => {
                quoted.extend([&b"\""[..], word, b"\""].concat());
                rest = &rest[word.len()..];
                continue;
            }
            (None, [_, ..]) if in_string && byte == b'\\' => 2,
            _ => 1,
        };
        in_string ^= byte == b'"';
        quoted.extend_from_slice(&rest[..taken]);
        rest = &rest[taken..];
    }
    parse(&quoted)
}

/// Builds a value and remembers the first key that occurs twice.
struct Strict<'a> {
    twice: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(Strict { twice: &mut *self.twice })? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<Key>()? {
            let value = entries.next_value_seed(Strict { twice: &mut *self.twice })?;
            if map.insert(key.0.clone(), value).is_some() && self.twice.is_none() {
                *self.twice = Some(key.0);
            }
        }
        Ok(Value::Object(map))
    }
}

#[derive(Deserialize)]
struct Key(String);

/// A word for the kind of a value, for messages.
pub(crate) const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_twice_is_found_at_any_depth_and_equal_keys_of_two_objects_are_not() {
        let twice = |text: &str| parse(text.as_bytes());
        assert_eq!(
            twice(r#"{"a": [{"b": 1, "c": 2, "b": 1}]}"#),
            Err(JsonError::KeyTwice { key: "b".into() })
        );
        // The same key, once escaped.
        assert!(matches!(twice(r#"{"a": 1, "\u0061": 1}"#), Err(JsonError::KeyTwice { .. })));
        let value = twice(r#"{"a": {"b": 1}, "c": {"b": -1.5}, "d": [null, true, "x"]}"#).unwrap();
        assert_eq!(value["c"]["b"], -1.5);
    }

    #[test]
    fn words_of_python_are_strings_and_strings_stay_as_they_are() {
        let text = r#"{"a": [0.0, Infinity, -Infinity], "b": NaN, "c\\": "a \"NaN\" Infinity"}"#;
        let value = parse_configuration(text.as_bytes()).unwrap();
        assert_eq!(value["a"], serde_json::json!([0.0, "Infinity", "-Infinity"]));
        assert_eq!(value["b"], "NaN");
        assert_eq!(value["c\\"], "a \"NaN\" Infinity");
        for text in ["{\"a\": Inf}", "{\"a\": \"", "\"\\"] {
            assert!(parse_configuration(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn trailing_text_and_truncation_are_malformed() {
        for text in ["{} x", "{\"a\": ", "", "{\"a\": NaN}", "\u{feff}{}"] {
            assert!(matches!(parse(text.as_bytes()), Err(JsonError::Malformed { .. })), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(matches!(parse(deep.as_bytes()), Err(JsonError::Malformed { .. })));
    }
}
