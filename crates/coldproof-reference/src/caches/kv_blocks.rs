//! Paged KV blocks with a prefix cache.
//!
//! As in vLLM, a block that no request holds stays cached until it is handed out again; free blocks
//! are handed out oldest first. The contents live in each rank's arena; this table lives once,
//! with the scheduler.

use std::collections::{BTreeMap, VecDeque};

use coldproof_contract::words::{Generation, Hex128};

use super::{BlockKey, Symbol, WeightsKey};

/// What `invalidate` does to the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Invalidation {
    /// Empties it; keys carry the generation too.
    #[default]
    Empty,
    /// Keeps entries; keys carry the generation, so that old ones are out of reach.
    KeepKeyed,
    /// Keeps entries under keys that name no generation.
    KeepUnkeyed,
}

impl Invalidation {
    /// Whether a request at generation `current` reaches an entry that `made` computed.
    pub(super) fn reaches(self, made: Generation, current: Generation) -> bool {
        self == Self::KeepUnkeyed || made == current
    }
}

/// No block is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the KV cache has {blocks} blocks and none is free; shorten the request or start the engine \
     with more blocks"
)]
pub(crate) struct OutOfBlocks {
    /// Blocks of the cache.
    pub(crate) blocks: u32,
}

/// Which blocks are held, free and cached.
#[derive(Debug)]
pub(crate) struct KvBlocks {
    holders: Vec<u32>,
    keys: Vec<Option<(BlockKey, Generation)>>,
    free: VecDeque<u32>,
    cached: BTreeMap<BlockKey, u32>,
    block_size: usize,
    invalidation: Invalidation,
    /// The generation that the cache acknowledges.
    generation: Generation,
    hits: u64,
}

impl KvBlocks {
    /// The block that unused entries of a block table name; no request ever holds it.
    const PADDING: u32 = 0;

    /// A cache of `blocks` blocks of `block_size` tokens, all free but the padding block.
    pub(crate) fn new(blocks: u32, block_size: usize, invalidation: Invalidation) -> Self {
        Self {
            holders: vec![0; blocks as usize],
            keys: vec![None; blocks as usize],
            free: (Self::PADDING + 1..blocks).collect(),
            cached: BTreeMap::new(),
            block_size,
            invalidation,
            generation: Generation(0),
            hits: 0,
        }
    }

    fn key_generation(&self, current: Generation) -> Option<Generation> {
        (self.invalidation != Invalidation::KeepUnkeyed).then_some(current)
    }

    /// What blocks are keyed by: of an adapter its content, or its name alone where keys name no
    /// weights.
    pub(crate) fn weights_key(
        &self,
        generation: Generation,
        adapter: Option<(&str, Hex128)>,
    ) -> WeightsKey {
        let adapter = adapter.map(|(name, content)| match self.invalidation {
            Invalidation::KeepUnkeyed => BlockKey::adapter(name.as_bytes()),
            Invalidation::Empty | Invalidation::KeepKeyed => {
                BlockKey::adapter(&content.0.to_le_bytes())
            }
        });
        WeightsKey { generation, adapter }
    }

    /// Takes the cached blocks of the longest known prefix of `symbols`, at least one token short
    /// of all of them: the last token must be computed to have logits.
    pub(crate) fn take_prefix(&mut self, symbols: &[Symbol], current: WeightsKey) -> Vec<u32> {
        let reusable = symbols.len().saturating_sub(1);
        let generation = self.key_generation(current.generation);
        let (root, size) = (current.adapter, self.block_size);
        let keys = BlockKey::chain(root, &symbols[..reusable], size, generation);
        let mut blocks = Vec::new();
        for key in keys {
            let Some(&block) = self.cached.get(&key) else { break };
            self.hold(block);
            blocks.push(block);
        }
        self.hits += blocks.len() as u64;
        blocks
    }

    fn hold(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        if *holders == 0 {
            self.free.retain(|&free| free != block);
        }
        *holders += 1;
    }

    /// Hands out a block; what was cached in it is forgotten.
    pub(crate) fn take(&mut self) -> Result<u32, OutOfBlocks> {
        let blocks = self.holders.len() as u32;
        let block = self.free.pop_front().ok_or(OutOfBlocks { blocks })?;
        if let Some((key, _)) = self.keys[block as usize].take() {
            self.cached.remove(&key);
        }
        self.holders[block as usize] = 1;
        Ok(block)
    }

