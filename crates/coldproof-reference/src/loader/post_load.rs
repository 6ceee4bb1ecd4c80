//! Post-load: what a layer does once all its sources arrived. The first pass binds storages; every
//! later one writes into them.

use coldproof_checkpoint::arch::Mla;
use coldproof_contract::evidence::{Fact, PostLoadFact, PostLoadStage};
use coldproof_contract::words::{Address, Generation, Packing};
use half::bf16;

use super::absorb::absorb;
use super::layout::{magnitude_order, permute};
use super::{HeldExperts, Layout, convert_slot, layout_of, matrix_of, read_slot};
use crate::device::Device;
use crate::faults;
use crate::models::{Dims, Rotary};
use crate::ranks::{Failure, Worker};
use crate::slots::{SlotId, Slots};

/// What a layer does after its sources arrived.
#[derive(Clone, Debug)]
pub(crate) enum HookKind {
    /// Computes the rotary table, where it is not there yet or was lost.
    Rotary {
        /// The table.
        table: SlotId,
        /// What it is computed from.
        rotary: Rotary,
    },
    /// Writes the embedding's factor, where it is not there yet or was lost.
    Normalizer {
        /// The factor.
        buffer: SlotId,
        /// Its value.
        factor: f32,
    },
    /// Writes where each expert is on this rank, where that is not there yet or was lost.
    ExpertMap {
        /// The places.
        map: SlotId,
        /// Experts of the model that are here.
        held: HeldExperts,
    },
    /// Orders the columns of a row-parallel weight by magnitude and clears the kernel's scratch.
    Permute {
        /// The weight.
        weight: SlotId,
        /// Its columns' order.
        permutation: SlotId,
        /// The kernel's scratch.
        workspace: SlotId,
    },
    /// Packs stacked experts into panels.
    Experts {
        /// Gate and up.
        w13: SlotId,
        /// Down.
        w2: SlotId,
    },
    /// Takes each head's own matrices out of a projection of latents.
    Absorb {
        /// The projection.
        weight: SlotId,
        /// From queries into the latent space.
        key: SlotId,
        /// From attended latents to the heads' outputs.
        value: SlotId,
        /// How wide they are.
        mla: Mla,
    },
    /// Widens a norm's weight, or the sinks of heads, to f32; a norm whole where it is stored less
    /// one.
    Widen {
        /// The weight.
        weight: SlotId,
        /// Its copy in f32.
        copy: SlotId,
        /// Whether the weight is stored less one.
        less_one: bool,
        /// The kernel that reads the copy.
        kernel: &'static str,
    },
    /// Makes rates of decay, in f32, of their logarithms.
    Decay {
        /// The logarithms.
        log: SlotId,
        /// The rates, negative.
        a: SlotId,
    },
}

/// One layer's post-load.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    /// The module path.
    pub(crate) layer: String,
    /// What it does.
    pub(crate) kind: HookKind,
}

/// Gives a slot a storage, if it has none.
pub(crate) fn bind(device: &mut Device, slots: &mut Slots, id: SlotId) -> Result<Address, Failure> {
    if slots[id].storage.is_none() {
        let spec = &slots[id].spec;
        let storage = device.alloc(spec.region, spec.bytes(), &spec.name.0)?;
        slots[id].storage = Some(storage);
    }
    Ok(slots.address(id)?)
}

/// The rotary table in f32: for every position the cosines, then the sines.
fn rotary_table(rotary: &Rotary, positions: u64) -> Vec<f32> {
    let Rotary { inverse_frequencies, magnitude } = rotary;
    let mut table = Vec::with_capacity(inverse_frequencies.len() * 2 * positions as usize);
    for position in 0..positions {
        let angle = |frequency: &f32| position as f32 * frequency;
        table.extend(inverse_frequencies.iter().map(|f| libm::cosf(angle(f)) * magnitude));
        table.extend(inverse_frequencies.iter().map(|f| libm::sinf(angle(f)) * magnitude));
    }
    table
}

impl Worker {
    /// Says which layers will need post-load.
    pub(crate) fn expect_post_load(&mut self) -> Result<(), Failure> {
        for hook in self.hooks.clone() {
            self.state_stage(&hook.layer, PostLoadStage::Expected)?;
        }
        Ok(())
    }

    /// Every layer's post-load, in model order, then its finalisation.
    pub(crate) fn post_load(&mut self) -> Result<(), Failure> {
        let generation = self.load()?.generation;
        for hook in faults::dispatched(self) {
            self.process(&hook.kind, generation)?;
            self.state_stage(&hook.layer, PostLoadStage::Processed)?;
            self.state_stage(&hook.layer, PostLoadStage::Finalised)?;
        }
        self.lost = false;
        Ok(())
    }

    fn state_stage(&mut self, layer: &str, stage: PostLoadStage) -> Result<(), Failure> {
        let transaction = self.load()?.transaction;
        self.claims.push(Fact::PostLoad(PostLoadFact {
            transaction,
            layer: layer.to_owned(),
            stage,
            prerequisites: Vec::new(),
        }));
        Ok(())
    }

