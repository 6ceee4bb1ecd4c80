//! Experts of one rank under another placement: what its loaders and post-load go by, and, where
//! weights are loaded, the experts themselves, in place.

use std::collections::BTreeMap;
use std::sync::Arc;

use coldproof_contract::evidence::{ExpertPlacementFact, Fact};
use coldproof_contract::words::{Address, ExpertPlace, ExpertPlacement, SlotKind};

use super::worker::know_elsewhere;
use super::{Failure, Worker};
use crate::adapters::Sites;
use crate::faults::{self, Moved};
use crate::loader::{HeldExperts, HookKind, read_slot};
use crate::models::{Builder, Dims};
use crate::slots::{SlotId, SlotSpec};

/// The name of the exchange in which experts move.
const MOVE: &str = "place_experts";
/// Bytes of an element of any expert's weight.
const ELEMENT_BYTES: usize = 2;

/// Experts of the model in each of its modules that have some.
pub(crate) fn expert_layers(dims: &Dims, ep: u32) -> BTreeMap<String, u64> {
    let Builder { slots, hooks, .. } = Builder::outline(dims, ep);
    let own = hooks.iter().filter_map(|hook| match hook.kind {
        HookKind::ExpertMap { map, .. } => Some(&slots[map].spec),
        _ => None,
    });
    own.map(|spec| (spec.name.owner().to_owned(), spec.elements())).collect()
}

/// The experts of one layer, before and after they move.
struct Layer {
    module: String,
    map: SlotId,
    held: HeldExperts,
    /// For each place of this rank's stack, where the expert was that it is for now.
    from: Vec<ExpertPlace>,
}

impl Worker {
    /// Goes by this placement from here on and moves every expert of an adapter, and, where `moves`
    /// says so, every one that is loaded. The ranks of a group must do it together.
    pub(crate) fn place_experts(
        &mut self,
        placement: &Arc<ExpertPlacement>,
        moves: bool,
    ) -> Result<(), Failure> {
        let before = std::mem::replace(&mut self.placement, Arc::clone(placement));
        let dims = Arc::clone(&self.dims);
        let mut builder = Builder::new(&dims, self.place, self.kv);
        builder.placement = Some(placement);
        dims.declare(&mut builder);
        let Builder { slots, mut catalogue, hooks, adapted, .. } = builder;
        self.adapters.sites = Sites::of(&slots, &catalogue, &adapted);
        know_elsewhere(&mut catalogue, &dims, self.place, self.kv);
        (self.catalogue, self.hooks) = (catalogue, hooks);
        self.move_experts(&before, moves)
    }

    /// Adapters are in memory where weights may not be.
    fn move_experts(&mut self, before: &ExpertPlacement, weights: bool) -> Result<(), Failure> {
        let hooks = self.hooks.clone().into_iter();
        let layers = hooks.filter_map(|hook| match hook.kind {
            HookKind::ExpertMap { map, held } => Some(self.layer(before, map, held)),
            _ => None,
        });
        for layer in layers.collect::<Vec<_>>() {
            if weights {
                self.move_weights(&layer)?;
            }
            self.move_adapters(&layer)?;
        }
        Ok(())
    }

    /// The stacks of a layer, and the map that the forward reads them by.
    fn move_weights(&mut self, layer: &Layer) -> Result<(), Failure> {
        let stacks = self.slots.ids().filter(|id| {
            let spec = &self.slots[*id].spec;
            spec.kind == SlotKind::Parameter && spec.name.owner() == layer.module
        });
        let stacks: Vec<_> = stacks.map(|id| (id, faults::moved(self, id))).collect();
        let of = |how: Moved| stacks.iter().filter(move |(_, own)| *own == how);
        for (id, _) in of(Moved::First) {
            self.move_stack(*id, &layer.from)?;
        }
        if faults::rewrites_map(self, layer.map)? {
            self.write_expert_map(layer.map, &layer.held)?;
        }
        for (id, _) in of(Moved::Last) {
            self.move_stack(*id, &layer.from)?;
        }
        Ok(())
    }

