//! The identity of a cached KV block: the tokens up to its end and the weights that computed it.

use coldproof_contract::words::Generation;

/// Identity of one full block. Blocks form a chain, so that a key stands for all tokens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockKey([u8; 32]);

impl BlockKey {
    /// The key of the block that follows `parent` and holds `tokens`.
    ///
    /// Without a generation, blocks of different weights have the same key.
    pub(crate) fn of(parent: Option<Self>, tokens: &[u32], generation: Option<Generation>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&parent.map_or([0; 32], |key| key.0));
        hasher.update(&generation.map_or(0, |generation| generation.0).to_le_bytes());
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The chain of keys of all full blocks of `tokens`.
    pub(crate) fn chain(tokens: &[u32], size: usize, generation: Option<Generation>) -> Vec<Self> {
        let mut keys = Vec::with_capacity(tokens.len() / size.max(1));
        for block in tokens.chunks_exact(size.max(1)) {
            keys.push(Self::of(keys.last().copied(), block, generation));
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_for_all_tokens_before_and_for_the_weights() {
        let one = Some(Generation(1));
        let a = BlockKey::chain(&[1, 2, 3, 4, 5], 2, one);
        assert_eq!(a.len(), 2, "the last token fills no block");
        let b = BlockKey::chain(&[9, 2, 3, 4], 2, one);
        assert_ne!(a[1], b[1], "another first block");
        assert_eq!(a, BlockKey::chain(&[1, 2, 3, 4], 2, one));
        assert_ne!(a, BlockKey::chain(&[1, 2, 3, 4], 2, Some(Generation(2))));
        let unkeyed = BlockKey::chain(&[1, 2, 3, 4], 2, None);
        assert_eq!(unkeyed, BlockKey::chain(&[1, 2, 3, 4], 2, None));
    }
}
