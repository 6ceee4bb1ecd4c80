//! The matrix product behind every linear kernel, in one fixed order of additions.
//!
//! K is cut into `blocks` blocks of `ceil(K / blocks)` columns (the last ones shorter or empty
//! where that does not divide; then only equal cuts into ranks agree in every bit). Within a block
//! column `c` goes to lane `c mod 16`, the lanes are folded in halves, and the blocks are added
//! along one balanced binary tree.

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

/// Columns of a panel of packed experts.
pub const PANEL_COLUMNS: usize = 16;

const LANES: usize = 16;
/// Multiplications from which a product is spread over threads.
const PARALLEL_WORK: usize = 1 << 18;
/// Outputs of one task.
const TASK_OUTPUTS: usize = 64;

/// A weight matrix that gives its elements, widened, by logical row and columns.
pub(super) trait Weights: Sync {
    /// Widens columns `columns` of row `row` into `tile`, which is as long.
    fn widen(&self, row: usize, columns: Range<usize>, tile: &mut [f32]);
}

/// Row-major `[rows, columns]`.
pub(super) struct Plain<'a> {
    pub(super) elements: &'a [bf16],
    pub(super) columns: usize,
}

impl Weights for Plain<'_> {
    fn widen(&self, row: usize, columns: Range<usize>, tile: &mut [f32]) {
        let first = row * self.columns;
        widen(&self.elements[first + columns.start..first + columns.end], tile);
    }
}

/// `[rows, columns]` stored as panels of [`PANEL_COLUMNS`] columns, each row-major over all rows;
/// the last panel may be narrower.
pub(super) struct Panels<'a> {
    pub(super) elements: &'a [bf16],
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Weights for Panels<'_> {
    fn widen(&self, row: usize, columns: Range<usize>, mut tile: &mut [f32]) {
        let mut column = columns.start;
        while column < columns.end {
            let panel = column - column % PANEL_COLUMNS;
            let width = PANEL_COLUMNS.min(self.columns - panel);
            let end = columns.end.min(panel + width);
            let first = panel * self.rows + row * width + (column - panel);
            let (head, rest) = tile.split_at_mut(end - column);
            widen(&self.elements[first..first + head.len()], head);
            tile = rest;
            column = end;
        }
    }
}

/// `[columns, rows]`, inputs before outputs, stored as panels of [`PANEL_COLUMNS`] outputs.
pub(super) struct InputPanels<'a> {
    pub(super) elements: &'a [bf16],
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Weights for InputPanels<'_> {
    fn widen(&self, row: usize, columns: Range<usize>, tile: &mut [f32]) {
        let panel = row - row % PANEL_COLUMNS;
        let width = PANEL_COLUMNS.min(self.rows - panel);
        let first = panel * self.columns + (row - panel);
        for (value, column) in tile.iter_mut().zip(columns) {
            *value = self.elements[first + column * width].to_f32();
        }
    }
}

/// `[columns, rows]`, inputs before outputs, row-major.
pub(super) struct InputRows<'a> {
    pub(super) elements: &'a [bf16],
    pub(super) rows: usize,
}

impl Weights for InputRows<'_> {
    fn widen(&self, row: usize, columns: Range<usize>, tile: &mut [f32]) {
        for (value, column) in tile.iter_mut().zip(columns) {
            *value = self.elements[column * self.rows + row].to_f32();
        }
    }
}

/// `y[m, n] = x[m, k] · wᵀ` for `w[n, k]`; `x` has `m * k` elements; 0 blocks are 1.
pub(super) fn product(x: &[f32], k: usize, w: &impl Weights, n: usize, blocks: usize) -> Vec<f32> {
    let m = x.len().checked_div(k).unwrap_or(0);
    let blocks = blocks.max(1);
    let mut columns = vec![0.0; m * n];
    if m == 0 || n == 0 {
        return columns;
    }
    let task = |(index, outputs): (usize, &mut [f32])| {
        let rows = index * TASK_OUTPUTS..(index * TASK_OUTPUTS + outputs.len() / m);
        outputs_of(x, k, w, rows, blocks, outputs);
    };
    if columns.len().saturating_mul(k) >= PARALLEL_WORK {
        columns.par_chunks_mut(TASK_OUTPUTS * m).enumerate().for_each(task);
    } else {
        columns.chunks_mut(TASK_OUTPUTS * m).enumerate().for_each(task);
    }
    transpose(columns, m, n)
}

/// Outputs `rows` of every row of `x`, as `[rows, m]`.
fn outputs_of(
    x: &[f32],
    k: usize,
    w: &impl Weights,
    rows: Range<usize>,
    blocks: usize,
    outputs: &mut [f32],
) {
    let m = x.len() / k;
    let width = k.div_ceil(blocks);
    let mut tile = vec![0.0; width];
    let mut partials = vec![0.0; m * blocks];
    for (row, output) in rows.zip(outputs.chunks_exact_mut(m)) {
        for block in 0..blocks {
            let columns = (block * width).min(k)..((block + 1) * width).min(k);
            let tile = &mut tile[..columns.len()];
            w.widen(row, columns.clone(), tile);
            for (x, partial) in x.chunks_exact(k).zip(partials.chunks_exact_mut(blocks)) {
                partial[block] = dot(&x[columns.clone()], tile);
            }
        }
        for (partial, output) in partials.chunks_exact(blocks).zip(output) {
            *output = tree(partial);
        }
    }
}

/// The sum along a balanced binary tree; the left half takes the odd one.
pub(super) fn tree(values: &[f32]) -> f32 {
    match values {
        [] => 0.0,
        [one] => *one,
        _ => {
            let (left, right) = values.split_at(values.len().div_ceil(2));
            tree(left) + tree(right)
        }
    }
}

/// `Σ x·w` in [`LANES`] lanes, folded in halves.
pub(super) fn dot(x: &[f32], w: &[f32]) -> f32 {
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let (w_chunks, w_rest) = w.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (x, w) in x_chunks.iter().zip(w_chunks) {
        for ((lane, x), w) in lanes.iter_mut().zip(x).zip(w) {
            *lane += x * w;
        }
    }
    for ((lane, x), w) in lanes.iter_mut().zip(x_rest).zip(w_rest) {
        *lane += x * w;
    }
    fold(&lanes)
}

/// The lanes folded in halves: 16 to 8 to 4 to 2 to 1.
fn fold(lanes: &[f32; LANES]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 8]);
    let four: [f32; 4] = std::array::from_fn(|lane| eight[lane] + eight[lane + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

fn widen(elements: &[bf16], tile: &mut [f32]) {
    for (value, element) in tile.iter_mut().zip(elements) {
        *value = f32::from_bits(u32::from(element.to_bits()) << 16);
    }
}

/// `[n, m]` to `[m, n]`.
fn transpose(columns: Vec<f32>, m: usize, n: usize) -> Vec<f32> {
    if m == 1 || n == 1 {
        return columns;
    }
    (0..m * n).map(|index| columns[index % n * m + index / n]).collect()
}
