//! Matrix product with permuted columns and a workspace of locks, as Marlin's.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::context::element;
use super::matmul::{Plain, product};
use super::{Context, Op};
use crate::device::DeviceError;

/// I32 words of a workspace.
pub const WORKSPACE_LOCKS: usize = 16;

/// `y = x[:, permutation] · wᵀ`, where stored column `j` of `w` is logical column
/// `permutation[j]`.
///
/// The locks must be 0 between launches: the kernel waits for each until it is 0, takes it, works,
/// and sets it back to 0. Over garbage it waits for ever. Permutation entries are not checked, as
/// on a device: one outside `0..k` reads whatever lies at that distance from the row.
#[derive(Clone, Debug)]
pub struct LinearPermuted {
    /// F32 `[m, k]`.
    pub x: Address,
    /// BF16 `[n, k]`, columns permuted.
    pub w: Address,
    /// I32 `[k]`.
    pub permutation: Address,
    /// I32 `[WORKSPACE_LOCKS]`.
    pub workspace: Address,
    /// F32 `[m, n]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Inputs on this rank.
    pub k: usize,
    /// Outputs on this rank.
    pub n: usize,
    /// Blocks of `k` on this rank (8 / tp).
    pub blocks: usize,
}

impl Op for LinearPermuted {
    fn name(&self) -> &'static str {
        "linear_permuted"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.x, &[self.m, self.k], WORD_BYTES)
            .read(self.w, &[self.n, self.k], BF16_BYTES)
            .read(self.permutation, &[self.k], WORD_BYTES)
            .update(self.workspace, &[WORKSPACE_LOCKS], WORD_BYTES)
            .write(self.y, &[self.m, self.n], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let locks =
            (0..WORKSPACE_LOCKS as i64).map(|lock| element(self.workspace, lock, WORD_BYTES));
        for lock in locks.clone() {
            context.wait_zero(lock)?;
            context.put(lock, &[1i32])?;
        }
        let x = self.gather(context)?;
        let elements = context.bf16s(self.w, &[self.n, self.k])?;
        let weights = Plain { elements, columns: self.k };
        let y = product(&x, self.k, &weights, self.n, self.blocks);
        context.put(self.y, &y)?;
        locks.into_iter().try_for_each(|lock| context.put(lock, &[0i32]))
    }
}

impl LinearPermuted {
    fn gather(&self, context: &Context<'_>) -> Result<Vec<f32>, DeviceError> {
        let x = context.f32s(self.x, &[self.m, self.k])?;
        let permutation = context.i32s(self.permutation, &[self.k])?;
        let mut gathered = Vec::with_capacity(x.len());
        for (row, values) in x.chunks_exact(self.k.max(1)).enumerate() {
            for &column in permutation {
                let inside = usize::try_from(column).ok().and_then(|column| values.get(column));
                gathered.push(match inside {
                    Some(&value) => value,
                    None => self.stray(context, row, column)?,
                });
            }
        }
        Ok(gathered)
    }

    /// What lies where a permutation entry outside the row points to.
    fn stray(&self, context: &Context<'_>, row: usize, column: i32) -> Result<f32, DeviceError> {
        let index = (row * self.k) as i64 + i64::from(column);
        let value = context.f32s(element(self.x, index, WORD_BYTES), &[1])?;
        Ok(value.first().copied().unwrap_or_default())
    }
}