    fn process(&mut self, kind: &HookKind, generation: Generation) -> Result<(), Failure> {
        match *kind {
            HookKind::Rotary { table, ref rotary } => {
                self.process_rotary(table, rotary, generation)
            }
            HookKind::Normalizer { buffer, factor } => {
                self.process_normalizer(buffer, factor, generation)
            }
            HookKind::ExpertMap { map, ref held } => self.process_expert_map(map, held, generation),
            HookKind::Permute { weight, permutation, workspace } => {
                self.order_columns(weight, permutation)?;
                self.slots[permutation].epoch = generation;
                faults::reset_workspace(self, workspace)?;
                self.slots[workspace].epoch = generation;
                Ok(())
            }
            HookKind::Experts { w13, w2 } => {
                self.pack(w13)?;
                self.pack(w2)
            }
            HookKind::Absorb { weight, key, value, mla } => {
                let (keys, values) = absorb(&read_slot(&self.device, &self.slots, weight)?, &mla);
                for (slot, bytes) in [(key, keys), (value, values)] {
                    faults::bind_absorbed(self, slot, &bytes)?;
                    self.slots[slot].epoch = generation;
                }
                Ok(())
            }
            HookKind::Widen { weight, copy, less_one, .. } => {
                if faults::widen_norm(self, (weight, less_one), copy)? {
                    self.slots[copy].epoch = generation;
                }
                Ok(())
            }
            HookKind::Decay { log, a } => self.process_decay(log, a, generation),
        }
    }

    fn process_rotary(
        &mut self,
        table: SlotId,
        rotary: &Rotary,
        generation: Generation,
    ) -> Result<(), Failure> {
        if self.slots[table].storage.is_none() || self.lost {
            self.compute_rotary(table, rotary)?;
            self.slots[table].epoch = generation;
        }
        faults::restore_rotary(self, table, rotary)
    }

    fn process_normalizer(
        &mut self,
        buffer: SlotId,
        factor: f32,
        generation: Generation,
    ) -> Result<(), Failure> {
        if self.slots[buffer].storage.is_none() || self.lost {
            let address = bind(&mut self.device, &mut self.slots, buffer)?;
            self.device.write(address, bytemuck::bytes_of(&factor))?;
            self.slots[buffer].epoch = generation;
        }
        Ok(())
    }

    fn process_expert_map(
        &mut self,
        map: SlotId,
        held: &HeldExperts,
        generation: Generation,
    ) -> Result<(), Failure> {
        if self.slots[map].storage.is_none() || self.lost {
            bind(&mut self.device, &mut self.slots, map)?;
            self.write_expert_map(map, held)?;
            self.slots[map].epoch = generation;
        }
        Ok(())
    }

    /// Writes the place of every expert of the model in this rank's stack, in place.
    pub(crate) fn write_expert_map(
        &mut self,
        map: SlotId,
        held: &HeldExperts,
    ) -> Result<(), Failure> {
        let places = held.map(self.slots[map].spec.elements());
        Ok(self.device.write(self.slots.address(map)?, bytemuck::cast_slice(&places))?)
    }

    fn process_decay(
        &mut self,
        log: SlotId,
        a: SlotId,
        generation: Generation,
    ) -> Result<(), Failure> {
        let count = self.slots[log].spec.elements() as usize;
        let logs = self.device.view::<bf16>(self.slots.address(log)?, count)?;
        let rates: Vec<f32> = logs.iter().map(|log| -libm::expf(log.to_f32())).collect();
        let address = bind(&mut self.device, &mut self.slots, a)?;
        self.slots[a].epoch = generation;
        Ok(self.device.write(address, bytemuck::cast_slice(&rates))?)
    }

    /// Computes a rotary table in place.
    pub(crate) fn compute_rotary(&mut self, table: SlotId, rotary: &Rotary) -> Result<(), Failure> {
        let address = bind(&mut self.device, &mut self.slots, table)?;
        let values = rotary_table(rotary, self.slots[table].spec.shape[0]);
        Ok(self.device.write(address, bytemuck::cast_slice(&values))?)
    }

    /// Orders the columns of a weight that a load left in logical order.
    fn order_columns(&mut self, weight: SlotId, permutation: SlotId) -> Result<(), Failure> {
        if self.slots[weight].runtime {
            return Ok(());
        }
        let logical = read_slot(&self.device, &self.slots, weight)?;
        let matrix = matrix_of(&self.slots[weight].spec);
        let address = self.slots.address(weight)?;
        let values = self.device.view::<bf16>(address, matrix.rows * matrix.columns)?;
        let order = magnitude_order(values, matrix.columns, Dims::row_blocks(self.shard));
        faults::bind_permutation(self, permutation, &order)?;
        let indices: Vec<usize> = order.iter().map(|&column| column as usize).collect();
        let stored = permute(&logical, matrix, &indices);
        self.device.write(address, &stored)?;
        self.slots[weight].runtime = true;
        Ok(())
    }

    /// Packs a slot that a load left in logical order.
    fn pack(&mut self, id: SlotId) -> Result<(), Failure> {
        let Packing::Panels { width } = self.slots[id].spec.packing else { return Ok(()) };
        if layout_of(&self.slots, id) == Layout::Plain {
            let panels = Layout::Panels(width as usize);
            convert_slot(&mut self.device, &self.slots, id, &Layout::Plain, &panels)?;
            self.slots[id].runtime = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_has_its_cosines_then_its_sines() {
        let rotary = |magnitude| Rotary { inverse_frequencies: vec![1.0, 0.5], magnitude };
        let table = rotary_table(&rotary(1.0), 3);
        assert_eq!(table[..4], [1.0, 1.0, 0.0, 0.0]);
        assert_eq!(rotary_table(&rotary(2.0), 1), [2.0, 2.0, 0.0, 0.0]);
        let angles = [2.0f32, 1.0];
        for (pair, angle) in angles.into_iter().enumerate() {
            assert!((table[8 + pair] - angle.cos()).abs() < 1e-6);
            assert!((table[10 + pair] - angle.sin()).abs() < 1e-6);
        }
    }
}
