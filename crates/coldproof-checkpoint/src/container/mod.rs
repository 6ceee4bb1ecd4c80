//! The container format: safetensors, one file or shards with an index.

mod checkpoint;
mod header;
mod identity;
mod index;
mod tensor;
mod writer;

pub use checkpoint::Checkpoint;
pub use identity::FileIdentity;
pub use tensor::{TensorReader, TensorRef};
pub use writer::{Layout, TensorSpec, write_checkpoint};

pub(crate) use checkpoint::{
    ADAPTER_NAME, CONFIG_NAME, DRAFT_CONFIG_NAME, PROCESSOR_NAMES, read_small,
};
pub(crate) use header::bytes_of;
pub(crate) use writer::{prepare, sync_directory, write_whole};
