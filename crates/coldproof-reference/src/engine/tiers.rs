//! The tiers below the paged blocks: what a prefix that the blocks do not hold is looked up by.

use coldproof_contract::words::{Generation, Rank};

use super::EngineError;
use super::config::{EngineConfig, KvTiers};
use super::core::Core;
use super::request::GenerateRequest;
use crate::caches::{BlockKey, Invalidation, Symbol, WeightsIdentity};
use crate::faults::{Faults, FileKeys, file_keys, host_invalidation};
use crate::ranks::{TierConfig, TierKeys, Tiers};

/// What the engine knows of the tiers of its ranks.
#[derive(Clone, Debug)]
pub(super) struct TierKeeper {
    /// Which weights are served.
    pub(super) identity: WeightsIdentity,
    /// Whether keys of the host tier name the generation.
    pub(super) host_keyed: bool,
    /// What keys of files name of the weights.
    pub(super) files: FileKeys,
    /// What the model is called.
    pub(super) model: String,
}

impl TierKeeper {
    /// Of an engine that has tiers, before anything is loaded.
    pub(super) fn of(config: &EngineConfig, faults: &Faults) -> Option<Self> {
        config.kv_tiers.as_ref()?;
        Some(Self {
            identity: WeightsIdentity::default(),
            host_keyed: host_invalidation(faults) != Invalidation::KeepUnkeyed,
            files: file_keys(faults),
            model: format!("{:?}", config.model.family),
        })
    }

    /// What keys of files name of the weights that are served.
    fn named(&self, generation: Generation) -> String {
        let FileKeys { content, generation: numbered, model } = self.files;
        let identity = self.identity.committed().unwrap_or_default();
        let hex = || blake3::Hash::from_bytes(identity).to_string();
        let parts = [
            content.then(hex),
            numbered.then(|| format!("generation {}", generation.0)),
            model.then(|| format!("model {}", self.model)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// The tiers of one rank, as it is started with them.
///
/// A file must never meet an engine whose blocks would have other bytes for the same weights: of
/// another model, another cut, another program, another instruction set.
pub(super) fn rank_tiers(
    config: &EngineConfig,
    faults: &Faults,
    rank: Rank,
) -> Option<(TierConfig, u32)> {
    let KvTiers { host_bytes, folder } = config.kv_tiers.clone()?;
    let EngineConfig { model, topology, block_size, .. } = config;
    let program = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let layout = format!("{model:?} {topology:?} {rank:?} {block_size} {program:?}");
    let invalidation = host_invalidation(faults);
    Some((TierConfig { host_bytes, folder, invalidation, layout }, topology.index(rank)))
}

impl Core {
    /// Continues a known prefix with blocks of the tiers, as far as every rank has them.
    pub(super) fn fetch_prefix(
        &mut self,
        request: &GenerateRequest,
        symbols: &[Symbol],
        blocks: &mut Vec<u32>,
    ) -> Result<(), EngineError> {
        // As in the paged blocks: the last token must be computed to have logits.
        let reusable = &symbols[..symbols.len().saturating_sub(1)];
        let keys = self.tier_keys(request, reusable);
        let rest = keys.get(blocks.len()..).unwrap_or_default().to_vec();
        if rest.is_empty() {
            return Ok(());
        }
        let staged = self.each(move |worker| Ok(worker.stage_blocks(&rest)))?;
        let everywhere = staged.into_iter().min().unwrap_or(0);
        let mut fetched = Vec::with_capacity(everywhere);
        for _ in 0..everywhere {
            let block = self.blocks.take()?;
            blocks.push(block);
            fetched.push(block);
        }
        let (name, generation) = (request.name.clone(), self.machine.generation());
        self.each(move |worker| worker.fetch_blocks(&name, &fetched, generation))?;
        Ok(())
    }

    /// Keeps the full blocks of a request that was served.
    pub(super) fn offload(
        &mut self,
        request: &GenerateRequest,
        symbols: &[Symbol],
        blocks: &[u32],
    ) -> Result<(), EngineError> {
        let keys = self.tier_keys(request, symbols);
        if keys.is_empty() {
            return Ok(());
        }
        let kept: Vec<(TierKeys, u32)> = keys.into_iter().zip(blocks.iter().copied()).collect();
        let generation = self.machine.generation();
        self.each(move |worker| worker.offload_blocks(&kept, generation))?;
        Ok(())
    }

    /// The keys of all full blocks of these symbols; none without tiers.
    fn tier_keys(&self, request: &GenerateRequest, symbols: &[Symbol]) -> Vec<TierKeys> {
        let Some(keeper) = &self.tiers else { return Vec::new() };
        let generation = self.machine.generation();
        let content = request.adapter.as_ref().and_then(|name| self.adapters.get(name));
        let adapter = content.map(|content| BlockKey::adapter(&content.0.to_le_bytes()));
        let size = self.config.block_size as usize;
        let numbered = keeper.host_keyed.then_some(generation);
        let host = BlockKey::chain(adapter, symbols, size, numbered);
        let named = BlockKey::weights(keeper.named(generation).as_bytes(), adapter);
        let file = BlockKey::chain(Some(named), symbols, size, None);
        host.into_iter().zip(file).map(|(host, file)| TierKeys { host, file }).collect()
    }

    /// Forgets what the tiers hold in host memory.
    pub(super) fn forget_host_tier(&mut self) -> Result<(), EngineError> {
        if self.tiers.is_some() {
            self.each(|worker| {
                worker.tiers.iter_mut().for_each(Tiers::forget);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// What files are valid for, as the engine states it.
    pub(super) fn tier_version(&self) -> String {
        self.tiers
            .as_ref()
            .map_or_else(String::new, |keeper| keeper.named(self.machine.generation()))
    }
}
