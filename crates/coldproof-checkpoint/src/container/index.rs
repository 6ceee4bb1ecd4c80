//! The index of a sharded checkpoint: which tensor lies in which file.

use std::collections::BTreeMap;

use camino::{Utf8Component, Utf8Path};
use serde_json::Value;

use crate::error::Fault;
use crate::json::{self, kind};

/// File name of the index.
pub(super) const INDEX_NAME: &str = "model.safetensors.index.json";

/// Shard names by tensor.
pub(super) type WeightMap = BTreeMap<String, String>;

/// Reads the text of an index. Its `metadata` is not trusted for anything.
pub(super) fn parse(text: &[u8]) -> Result<WeightMap, Fault> {
    let structure = |reason: String| Fault::IndexStructure { reason };
    let map = match json::parse(text).map_err(Fault::Json)? {
        Value::Object(mut root) => match root.remove("weight_map") {
            Some(Value::Object(map)) => map,
            Some(other) => return Err(structure(format!("it is {}", kind(&other)))),
            None => return Err(structure("it is missing".to_owned())),
        },
        other => return Err(structure(format!("the document is {}", kind(&other)))),
    };
    if map.is_empty() {
        return Err(Fault::IndexEmpty);
    }
    map.into_iter()
        .map(|(tensor, shard)| match shard {
            Value::String(shard) if is_plain(&shard) => Ok((tensor, shard)),
            Value::String(shard) => Err(Fault::ShardName { shard }),
            other => Err(structure(format!("`{tensor}` is {}", kind(&other)))),
        })
        .collect()
}

/// Whether the name is one of a file in the same directory.
fn is_plain(name: &str) -> bool {
    let mut components = Utf8Path::new(name).components();
    let first = components.next();
    matches!(first, Some(Utf8Component::Normal(normal)) if normal == name)
        && components.next().is_none()
        && !name.contains('\0')
}