    fn layer(&self, before: &ExpertPlacement, map: SlotId, held: HeldExperts) -> Layer {
        let spec = &self.slots[map].spec;
        let module = spec.name.owner().to_owned();
        let places = places(before, &module, (spec.elements(), held.count()));
        let of = |expert: &u64| places.get(usize::try_from(*expert).ok()?).copied();
        let from = held.experts().iter().filter_map(of).collect();
        Layer { from, module, map, held }
    }

    /// Moves the experts of a stack. Its order of storage is that of each expert by itself, and the
    /// same on all ranks.
    fn move_stack(&mut self, id: SlotId, from: &[ExpertPlace]) -> Result<(), Failure> {
        let bytes = read_slot(&self.device, &self.slots, id)?;
        self.move_bytes(self.slots.address(id)?, &bytes, from)
    }

    /// The factors of every adapter move with the experts that they are of.
    fn move_adapters(&mut self, layer: &Layer) -> Result<(), Failure> {
        let mut stacks = Vec::new();
        for room in self.adapters.loaded.values() {
            for (site, factors) in self.adapters.sites.all.iter().zip(&room.factors) {
                let owner = self.slots[site.slot].spec.name.owner();
                if site.stack.is_some() && owner == layer.module {
                    stacks.extend(factors.map(|factor| (factor.address, factor.bytes)));
                }
            }
        }
        for (address, bytes) in stacks {
            let bytes = self.device.read(address, bytes)?.to_vec();
            self.move_bytes(address, &bytes, &layer.from)?;
        }
        Ok(())
    }

    /// Takes the stacks of all ranks and writes those experts that have a place here now.
    fn move_bytes(
        &mut self,
        address: Address,
        stack: &[u8],
        from: &[ExpertPlace],
    ) -> Result<(), Failure> {
        // Two bytes in the low half of a word are no NaN, so every bit arrives as it was sent.
        let word = |pair: &[u8]| f32::from_bits(u16::from_le_bytes([pair[0], pair[1]]).into());
        let own = stack.chunks_exact(ELEMENT_BYTES).map(word).collect();
        let all = self.device.exchange_experts(MOVE, own)?;
        let each = stack.len() / ELEMENT_BYTES / from.len().max(1);
        let mut moved = Vec::with_capacity(stack.len());
        for at in from {
            let first = at.place as usize * each;
            let expert = all.get(at.ep as usize).and_then(|rank| rank.get(first..first + each));
            let absent = || Failure::Refused(format!("no rank {} of ep has its experts", at.ep));
            for word in expert.ok_or_else(absent)? {
                moved.extend_from_slice(&word.to_bits().to_le_bytes()[..ELEMENT_BYTES]);
            }
        }
        Ok(self.device.write(address, &moved)?)
    }

    /// Where the experts of its layers are, as this rank believes.
    pub(crate) fn expert_facts(&self) -> Vec<Fact> {
        let own = self.hooks.iter().filter_map(|hook| match &hook.kind {
            HookKind::ExpertMap { map, .. } => Some(&self.slots[*map].spec),
            _ => None,
        });
        let fact = |spec: &SlotSpec| {
            let (layer, experts) = (spec.name.owner(), spec.elements());
            let each = experts / self.place.experts.ranks;
            Fact::ExpertPlacement(ExpertPlacementFact {
                layer: layer.to_owned(),
                map: spec.name.clone(),
                version: self.placement.version,
                places: places(&self.placement, layer, (experts, each)),
            })
        };
        own.map(fact).collect()
    }
}

/// Where each of a module's experts is: as it was placed, else as many consecutive ones on each
/// rank.
fn places(
    placement: &ExpertPlacement,
    module: &str,
    (experts, each): (u64, u64),
) -> Vec<ExpertPlace> {
    let placed = placement.layer(module).map(<[ExpertPlace]>::to_vec);
    let consecutive = |expert| ExpertPlace::consecutive(expert, each);
    placed.unwrap_or_else(|| (0..experts).map(consecutive).collect())
}
