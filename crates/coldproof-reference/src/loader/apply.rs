//! One load on one rank: what arrived, where it was written, what is still missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coldproof_contract::evidence::{ApplicationFact, Fact};
use coldproof_contract::transaction::Scope;
use coldproof_contract::words::{Generation, Packing, Span, TransactionId};

use super::layout::{inverse, permute};
use super::{Move, PartId, Source, Target, layout_of, matrix_of, moves, read_slot, write_moves};
use crate::faults::{self, FaultId};
use crate::ranks::{Failure, Worker};
use crate::slots::SlotId;

/// A load that has begun and is not finished.
#[derive(Debug)]
pub(crate) struct Load {
    /// Its transaction.
    pub(crate) transaction: TransactionId,
    /// The generation that it makes.
    pub(crate) generation: Generation,
    /// Whether storages were bound by a load before.
    pub(crate) reload: bool,
    /// How much it writes.
    pub(crate) scope: Scope,
    /// Writes made.
    pub(crate) applications: u64,
    /// Sources that no slot of this rank took.
    pub(crate) unrouted: Vec<String>,
    /// Adapters that were written.
    pub(crate) adapters: BTreeSet<String>,
    /// Names of sources that arrived.
    received: BTreeSet<String>,
    /// Which source filled each part.
    filled: BTreeMap<PartId, String>,
    /// A repeated source that waits for its owner, to be compared.
    held: BTreeMap<String, Arc<Vec<u8>>>,
}

impl Load {
    /// A load of which nothing has arrived.
    pub(crate) const fn new(
        transaction: TransactionId,
        generation: Generation,
        reload: bool,
        scope: Scope,
    ) -> Self {
        Self {
            transaction,
            generation,
            reload,
            scope,
            adapters: BTreeSet::new(),
            applications: 0,
            unrouted: Vec::new(),
            received: BTreeSet::new(),
            filled: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// The source that filled one of these parts already.
    pub(crate) fn filled_by(&self, parts: &[PartId]) -> Option<&str> {
        parts.iter().find_map(|part| self.filled.get(part)).map(String::as_str)
    }

    /// Repeated sources that still wait for their owners.
    pub(crate) fn buffered(&self) -> Vec<String> {
        self.held.keys().cloned().collect()
    }

    /// Notes that a source arrived.
    pub(crate) fn receive(&mut self, name: &str) {
        self.received.insert(name.to_owned());
    }

    /// The generation that was served before it.
    pub(crate) const fn before(&self) -> Generation {
        match self.scope {
            Scope::Adapters => self.generation,
            Scope::Full | Scope::Partial => Generation(self.generation.0.saturating_sub(1)),
        }
    }

    /// Whether a source of that name arrived.
    pub(crate) fn received(&self, name: &str) -> bool {
        self.received.contains(name)
    }

    /// Parts that nothing has filled and that are not to keep what they hold.
    pub(crate) fn missing<'a>(
        &self,
        parts: &'a [String],
        preserved: &BTreeSet<PartId>,
    ) -> Vec<&'a str> {
        let open = |part: &PartId| !self.filled.contains_key(part) && !preserved.contains(part);
        let unfilled = parts.iter().enumerate().filter(|(part, _)| open(part));
        unfilled.map(|(_, name)| name.as_str()).collect()
    }

    /// Passes a source over that no slot took.
    pub(crate) fn skip(&mut self, name: &str) {
        self.unrouted.push(name.to_owned());
    }

    /// Notes which source filled these parts.
    pub(crate) fn fill(&mut self, parts: &[PartId], name: &str) {
        for &part in parts {
            self.filled.insert(part, name.to_owned());
        }
    }
}

impl Worker {
    /// Writes this rank's part of a source whose name, shape and type were admitted.
    pub(crate) fn apply(&mut self, name: &str, bytes: &Arc<Vec<u8>>) -> Result<(), Failure> {
        self.load_mut()?.receive(name);
        if let Some(owner) = self.catalogue.repeated_by(name).map(str::to_owned) {
            return self.apply_repeat(name, &owner, bytes);
        }
        if faults::misplace_expert(self, name, bytes)? || self.catalogue.is_elsewhere(name) {
            return Ok(());
        }
        let Some(source) = self.catalogue.source(name).cloned() else {
            return Err(Failure::Refused(format!("no layer of this model takes `{name}`")));
        };
        if faults::finds(self, name)? && !self.apply_by_fault(name, &source, bytes)? {
            let steps = faults::replicated_pieces(self, &source)
                .or_else(|| faults::initial_pieces(self, &source))
                .unwrap_or_else(|| self.pieces(&source));
            self.write(name, &source, &steps, bytes)?;
        }
        self.load_mut()?.fill(&source.parts, name);
        let waiting = self.catalogue.repeat_of(name).map(str::to_owned);
        if let Some(repeat) = waiting
            && let Some(held) = self.load_mut()?.held.remove(&repeat)
        {
            self.compare(&repeat, name, &held)?;
        }
        Ok(())
    }

    /// Whether a fault or its twin took the source instead.
    fn apply_by_fault(
        &mut self,
        name: &str,
        source: &Source,
        bytes: &[u8],
    ) -> Result<bool, Failure> {
        if !self.load()?.reload {
            return Ok(false);
        }
        if faults::rebind_parameter(self, name, source, bytes)?
            || faults::drop_after_full(self, name, source, bytes)?
        {
            return Ok(true);
        }
        Ok(match &source.target {
            Target::Heads(part, _) => faults::apply_head_rows(self, name, *part, source, bytes)?,
            Target::ExpertGateUp { .. } => faults::write_experts(self, name, source, bytes)?,
            Target::FusedExpertsGateUp | Target::FusedExpertsRow => {
                faults::take_fused(self, name, source, bytes)?
                    || faults::write_experts(self, name, source, bytes)?
            }
            Target::Sections(_) => faults::split_alias(self, name, source, bytes)?,
            _ => false,
        })
    }

