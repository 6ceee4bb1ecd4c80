//! Digests on the device, bit for bit those of `coldproof_contract::digest`.
//!
//! A [`Table`] describes all tensors at once; one launch reads each byte once. Sums are modulo
//! 2^128, so that the order in which blocks are taken does not matter.

mod layout;
mod record;
mod table;
pub mod twin;

pub use layout::{LayoutError, TensorView};
pub use record::{LayoutRecord, TensorRecord, Tile};
pub use table::{DEFAULT_TILE_BLOCKS, Span, Table, TableError};

#[cfg(test)]
mod tests;
