//! Changes of JSON documents, drawn from numbers, for tests that feed nearly sound input.

use proptest::prelude::*;
use serde_json::Value;

/// One change: where, modulo the nodes of the document, and what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    at: usize,
    kind: usize,
    other: usize,
}

/// Values over which programs trip.
const ODD: [&str; 22] = [
    "null",
    "true",
    "0",
    "1",
    "-1",
    "2",
    "0.5",
    "1e308",
    "-0.0",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "[]",
    "{}",
    "[[[[[[[[0]]]]]]]]",
    "\"\"",
    "\"\\n\\u001b[31m\\u0000\"",
    "\"0x\"",
    "\"0xffffffffffffffff\"",
    "\"0xffffffffffffffffffffffffffffffff\"",
    "\"\u{1F980}\"",
];

pub(crate) fn changes(
    count: impl Into<prop::collection::SizeRange>,
) -> impl Strategy<Value = Vec<Change>> {
    let change = (any::<usize>(), 0_usize..8, any::<usize>());
    let change = change.prop_map(|(at, kind, other)| Change { at, kind, other });
    prop::collection::vec(change, count)
}

/// Where every node of a document is.
fn pointers(document: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match document {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, &format!("{at}/{index}"), all);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                pointers(field, &format!("{at}/{name}"), all);
            }
        }
        _ => {}
    }
}

impl Change {
    /// Changes the document.
    pub(crate) fn make(self, document: &mut Value) {
        let mut all = Vec::new();
        pointers(document, "", &mut all);
        let at = &all[self.at % all.len()];
        let other = document.pointer(&all[self.other % all.len()]).cloned();
        let odd = || serde_json::from_str(ODD[self.other % ODD.len()]).expect("JSON");
        let Some(node) = document.pointer_mut(at) else { return };
        match (self.kind, node) {
            // What stands elsewhere in the document.
            (0, node) => *node = other.unwrap_or_default(),
            (1, Value::Array(items)) if !items.is_empty() => {
                drop(items.remove(self.other % items.len()));
            }
            (2, Value::Array(items)) if !items.is_empty() => {
                items.push(items[self.other % items.len()].clone());
            }
            (1, Value::Object(fields)) if !fields.is_empty() => {
                let name = fields.keys().nth(self.other % fields.len()).cloned();
                drop(name.and_then(|name| fields.remove(&name)));
            }
            (2, Value::Object(fields)) if !fields.is_empty() => {
                let index = self.other % fields.len();
                let value = fields.values().nth(index).cloned();
                fields.insert("another".to_owned(), value.unwrap_or_default());
            }
            (3, Value::Array(items)) => items.reverse(),
            // A number beside the one that is there, or one bit away from it.
            (4, Value::Number(number)) => {
                let near = number.as_u64().map(|n| n.wrapping_add(1));
                *number = near.map_or_else(|| 1.into(), Into::into);
            }
            (5, Value::Number(number)) => {
                let near = number.as_u64().map(|n| n ^ 1 << (self.other % 64));
                *number = near.map_or_else(|| 1.into(), Into::into);
            }
            (4 | 5, Value::String(text)) => {
                text.pop();
            }
            (_, node) => *node = odd(),
        }
    }
}
