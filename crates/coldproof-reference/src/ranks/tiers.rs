//! The tiers below one rank's paged blocks: in host memory, then in files.
//!
//! A block is reused only where every rank has it, so a rank first stages what it has, and then
//! fetches as much of it as all ranks have.

use std::sync::Arc;

use camino::Utf8PathBuf;
use coldproof_contract::evidence::{CacheFact, Fact, RequestStage};
use coldproof_contract::words::{Address, Generation};

use super::{Failure, Worker};
use crate::caches::{BlockBytes, BlockKey, FileTier, HostTier, Invalidation};
use crate::device::DeviceError;
use crate::kernels::KvFetch;
use crate::slots::{SlotId, Slots};

/// Host memory, in the inventory of caches.
pub(crate) const HOST: &str = "host-kv";
/// Files, in the inventory of caches.
pub(crate) const FILE: &str = "file-kv";

/// The tiers that one rank is started with.
#[derive(Clone, Debug)]
pub(crate) struct TierConfig {
    /// Bytes of host memory.
    pub(crate) host_bytes: u64,
    /// The folder of the files; none: there is no such tier.
    pub(crate) folder: Option<Utf8PathBuf>,
    /// What an update does to the host tier.
    pub(crate) invalidation: Invalidation,
    /// Whatever blocks depend on beside weights, adapters and what stands in them.
    pub(crate) layout: String,
}

/// The keys of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierKeys {
    /// In the host tier.
    pub(crate) host: BlockKey,
    /// In the file tier.
    pub(crate) file: BlockKey,
}

/// A block that was found and is not in a paged block yet.
#[derive(Debug)]
struct Staged {
    keys: TierKeys,
    stage: RequestStage,
    bytes: BlockBytes,
}

/// One rank's tiers.
#[derive(Debug)]
pub(crate) struct Tiers {
    host: HostTier,
    file: Option<FileTier>,
    staged: Vec<Staged>,
    /// Blocks fetched from the host tier and from the file tier since they were last stated.
    hits: [u64; 2],
}

impl Tiers {
    /// Empty, but for what is in the folder.
    pub(super) fn open(
        config: TierConfig,
        rank: u32,
        slots: &Slots,
        paged: &[SlotId],
    ) -> Result<Self, Failure> {
        let mut layout = blake3::Hasher::new();
        layout.update(config.layout.as_bytes());
        for id in paged {
            let spec = &slots[*id].spec;
            layout.update(format!("{} {:?} {}", spec.name, spec.shape, spec.dtype).as_bytes());
        }
        let file = config.folder.map(|root| FileTier::open(&root, &layout.finalize(), rank));
        let file = file.transpose().map_err(|error| Failure::Refused(error.to_string()))?;
        let host = HostTier::new(config.host_bytes, config.invalidation);
        Ok(Self { host, file, staged: Vec::new(), hits: [0; 2] })
    }

    /// The host tier answers an update; keys of files name the weights that computed them.
    pub(crate) fn invalidate(&mut self) {
        self.host.invalidate();
    }

    /// Forgets what is in host memory.
    pub(crate) fn forget(&mut self) {
        self.host.forget();
    }

    /// A block, from the nearer tier; what a file holds instead of it is an error.
    fn find(&mut self, keys: TierKeys, size: u64) -> Result<Option<Staged>, String> {
        if let Some(bytes) = self.host.find(keys.host) {
            return Ok(Some(Staged { keys, stage: RequestStage::HostTier, bytes }));
        }
        let Some(file) = &mut self.file else { return Ok(None) };
        let found = file.find(keys.file, size)?;
        let stage = RequestStage::FileTier;
        Ok(found.map(|bytes| Staged { keys, stage, bytes: Arc::new(bytes) }))
    }

    fn holds(&mut self, keys: TierKeys) -> bool {
        let in_host = self.host.find(keys.host).is_some();
        in_host && self.file.as_ref().is_none_or(|file| file.holds(keys.file))
    }

    /// What the rank says of its tiers.
    fn facts(&mut self, generation: Generation, version: &str) -> Vec<Fact> {
        let fact = |cache: &str, entries, hits, version| {
            let cache = cache.to_owned();
            Fact::Cache(CacheFact { cache, generation, entries, hits, version })
        };
        let [host, file] = std::mem::take(&mut self.hits);
        let mut facts = vec![fact(HOST, self.host.entries(generation), host, None)];
        let files = self.file.as_ref().map(FileTier::entries);
        facts.extend(files.map(|entries| fact(FILE, entries, file, Some(version.to_owned()))));
        facts
    }
}

