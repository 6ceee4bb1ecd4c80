//! What layers declare of themselves while a model is built: slots, sources, post-load hooks.

use coldproof_checkpoint::arch::Family;
use coldproof_contract::words::{ExpertPlacement, Packing, Rank, SlotName, Topology};

use super::Dims;
use crate::arena::Region;
use crate::loader::{Catalogue, HeldExperts, Hook, HookKind, Place, Shard, Source, Target};
use crate::slots::{SlotId, SlotSpec, Slots};

/// The paged KV cache of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvShape {
    /// Blocks.
    pub(crate) blocks: u64,
    /// Tokens of a block.
    pub(crate) block_size: u64,
}

/// Collects one rank's model.
#[derive(Debug)]
pub(crate) struct Builder<'a> {
    /// The model's dimensions.
    pub(crate) dims: &'a Dims,
    /// This rank among those that cut every layer.
    pub(crate) shard: Shard,
    /// What this rank holds of the model.
    pub(crate) place: Place,
    /// Where experts were placed; none: consecutive ones on each rank.
    pub(crate) placement: Option<&'a ExpertPlacement>,
    /// What the names of this part of the model will begin with.
    prefix: &'static str,
    /// The KV cache.
    pub(crate) kv: KvShape,
    /// Slots declared so far.
    pub(crate) slots: Slots,
    /// Sources declared so far.
    pub(crate) catalogue: Catalogue,
    /// Post-load hooks, in model order.
    pub(crate) hooks: Vec<Hook>,
    /// Weights whose products an adapter is added to.
    pub(crate) adapted: Vec<SlotId>,
    /// Slots of which every block of the KV cache has a part.
    pub(crate) paged: Vec<SlotId>,
}

impl<'a> Builder<'a> {
    /// Nothing declared yet.
    pub(crate) fn new(dims: &'a Dims, place: Place, kv: KvShape) -> Self {
        Self {
            dims,
            shard: place.shard,
            place,
            placement: None,
            prefix: "",
            kv,
            slots: Slots::default(),
            catalogue: Catalogue::default(),
            hooks: Vec::new(),
            adapted: Vec::new(),
            paged: Vec::new(),
        }
    }

    /// A bf16 parameter of this local shape.
    pub(crate) fn parameter(&mut self, name: &str, shape: &[u64]) -> SlotId {
        self.slots.declare(SlotSpec::parameter(name.to_owned(), shape))
    }

    /// A bf16 parameter in another runtime order.
    pub(crate) fn packed(&mut self, name: &str, shape: &[u64], packing: Packing) -> SlotId {
        self.slots.declare(SlotSpec::parameter(name.to_owned(), shape).packed(packing))
    }

    /// A source of this full shape that is cut over the ranks, under the model's name of it.
    pub(crate) fn sharded(&mut self, name: String, shape: &[u64], slot: SlotId, target: Target) {
        self.catalogue.add(self.source(&name), shape, slot, target, self.shard);
    }

    /// A source of all experts, cut over the ranks, of which this rank holds some.
    pub(crate) fn stacked(
        &mut self,
        name: String,
        shape: &[u64],
        slot: SlotId,
        (target, held): (Target, &HeldExperts),
    ) {
        let (shape, shard, held) = (shape.to_vec(), self.shard, Some(held.clone()));
        let source = Source { shape, slot, target, shard, held, parts: Vec::new() };
        self.catalogue.add_stacked(name, source);
    }

    /// The experts of a layer that are on this rank; `layer` is the module that holds the stack.
    pub(crate) fn held(&self, layer: &str, experts: u64) -> HeldExperts {
        let name = format!("{}{layer}", self.prefix);
        let placed = self.placement.and_then(|placement| placement.layer(&name));
        match placed.filter(|_| self.place.experts.ranks > 1) {
            Some(places) => HeldExperts::placed(self.place.experts, places),
            None => HeldExperts::consecutive(self.place.experts, experts),
        }
    }

    /// A parameter that every rank holds whole, with the source of the same name.
    pub(crate) fn replicated(&mut self, name: &str, shape: &[u64]) -> SlotId {
        let slot = self.parameter(name, shape);
        self.catalogue.add(self.source(name), shape, slot, Target::Replicated, Shard::WHOLE);
        slot
    }

    /// A slot of the KV cache: its first axis is blocks.
    pub(crate) fn paged(&mut self, spec: SlotSpec) -> SlotId {
        let id = self.slots.declare(SlotSpec { region: Region::KvCache, ..spec });
        self.paged.push(id);
        id
    }

    /// Puts everything that was declared so far behind this prefix.
    pub(crate) fn nest(&mut self, prefix: &str) {
        self.slots.nest(prefix);
        self.catalogue.nest(prefix);
        self.hooks.iter_mut().for_each(|hook| hook.layer.insert_str(0, prefix));
    }

    /// What the first rank of ep has of a model that nothing else cuts: every slot that any of them
    /// has, and the first expert. For names alone: its caches have room for nothing.
    pub(crate) fn outline(dims: &'a Dims, ep: u32) -> Self {
        let place = Place::of(Topology { ep, ..Topology::SINGLE }, Rank::default());
        let mut builder = Self::new(dims, place, KvShape { blocks: 1, block_size: 1 });
        dims.declare(&mut builder);
        builder
    }

    /// Nothing declared yet of a part beside this model that is cut by its layers' widths and by
    /// experts alone, and whose names will begin with `prefix`.
    pub(crate) fn beside<'b>(&self, dims: &'b Dims, prefix: &'static str) -> Builder<'b>
    where
        'a: 'b,
    {
        let place = Place { stage: Shard::WHOLE, ..self.place };
        let (slots, placement) = (self.slots.behind(), self.placement);
        Builder { slots, placement, prefix, ..Builder::new(dims, place, self.kv) }
    }

    /// Adds what a part beside this model declared, behind its prefix. Adapters change none of it.
    pub(crate) fn append(&mut self, mut part: Builder<'_>) {
        part.nest(part.prefix);
        self.slots.append(part.slots);
        self.catalogue.append(part.catalogue);
        self.hooks.append(&mut part.hooks);
        self.paged.append(&mut part.paged);
    }

    /// The checkpoint's spelling of a name of this model.
    pub(crate) fn source(&self, name: &str) -> String {
        if self.dims.family != Family::NemotronH {
            return name.to_owned();
        }
        let name = name.replace("embed_tokens", "embeddings");
        name.strip_prefix("model.").map_or(name.clone(), |rest| format!("backbone.{rest}"))
    }

    /// A layer's post-load.
    pub(crate) fn hook(&mut self, layer: &str, kind: HookKind) {
        self.hooks.push(Hook { layer: layer.to_owned(), kind });
    }

    /// Declares that the layer adds adapters to the product of this weight.
    pub(crate) fn adapts(&mut self, weight: SlotId) {
        self.adapted.push(weight);
    }

    /// The name of a declared slot.
    pub(crate) fn name(&self, id: SlotId) -> SlotName {
        self.slots[id].spec.name.clone()
    }
}
