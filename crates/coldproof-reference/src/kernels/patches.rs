//! An image to the rows of a vision tower.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, BF16_BYTES, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// Cuts an image into patches, row by row: `y[patch] = [channel, row, column]` of its pixels, in
/// the order of a convolution's weight.
#[derive(Clone, Debug)]
pub struct Patches {
    /// F32 `[channels, size, size]`.
    pub pixels: Address,
    /// F32 `[(size / patch)², channels * patch * patch]`.
    pub y: Address,
    /// Channels of the image.
    pub channels: usize,
    /// Rows and columns of the image; a multiple of `patch`.
    pub size: usize,
    /// Rows and columns of a patch.
    pub patch: usize,
}

impl Patches {
    const fn side(&self) -> usize {
        match self.size.checked_div(self.patch) {
            Some(side) => side,
            None => 0,
        }
    }

    const fn patches(&self) -> usize {
        self.side() * self.side()
    }
}

impl Op for Patches {
    fn name(&self) -> &'static str {
        "patches"
    }

    fn args(&self) -> Vec<ArgFact> {
        let row = self.channels * self.patch * self.patch;
        Args::default()
            .read(self.pixels, &[self.channels, self.size, self.size], WORD_BYTES)
            .write(self.y, &[self.patches(), row], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.patches()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let (size, patch) = (self.size, self.patch);
        context.assert(patch > 0 && size.is_multiple_of(patch), || {
            format!("patches of {patch} do not cut an image of {size}")
        })?;
        let pixels = context.f32s(self.pixels, &[self.channels, size, size])?;
        let mut y = Vec::with_capacity(pixels.len());
        for (top, left) in (0..self.patches()).map(|at| (at / self.side(), at % self.side())) {
            for channel in pixels.chunks_exact((size * size).max(1)) {
                let rows = channel.chunks_exact(size).skip(top * patch).take(patch);
                rows.for_each(|row| y.extend_from_slice(&row[left * patch..(left + 1) * patch]));
            }
        }
        context.put(self.y, &y)
    }
}

/// `y = [class; patches] + positions`: the rows that a vision tower begins with.
#[derive(Clone, Debug)]
pub struct TowerRows {
    /// F32 `[m - 1, width]`: embedded patches.
    pub patches: Address,
    /// BF16 `[width]`: the class token's row.
    pub class: Address,
    /// BF16 `[m, width]`.
    pub positions: Address,
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows: one more than there are patches.
    pub m: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for TowerRows {
    fn name(&self) -> &'static str {
        "tower_rows"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.patches, &[self.m.saturating_sub(1), self.width], WORD_BYTES)
            .read(self.class, &[self.width], BF16_BYTES)
            .read(self.positions, &[self.m, self.width], BF16_BYTES)
            .write(self.y, &[self.m, self.width], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let patches = context.f32s(self.patches, &[self.m.saturating_sub(1), self.width])?;
        let class = context.bf16s(self.class, &[self.width])?;
        let positions = context.bf16s(self.positions, &[self.m, self.width])?;
        let rows = class.iter().map(|value| value.to_f32()).chain(patches.iter().copied());
        let y: Vec<f32> = rows.zip(positions).map(|(row, at)| row + at.to_f32()).collect();
        context.put(self.y, &y)
    }
}