impl Worker {
    /// Finds as many of these blocks, one after the other, as this rank has.
    pub(crate) fn stage_blocks(&mut self, keys: &[TierKeys]) -> usize {
        let size = self.paged.iter().map(|id| self.paged_bytes(*id)).sum();
        let Some(tiers) = &mut self.tiers else { return 0 };
        tiers.staged.clear();
        let mut told = None;
        for keys in keys {
            match tiers.find(*keys, size) {
                Ok(Some(staged)) => tiers.staged.push(staged),
                Ok(None) => break,
                Err(why) => {
                    told = Some(why);
                    break;
                }
            }
        }
        let staged = tiers.staged.len();
        if let Some(why) = told {
            self.claim(FILE, &why);
        }
        staged
    }

    /// Writes the first of the staged blocks into these paged blocks; the others are let go.
    pub(crate) fn fetch_blocks(
        &mut self,
        request: &str,
        blocks: &[u32],
        generation: Generation,
    ) -> Result<(), Failure> {
        let Some(tiers) = &mut self.tiers else { return Ok(()) };
        let staged = std::mem::take(&mut tiers.staged);
        self.device.set_request(request);
        for (Staged { keys, stage, bytes }, block) in staged.into_iter().zip(blocks) {
            let spans = self.spans(*block)?;
            let rows = self.kv.block_size as usize;
            self.device.set_stage(Some(stage));
            let fetch = KvFetch { bytes: Arc::clone(&bytes), spans, rows };
            let fetched = self.device.launch(fetch.into());
            self.device.set_stage(None);
            fetched?;
            let Some(tiers) = &mut self.tiers else { continue };
            tiers.hits[usize::from(stage == RequestStage::FileTier)] += 1;
            tiers.host.put(keys.host, generation, bytes);
        }
        Ok(())
    }

    /// Keeps what these paged blocks hold, where a tier has not got it. One that cannot be kept is
    /// a miss later on.
    pub(crate) fn offload_blocks(
        &mut self,
        blocks: &[(TierKeys, u32)],
        generation: Generation,
    ) -> Result<(), Failure> {
        let mut lost: Option<(u64, String)> = None;
        for &(keys, block) in blocks {
            if self.tiers.as_mut().is_none_or(|tiers| tiers.holds(keys)) {
                continue;
            }
            let bytes = Arc::new(self.block_bytes(block)?);
            let Some(tiers) = &mut self.tiers else { continue };
            tiers.host.put(keys.host, generation, Arc::clone(&bytes));
            let Some(file) = tiers.file.as_mut().filter(|file| !file.holds(keys.file)) else {
                continue;
            };
            if let Err(error) = file.put(keys.file, &bytes) {
                lost.get_or_insert((0, error.to_string())).0 += 1;
            }
        }
        if let Some((count, why)) = lost {
            self.claim(FILE, &format!("{count} blocks are not kept: {why}"));
        }
        Ok(())
    }

    /// What this rank says of its tiers, if it has some.
    pub(crate) fn tier_facts(&mut self, generation: Generation, version: &str) -> Vec<Fact> {
        self.tiers.as_mut().map_or_else(Vec::new, |tiers| tiers.facts(generation, version))
    }

    /// Bytes of one block of a paged slot.
    fn paged_bytes(&self, id: SlotId) -> u64 {
        self.slots[id].spec.bytes() / self.kv.blocks
    }

    /// Where a block lies in each paged slot.
    fn spans(&self, block: u32) -> Result<Vec<(Address, usize)>, Failure> {
        let span = |id: &SlotId| {
            let bytes = self.paged_bytes(*id);
            let address = self.slots.address(*id)?.plus(u64::from(block) * bytes);
            Ok((address, bytes as usize))
        };
        self.paged.iter().map(span).collect()
    }

    fn block_bytes(&self, block: u32) -> Result<Vec<u8>, Failure> {
        let spans = self.spans(block)?;
        let read = |(address, bytes): (Address, usize)| self.device.read(address, bytes as u64);
        let parts: Vec<&[u8]> = spans.into_iter().map(read).collect::<Result<_, DeviceError>>()?;
        Ok(parts.concat())
    }
}
