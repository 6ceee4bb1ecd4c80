//! What computed a cached block: a generation of the base model's weights, and an adapter.

use coldproof_contract::words::Generation;

use super::BlockKey;

/// What a block was computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightsKey {
    /// The weights of the base model.
    pub(crate) generation: Generation,
    /// What a chain of blocks of an adapter begins with; nothing for the base model.
    pub(crate) adapter: Option<BlockKey>,
}
