//! What the engine says of itself.

use coldproof_contract::evidence::{CacheFact, ClaimFact, Fact, StateFact};
use coldproof_contract::words::{Policy, Rank};

use super::EngineError;
use super::core::Core;
use crate::kernels::PANEL_COLUMNS;
use crate::loader::HookKind;
use crate::ranks::Worker;

impl Core {
    /// Slots, configuration, caches and generation, as they are now.
    pub(crate) fn claims(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        let (generation, block_size) = (self.machine.generation(), self.config.block_size);
        let graphs = self.graphs.stated();
        let (cached, version) = (self.blocks.generation(), self.tier_version());
        let mut facts = self.facts(move |worker| {
            let mut facts = worker.slot_facts();
            facts.push(state("engine", "block_size", &block_size.to_string()));
            facts.extend(graphs.iter().map(|(name, value)| state("engine", name, value)));
            facts.extend(worker.kernel_facts());
            facts.extend(worker.expert_facts());
            let (what, value) = ("generation".to_owned(), generation.0.to_string());
            facts.push(Fact::Claim(ClaimFact { what, value }));
            facts.extend(worker.tier_facts(cached, &version));
            facts
        })?;
        let first = Rank::first_of(self.replica);
        let caches = self.caches().into_iter().map(Fact::Cache);
        facts.extend(caches.map(|fact| (first, fact)));
        Ok(facts)
    }

    /// Every cache, with what its entries are valid for. One table holds for keys, values and
    /// states, of the model and of what drafts for it: a block that is known has all of them.
    fn caches(&mut self) -> Vec<CacheFact> {
        let attends = self.dims.attends.then_some("prefix-kv");
        let recurs = self.dims.state_space.as_ref().map(|_| "prefix-state");
        let (generation, entries) = (self.blocks.generation(), self.blocks.entries());
        let hits = self.blocks.take_hits();
        let drafts = self.dims.drafts().map(|_| "draft-kv");
        let blocks = attends.into_iter().chain(recurs).chain(drafts).map(|cache| CacheFact {
            cache: cache.to_owned(),
            generation,
            entries,
            hits,
            version: None,
        });
        let mut caches: Vec<CacheFact> = blocks.collect();
        let generation = self.machine.generation();
        if let Some(processor) = &mut self.processor {
            caches.push(CacheFact {
                cache: "encoder".to_owned(),
                generation: self.encoder.generation(),
                entries: self.encoder.entries(),
                hits: self.encoder.take_hits(),
                version: None,
            });
            caches.push(CacheFact {
                cache: "processor".to_owned(),
                generation,
                entries: processor.entries(),
                hits: processor.take_hits(),
                version: Some(processor.version()),
            });
        }
        caches
    }

    /// Applications, post-load stages, receipts and remarks since the last call.
    pub(crate) fn drain_claims(&mut self) -> Result<Vec<(Rank, Fact)>, EngineError> {
        self.facts(|worker| std::mem::take(&mut worker.claims))
    }
}

impl Worker {
    fn slot_facts(&self) -> Vec<Fact> {
        let device = format!("arena:{}", self.rank);
        let adapters = self.adapters.facts(&self.slots, &device);
        self.slots.facts(&device).into_iter().chain(adapters).map(Fact::Slot).collect()
    }

    /// Which kernel each layer with post-load runs on.
    fn kernel_facts(&self) -> Vec<Fact> {
        let kernel = |kind: &HookKind| match kind {
            HookKind::Rotary { .. } => "rope.f32_table".to_owned(),
            HookKind::Normalizer { .. } => "embed.f32_scale".to_owned(),
            HookKind::ExpertMap { .. } => "local_experts.i32_map".to_owned(),
            HookKind::Permute { .. } => "linear_permuted.act_order".to_owned(),
            HookKind::Experts { .. } => format!("expert_linear.panels_{PANEL_COLUMNS}"),
            HookKind::Absorb { .. } => "latent_attention.absorbed_bf16".to_owned(),
            HookKind::Widen { kernel, .. } => (*kernel).to_owned(),
            HookKind::Decay { .. } => "state_scan.f32_rates".to_owned(),
        };
        self.hooks.iter().map(|hook| state(&hook.layer, "kernel", &kernel(&hook.kind))).collect()
    }
}

fn state(owner: &str, name: &str, value: &str) -> Fact {
    Fact::State(StateFact {
        owner: owner.to_owned(),
        name: name.to_owned(),
        value: value.to_owned(),
        policy: Policy::Preserve,
    })
}
