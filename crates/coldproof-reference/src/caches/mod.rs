//! Caches over paged KV blocks and the tiers below them, the encoder's rows, and prepared images.

mod encoder;
mod file_tier;
mod host_tier;
mod image;
mod key;
mod kv_blocks;
mod processor;
mod weights_identity;
mod weights_key;

pub(crate) use encoder::{EncoderCache, OutOfEntries};
pub(crate) use file_tier::FileTier;
pub(crate) use host_tier::{BlockBytes, HostTier};
pub(crate) use image::{ImageId, Symbol, symbols};
pub(crate) use key::BlockKey;
pub(crate) use kv_blocks::{Invalidation, KvBlocks, OutOfBlocks};
pub(crate) use processor::{Pixels, ProcessorCache};
pub(crate) use weights_identity::WeightsIdentity;
pub(crate) use weights_key::WeightsKey;