    /// Writes pieces and records them.
    pub(crate) fn write(
        &mut self,
        name: &str,
        source: &Source,
        steps: &[Move],
        bytes: &[u8],
    ) -> Result<(), Failure> {
        self.restore_columns(source.slot)?;
        let layout = layout_of(&self.slots, source.slot);
        let from = (source.shape.as_slice(), bytes);
        write_moves(&mut self.device, &self.slots, source.slot, &layout, steps, from)?;
        if source.target == Target::Vocabulary {
            self.fill_padding(source.slot, steps)?;
        }
        self.record(name, source.slot, steps)
    }

    /// States applications.
    pub(crate) fn record(
        &mut self,
        name: &str,
        slot: SlotId,
        steps: &[Move],
    ) -> Result<(), Failure> {
        let (transaction, generation) = (self.load()?.transaction, self.load()?.generation);
        self.slots[slot].epoch = generation;
        let slot = self.slots[slot].spec.name.clone();
        for step in steps {
            self.load_mut()?.applications += 1;
            self.claims.push(Fact::Application(ApplicationFact {
                transaction,
                source: name.to_owned(),
                source_fragment: step.source.clone(),
                slot: slot.clone(),
                slot_fragment: step.slot.clone(),
            }));
        }
        Ok(())
    }

    /// The order of permuted columns depends on all new weights, so the storage goes back to
    /// logical order before the first of them is written.
    fn restore_columns(&mut self, id: SlotId) -> Result<(), Failure> {
        let slot = &self.slots[id];
        let Packing::ColumnsPermuted { permutation } = &slot.spec.packing else { return Ok(()) };
        if !slot.runtime {
            return Ok(());
        }
        let unknown = || Failure::Refused(format!("no slot `{permutation}`"));
        let by = self.slots.find(permutation).ok_or_else(unknown)?;
        let columns = matrix_of(&slot.spec).columns;
        let order = self.device.view::<i32>(self.slots.address(by)?, columns)?;
        let back = inverse(order).ok_or_else(|| {
            Failure::Refused(format!("slot `{permutation}` holds no permutation; load again"))
        })?;
        let stored = read_slot(&self.device, &self.slots, id)?;
        let logical = permute(&stored, matrix_of(&slot.spec), &back);
        self.device.write(self.slots.address(id)?, &logical)?;
        self.slots[id].runtime = false;
        Ok(())
    }

    /// Rows of the padded vocabulary that no source covers are zero.
    fn fill_padding(&mut self, id: SlotId, steps: &[Move]) -> Result<(), Failure> {
        let rows = |step: &Move| step.slot.0.first().map_or(0, |span: &Span| span.end);
        let covered = steps.iter().map(rows).max().unwrap_or(0);
        let row_bytes = matrix_of(&self.slots[id].spec).row_bytes() as u64;
        let first = covered * row_bytes;
        let padding = self.slots[id].spec.bytes().saturating_sub(first);
        let address = self.slots.address(id)?.plus(first);
        Ok(self.device.write(address, &vec![0; padding as usize])?)
    }

    fn apply_repeat(
        &mut self,
        name: &str,
        owner: &str,
        bytes: &Arc<Vec<u8>>,
    ) -> Result<(), Failure> {
        let parts = self.catalogue.source(owner).map(|source| source.parts.clone());
        if self.load()?.filled_by(&parts.unwrap_or_default()).is_some() {
            return self.compare(name, owner, bytes);
        }
        self.load_mut()?.held.insert(name.to_owned(), Arc::clone(bytes));
        Ok(())
    }

    /// Compares this rank's rows of a repeated source with what its owner wrote.
    fn compare(&mut self, name: &str, owner: &str, bytes: &[u8]) -> Result<(), Failure> {
        let Some(source) = self.catalogue.source(owner) else { return Ok(()) };
        let row_bytes = matrix_of(&self.slots[source.slot].spec).row_bytes() as u64;
        let base = self.slots.address(source.slot)?;
        for step in self.pieces(source) {
            let (Some(from), Some(to)) = (step.source.0.first(), step.slot.0.first()) else {
                continue;
            };
            let stored = self.device.read(base.plus(to.start * row_bytes), to.len() * row_bytes)?;
            let sent = (from.start * row_bytes) as usize..(from.end * row_bytes) as usize;
            if bytes.get(sent) != Some(stored) {
                return Err(Failure::Refused(format!(
                    "`{name}` differs from `{owner}`, whose storage it shares in this model; \
                     leave it out or make them equal"
                )));
            }
        }
        self.claim("redundant-alias", name);
        Ok(())
    }

    /// The pieces of a source that belong on this rank.
    pub(crate) fn pieces(&self, source: &Source) -> Vec<Move> {
        let all = moves(&source.target, &source.shape, source.shard);
        let Some(held) = &source.held else { return all };
        let runs = held.runs();
        let own = |(experts, first): &(Span, u64)| {
            let (experts, first) = (*experts, *first);
            all.iter().map(move |step| step.clone().of_experts(experts, first)).collect::<Vec<_>>()
        };
        runs.iter().flat_map(own).collect()
    }

    /// Whether this fault's object is filled by a reload now.
    pub(crate) fn fault_on(&self, id: FaultId, object: &str) -> Option<faults::Variant> {
        self.load.as_ref().filter(|load| load.reload).and_then(|_| self.faults.on(id, object))
    }
}