    /// Caches the full blocks of these symbols, which `blocks` hold, and gives all of them back.
    pub(crate) fn release(&mut self, blocks: &[u32], cache: Option<(&[Symbol], WeightsKey)>) {
        if let Some((symbols, current)) = cache {
            let generation = self.key_generation(current.generation);
            let keys = BlockKey::chain(current.adapter, symbols, self.block_size, generation);
            for (key, &block) in keys.into_iter().zip(blocks) {
                if self.keys[block as usize].is_none() && !self.cached.contains_key(&key) {
                    self.cached.insert(key, block);
                    self.keys[block as usize] = Some((key, current.generation));
                }
            }
        }
        // Last block first: the beginning of a prompt is the part most likely to be asked again.
        for &block in blocks.iter().rev() {
            let holders = &mut self.holders[block as usize];
            *holders = holders.saturating_sub(1);
            if *holders == 0 {
                self.free.push_back(block);
            }
        }
    }

    /// Answers an update to `generation`.
    pub(crate) fn invalidate(&mut self, generation: Generation) {
        self.generation = generation;
        if self.invalidation == Invalidation::Empty {
            self.forget();
        }
    }

    /// Forgets every entry: the memory behind them is gone.
    pub(crate) fn forget(&mut self) {
        self.cached.clear();
        self.keys.fill(None);
    }

    /// The generation that the cache last acknowledged.
    pub(crate) const fn generation(&self) -> Generation {
        self.generation
    }

    /// Entries that a request at the acknowledged generation could reach.
    pub(crate) fn entries(&self) -> u64 {
        let reaches = |made: Generation| self.invalidation.reaches(made, self.generation);
        self.keys.iter().flatten().filter(|(_, made)| reaches(*made)).count() as u64
    }

    /// Blocks reused since the last call.
    pub(crate) fn take_hits(&mut self) -> u64 {
        std::mem::take(&mut self.hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: WeightsKey = WeightsKey { generation: Generation(1), adapter: None };
    const TWO: WeightsKey = WeightsKey { generation: Generation(2), adapter: None };

    fn symbols(tokens: &[u32]) -> Vec<Symbol> {
        tokens.iter().map(|&token| Symbol::Token(token)).collect()
    }

    fn warmed(invalidation: Invalidation) -> KvBlocks {
        let mut blocks = KvBlocks::new(6, 2, invalidation);
        let held = [blocks.take().expect("free"), blocks.take().expect("free")];
        blocks.release(&held, Some((&symbols(&[1, 2, 3, 4]), ONE)));
        blocks
    }

    #[test]
    fn the_last_token_is_always_computed() {
        let mut blocks = warmed(Invalidation::Empty);
        assert_eq!(blocks.take_prefix(&symbols(&[1, 2, 3, 4]), ONE).len(), 1);
        assert_eq!(blocks.take_prefix(&symbols(&[1, 2, 3, 4, 5]), ONE).len(), 2);
        assert_eq!(blocks.take_hits(), 3);
    }

    #[test]
    fn a_reused_block_is_no_longer_cached() {
        let mut blocks = warmed(Invalidation::Empty);
        for _ in 0..5 {
            blocks.take().expect("free");
        }
        assert_eq!(blocks.take(), Err(OutOfBlocks { blocks: 6 }));
        assert_eq!(blocks.entries(), 0);
    }

    #[test]
    fn only_unkeyed_entries_are_reached_by_other_weights() {
        for (invalidation, reached) in
            [(Invalidation::Empty, 0), (Invalidation::KeepKeyed, 0), (Invalidation::KeepUnkeyed, 2)]
        {
            let mut blocks = warmed(invalidation);
            blocks.invalidate(TWO.generation);
            assert_eq!(blocks.entries(), reached as u64);
            assert_eq!(blocks.take_prefix(&symbols(&[1, 2, 3, 4, 5]), TWO).len(), reached);
        }
    }

    #[test]
    fn another_adapter_of_a_name_reaches_blocks_that_are_keyed_by_the_name_alone() {
        for (invalidation, reached) in
            [(Invalidation::Empty, 0), (Invalidation::KeepKeyed, 0), (Invalidation::KeepUnkeyed, 2)]
        {
            let mut blocks = KvBlocks::new(6, 2, invalidation);
            let [old, new] = [1, 2]
                .map(|content| blocks.weights_key(Generation(1), Some(("name", Hex128(content)))));
            let (filled, asked) = (symbols(&[1, 2, 3, 4]), symbols(&[1, 2, 3, 4, 5]));
            let held = [blocks.take().expect("free"), blocks.take().expect("free")];
            blocks.release(&held, Some((&filled, old)));
            assert_eq!(blocks.take_prefix(&asked, ONE).len(), 0, "the base model");
            assert_eq!(blocks.take_prefix(&asked, new).len(), reached);
            assert_eq!(blocks.take_prefix(&asked, old).len(), 2);
        }
    }
}
