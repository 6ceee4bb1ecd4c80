//! Caches over paged KV blocks, the encoder's rows, and prepared images.

mod encoder;
mod image;
mod key;
mod kv_blocks;
mod processor;
mod weights_key;

pub(crate) use encoder::{EncoderCache, OutOfEntries};
pub(crate) use image::{ImageId, Symbol, symbols};
pub(crate) use key::BlockKey;
pub(crate) use kv_blocks::{Invalidation, KvBlocks, OutOfBlocks};
pub(crate) use processor::{Pixels, ProcessorCache};
pub(crate) use weights_key::WeightsKey;
