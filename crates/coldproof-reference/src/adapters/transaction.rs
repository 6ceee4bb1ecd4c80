//! Adapters in a transaction of one rank: checked and given room before the first write, published
//! with all that the transaction writes, or given up with it.

use std::collections::BTreeMap;

use coldproof_checkpoint::{Lora, factor_name};
use coldproof_contract::evidence::{ApplicationFact, Fact};
use coldproof_contract::words::{Factor, adapter_source};

use super::loaded::Room;
use crate::faults;
use crate::ranks::{Failure, Worker};

/// The largest rank that is taken.
const RANK_MAX: u64 = 512;

impl Worker {
    /// Whether every factor is of a module that an adapter may change, in its shape.
    pub(crate) fn check_adapter(&self, lora: &Lora) -> Result<(), Failure> {
        let refused = |text: String| Err(Failure::Refused(text));
        let rank = lora.adapter.rank;
        if rank > RANK_MAX {
            return refused(format!("the adapter has rank {rank}; the most is {RANK_MAX}"));
        }
        let mut changed: BTreeMap<(usize, usize), &str> = BTreeMap::new();
        for (module, factors) in &lora.factors {
            let name = format!("{module}.weight");
            let Some(source) = self.catalogue.source(&name) else {
                // Another stage has it. A second name of a tensor is no projection of its own.
                if self.catalogue.is_elsewhere(&name) {
                    continue;
                }
                if self.catalogue.repeated_by(&name).is_some() {
                    return refused(not_computed(module));
                }
                return refused(format!(
                    "the adapter changes the module `{module}`, which this model does not have; \
                     load an adapter of this model"
                ));
            };
            let Some(cut) = self.adapters.sites.cuts.get(module) else {
                return refused(not_computed(module));
            };
            if let Some(other) = changed.insert((cut.site, cut.place), module) {
                return refused(format!(
                    "the adapter changes one module as `{other}` and as `{module}`; keep one"
                ));
            }
            let found = [factors.outputs, factors.inputs];
            if source.shape != found {
                return refused(format!(
                    "the adapter's factors of `{module}` make a matrix of {found:?} where this \
                     model has {:?}",
                    source.shape
                ));
            }
        }
        Ok(())
    }

    /// Takes room for an adapter where that of its name does not fit.
    pub(crate) fn make_room(&mut self, name: &str, rank: u64) -> Result<(), Failure> {
        if self.adapters.loaded.get(name).is_none_or(|room| room.rank != rank) {
            let sites = (&self.adapters.sites, &self.slots);
            let room = Room::take(&mut self.device, sites, name, rank)?;
            self.adapters.next.insert(name.to_owned(), room);
        }
        Ok(())
    }

    /// Gives rooms back that nothing was published in.
    pub(crate) fn give_rooms_back(&mut self) -> Result<(), Failure> {
        let next = std::mem::take(&mut self.adapters.next);
        next.into_values().try_for_each(|room| room.free(&mut self.device))
    }

    /// Writes an adapter of the open transaction and records every factor that it was given.
    pub(crate) fn apply_adapter(&mut self, name: &str, lora: &Lora) -> Result<(), Failure> {
        self.load_mut()?.adapters.insert(name.to_owned());
        let Self { adapters, device, .. } = self;
        if let Some(room) = adapters.next.get(name) {
            room.write(device, &adapters.sites, lora)?;
        } else if !faults::stage_adapter(self, name, lora)? {
            self.adapters.written.insert(name.to_owned());
            faults::write_adapter(self, name, lora)?;
        }
        self.record_factors(name, lora)
    }

    /// Writes an adapter over the one of its name.
    pub(crate) fn write_over(&mut self, name: &str, lora: &Lora) -> Result<(), Failure> {
        let Self { adapters, device, .. } = self;
        let room = adapters.loaded.get(name);
        room.map_or(Ok(()), |room| room.write(device, &adapters.sites, lora))
    }

    fn record_factors(&mut self, name: &str, lora: &Lora) -> Result<(), Failure> {
        let transaction = self.load()?.transaction;
        let mut applied = Vec::new();
        for module in lora.factors.keys() {
            let Some(cut) = self.adapters.sites.cuts.get(module) else { continue };
            let site = &self.adapters.sites.all[cut.site];
            for factor in [Factor::A, Factor::B] {
                let step = cut.piece(factor, site.stack.is_some(), lora.adapter.rank);
                applied.push(Fact::Application(ApplicationFact {
                    transaction,
                    source: adapter_source(name, &factor_name(module, factor)),
                    source_fragment: step.source,
                    slot: site.factor_slot(name, factor, &self.slots),
                    slot_fragment: step.slot,
                }));
            }
        }
        self.load_mut()?.applications += applied.len() as u64;
        self.claims.extend(applied);
        Ok(())
    }

    /// Puts what the transaction wrote in the place of what was loaded, or gives it up: an adapter
    /// that was written over is none any more.
    pub(crate) fn close_adapters(&mut self, committed: bool) -> Result<(), Failure> {
        faults::close_staged(self, committed)?;
        let Some(load) = &self.load else { return Ok(()) };
        let (generation, applied) = (load.generation, load.adapters.clone());
        let written = std::mem::take(&mut self.adapters.written);
        if !committed {
            for room in written.iter().filter_map(|name| self.adapters.loaded.remove(name)) {
                room.free(&mut self.device)?;
            }
            return self.give_rooms_back();
        }
        for (name, room) in std::mem::take(&mut self.adapters.next) {
            if let Some(old) = self.adapters.loaded.insert(name, room) {
                old.free(&mut self.device)?;
            }
        }
        for name in &applied {
            if let Some(room) = self.adapters.loaded.get_mut(name) {
                room.epoch = generation;
            }
        }
        Ok(())
    }
}

fn not_computed(module: &str) -> String {
    format!(
        "the adapter changes the module `{module}`; this engine computes adapters of the \
         projections of attention, MLP and single experts"
    )
}
