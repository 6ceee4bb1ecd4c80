//! Caches derived from weights: paged KV blocks and the prefix cache over them.

mod key;
mod kv_blocks;

pub(crate) use key::BlockKey;
pub(crate) use kv_blocks::{Invalidation, KvBlocks, OutOfBlocks};
