//! Typed reads of the fields of a configuration, in both of their spellings.

use serde_json::{Map, Value};

use crate::json::kind;

use super::ConfigError;

/// The largest size of any axis: above it, products of sizes no longer fit their words.
const SIZE_MAX: u64 = 1 << 28;

/// An object of a configuration, with the path that leads to it.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Fields<'a> {
    pub(super) fn root(value: &'a Value) -> Result<Self, ConfigError> {
        match value {
            Value::Object(map) => Ok(Self { map, path: "" }),
            other => Err(ConfigError::Kind {
                field: "(document)".to_owned(),
                expected: "an object",
                found: kind(other),
            }),
        }
    }

    /// A field that is there and not null.
    fn get(self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The field's full name.
    pub(super) fn path(self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    fn wrong_kind(self, name: &str, expected: &'static str, found: &Value) -> ConfigError {
        ConfigError::Kind { field: self.path(name), expected, found: kind(found) }
    }

    /// A field with two spellings, of which both may be there if they agree.
    fn either(
        self,
        names: [&'static str; 2],
    ) -> Result<Option<(&'static str, &'a Value)>, ConfigError> {
        let [first, second] = names;
        match (self.get(first), self.get(second)) {
            (Some(a), Some(b)) if a != b => Err(ConfigError::Disagree {
                first: self.path(first),
                first_value: a.to_string(),
                second: self.path(second),
                second_value: b.to_string(),
            }),
            (Some(a), _) => Ok(Some((first, a))),
            (None, Some(b)) => Ok(Some((second, b))),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn object(self, name: &'a str) -> Result<Option<Fields<'a>>, ConfigError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { map, path: prefix(name) })),
            Some(other) => Err(self.wrong_kind(name, "an object", other)),
        }
    }

    pub(super) fn text(self, name: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_kind(name, "a string", other)),
        }
    }

    /// A text under one of two names.
    pub(super) fn either_text(
        self,
        names: [&'static str; 2],
    ) -> Result<Option<(&'static str, &'a str)>, ConfigError> {
        match self.either(names)? {
            Some((name, _)) => Ok(self.text(name)?.map(|text| (name, text))),
            None => Ok(None),
        }
    }

    pub(super) fn flag(self, name: &str) -> Result<Option<bool>, ConfigError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong_kind(name, "a boolean", other)),
        }
    }

    /// A size: an integer from 1 on.
    pub(super) fn size(self, name: &str) -> Result<Option<u64>, ConfigError> {
        self.whole(name, "size", 1)
    }

    /// A count: an integer from 0 on.
    pub(super) fn count(self, name: &str) -> Result<Option<u64>, ConfigError> {
        self.whole(name, "count", 0)
    }

    fn whole(self, name: &str, what: &str, least: u64) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Value::Number(number) = value else {
            return Err(self.wrong_kind(name, "a whole number", value));
        };
        match number.as_u64() {
            Some(whole) if (least..=SIZE_MAX).contains(&whole) => Ok(Some(whole)),
            _ => Err(ConfigError::Size {
                field: self.path(name),
                value: number.to_string(),
                reason: format!("a {what} is a whole number from {least} to {SIZE_MAX}"),
            }),
        }
    }

    pub(super) fn required_size(self, name: &str) -> Result<u64, ConfigError> {
        self.size(name)?.ok_or_else(|| self.missing(name))
    }

    /// A size under one of two names.
    pub(super) fn either_required_size(self, names: [&'static str; 2]) -> Result<u64, ConfigError> {
        match self.either(names)? {
            Some((name, _)) => self.required_size(name),
            None => Err(self.missing(&names.join("` or `"))),
        }
    }

    /// A size under one of two names, if it is there.
    pub(super) fn either_size(self, names: [&'static str; 2]) -> Result<Option<u64>, ConfigError> {
        match self.either(names)? {
            Some((name, _)) => self.size(name),
            None => Ok(None),
        }
    }

    /// A positive finite number.
    pub(super) fn positive(self, name: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Value::Number(number) = value else {
            return Err(self.wrong_kind(name, "a number", value));
        };
        match number.as_f64() {
            Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(ConfigError::Size {
                field: self.path(name),
                value: number.to_string(),
                reason: "it must be positive".to_owned(),
            }),
        }
    }

    pub(super) fn required_positive(self, name: &str) -> Result<f64, ConfigError> {
        self.positive(name)?.ok_or_else(|| self.missing(name))
    }

    /// A whole number of either sign.
    pub(super) fn integer(self, name: &str) -> Result<Option<i64>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || self.wrong_kind(name, "a whole number", value);
        value.as_i64().map(Some).ok_or_else(wrong)
    }

    /// A list of numbers, if it is there.
    pub(super) fn numbers(self, name: &str) -> Result<Option<Vec<f64>>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Value::Array(items) = value else {
            return Err(self.wrong_kind(name, "a list", value));
        };
        let number = |item: &Value| {
            item.as_f64().ok_or_else(|| self.wrong_kind(name, "a list of numbers", item))
        };
        items.iter().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// A list of small indices.
    pub(super) fn indices(self, name: &str) -> Result<Vec<u64>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let Value::Array(items) = value else {
            return Err(self.wrong_kind(name, "a list", value));
        };
        let index = |item: &Value| {
            item.as_u64().ok_or_else(|| self.wrong_kind(name, "a list of indices", item))
        };
        items.iter().map(index).collect()
    }

    /// A list of texts, if it is there.
    pub(super) fn texts(self, name: &str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Value::Array(items) = value else {
            return Err(self.wrong_kind(name, "a list", value));
        };
        let text = |item: &'a Value| {
            item.as_str().ok_or_else(|| self.wrong_kind(name, "a list of strings", item))
        };
        items.iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn missing(self, name: &str) -> ConfigError {
        ConfigError::Missing { field: self.path(name) }
    }

    /// Refuses a field unless it is absent, null, or one of the supported values.
    pub(super) fn only(self, name: &str, supported: &[Value]) -> Result<(), ConfigError> {
        match self.get(name) {
            Some(value) if !supported.contains(value) => Err(ConfigError::Unsupported {
                field: self.path(name),
                value: summary(value),
                supported: if supported.is_empty() {
                    "none".to_owned()
                } else {
                    supported.iter().map(summary).collect::<Vec<_>>().join(", ")
                },
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a list that holds anything but one value.
    pub(super) fn only_all(self, name: &str, supported: &Value) -> Result<(), ConfigError> {
        let items = match self.get(name) {
            Some(Value::Array(items)) => items.as_slice(),
            Some(other) => return Err(self.wrong_kind(name, "a list", other)),
            None => return Ok(()),
        };
        match items.iter().find(|item| *item != supported) {
            Some(other) => Err(ConfigError::Unsupported {
                field: self.path(name),
                value: summary(other),
                supported: summary(supported),
            }),
            None => Ok(()),
        }
    }
}

/// The objects that configurations nest; a path is for messages only.
fn prefix(name: &str) -> &'static str {
    match name {
        "rope_parameters" => "rope_parameters.",
        "rope_scaling" => "rope_scaling.",
        "text_config" => "text_config.",
        "vision_config" => "vision_config.",
        "image_processor" => "image_processor.",
        "full_attention" => "rope_parameters.full_attention.",
        "sliding_attention" => "rope_parameters.sliding_attention.",
        _ => "",
    }
}

/// A value for a message: objects and lists by their kind, the rest as written.
fn summary(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{text}`"),
        Value::Object(_) | Value::Array(_) => kind(value).to_owned(),
        other => other.to_string(),
    }
}
