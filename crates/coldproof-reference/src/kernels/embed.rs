//! Rows of a vocabulary-parallel embedding table.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// Copies the table's row of each token that this rank holds; the others get zeros, and
/// `SelectRows` after it takes every row from its owner.
#[derive(Clone, Debug)]
pub struct Embed {
    /// I32 `[m]`: token ids.
    pub ids: Address,
    /// BF16 `[shard_rows, hidden]`: rows `rank * shard_rows ..` of the padded table.
    pub table: Address,
    /// F32 `[m, hidden]`.
    pub y: Address,
    /// Tokens.
    pub m: usize,
    /// Width of a row.
    pub hidden: usize,
    /// Rows of the padded table on each rank.
    pub shard_rows: usize,
}

impl Op for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.ids, &[self.m], WORD_BYTES)
            .read(self.table, &[self.shard_rows, self.hidden], BF16_BYTES)
            .write(self.y, &[self.m, self.hidden], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let first = context.groups.tensor.rank().saturating_mul(self.shard_rows);
        let ids = context.i32s(self.ids, &[self.m])?;
        let table = context.bf16s(self.table, &[self.shard_rows, self.hidden])?;
        let mut y = vec![0.0; self.m * self.hidden];
        for (&id, row) in ids.iter().zip(y.chunks_exact_mut(self.hidden.max(1))) {
            let local = usize::try_from(id).ok().and_then(|id| id.checked_sub(first));
            let Some(local) = local.filter(|&local| local < self.shard_rows) else { continue };
            let source = &table[local * self.hidden..(local + 1) * self.hidden];
            row.iter_mut().zip(source).for_each(|(value, element)| *value = element.to_f32());
        }
        context.put(self.y, &y)
    }
}
