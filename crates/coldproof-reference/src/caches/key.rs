//! The identity of a cached KV block: what stands up to its end and the weights that computed it.

use coldproof_contract::words::Generation;

use super::Symbol;

/// Identity of one full block. Blocks form a chain, so that a key stands for all that is before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockKey([u8; 32]);

impl BlockKey {
    /// The key of the block that follows `parent` and holds `symbols`.
    ///
    /// Without a generation, blocks of different weights have the same key.
    pub(crate) fn of(
        parent: Option<Self>,
        symbols: &[Symbol],
        generation: Option<Generation>,
    ) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&parent.map_or([0; 32], |key| key.0));
        hasher.update(&generation.map_or(0, |generation| generation.0).to_le_bytes());
        for symbol in symbols {
            match symbol {
                Symbol::Token(token) => hasher.update(&[0]).update(&token.to_le_bytes()),
                Symbol::Row(image, row) => {
                    hasher.update(&[1]).update(image.bytes()).update(&row.to_le_bytes())
                }
            };
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// What the first block of an adapter follows: the adapter, as these bytes identify it.
    pub(crate) fn adapter(identity: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"adapter");
        hasher.update(identity);
        Self(*hasher.finalize().as_bytes())
    }

    /// What the first block follows where keys name the weights by these bytes and no number.
    pub(crate) fn weights(identity: &[u8], adapter: Option<Self>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"weights");
        hasher.update(&adapter.map_or([0; 32], |key| key.0));
        hasher.update(identity);
        Self(*hasher.finalize().as_bytes())
    }

    /// Its bytes.
    pub(crate) const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The chain of keys of all full blocks of `symbols`, after `root` where there is one.
    pub(crate) fn chain(
        root: Option<Self>,
        symbols: &[Symbol],
        size: usize,
        generation: Option<Generation>,
    ) -> Vec<Self> {
        let mut keys = Vec::with_capacity(symbols.len() / size.max(1));
        for block in symbols.chunks_exact(size.max(1)) {
            keys.push(Self::of(keys.last().copied().or(root), block, generation));
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ImageId, Symbol};
    use super::*;

    fn chain(tokens: &[u32], generation: Option<Generation>) -> Vec<BlockKey> {
        chain_after(None, tokens, generation)
    }

    fn chain_after(
        root: Option<BlockKey>,
        tokens: &[u32],
        generation: Option<Generation>,
    ) -> Vec<BlockKey> {
        let symbols: Vec<Symbol> = tokens.iter().map(|&token| Symbol::Token(token)).collect();
        BlockKey::chain(root, &symbols, 2, generation)
    }

    #[test]
    fn a_key_stands_for_all_tokens_before_and_for_the_weights() {
        let one = Some(Generation(1));
        let a = chain(&[1, 2, 3, 4, 5], one);
        assert_eq!(a.len(), 2, "the last token fills no block");
        let b = chain(&[9, 2, 3, 4], one);
        assert_ne!(a[1], b[1], "another first block");
        assert_eq!(a, chain(&[1, 2, 3, 4], one));
        assert_ne!(a, chain(&[1, 2, 3, 4], Some(Generation(2))));
        assert_eq!(chain(&[1, 2, 3, 4], None), chain(&[1, 2, 3, 4], None));
    }

    #[test]
    fn a_chain_of_an_adapter_is_its_own_to_the_end() {
        let chain = |of: Option<&[u8]>| {
            chain_after(of.map(BlockKey::adapter), &[1, 2, 3, 4], Some(Generation(1)))
        };
        let (base, one, other) = (chain(None), chain(Some(b"one")), chain(Some(b"other")));
        for block in 0..2 {
            assert_ne!(base[block], one[block]);
            assert_ne!(one[block], other[block]);
        }
        assert_eq!(one, chain(Some(b"one")));
    }

    #[test]
    fn a_chain_of_named_weights_is_its_own_to_the_end() {
        let adapter = Some(BlockKey::adapter(b"one"));
        let chain = |identity: &[u8], adapter: Option<BlockKey>| {
            chain_after(Some(BlockKey::weights(identity, adapter)), &[1, 2, 3, 4], None)
        };
        let one = chain(b"a", None);
        assert_eq!(one, chain(b"a", None));
        for other in [chain(b"b", None), chain(b"a", adapter), chain_after(None, &[1, 2], None)] {
            assert!(one.iter().zip(&other).all(|(one, other)| one != other));
        }
    }

    #[test]
    fn a_key_stands_for_the_image_and_not_for_the_token_in_its_place() {
        let row = |pixel: u8, row: u32| Symbol::Row(ImageId::of(&[pixel]), row);
        let key = |symbols: &[Symbol]| BlockKey::of(None, symbols, None);
        let one = key(&[row(1, 0), row(1, 1)]);
        assert_eq!(one, key(&[row(1, 0), row(1, 1)]));
        assert_ne!(one, key(&[row(2, 0), row(2, 1)]), "another image");
        assert_ne!(one, key(&[row(1, 1), row(1, 2)]), "other rows of it");
        assert_ne!(one, key(&[Symbol::Token(330), Symbol::Token(330)]));
    }
}
