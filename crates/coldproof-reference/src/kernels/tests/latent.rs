//! Attention in the latent space, against keys and values that are expanded for every head.

use super::*;
use crate::kernels::{
    Columns, HeadLinear, LatentAttention, LatentDims, LatentRope, LatentWrite, NormWeight, Pages,
    Paging, RmsNorm, SliceNorm, Tables,
};

const BLOCK: usize = 4;
const NOPE: usize = 6;
const ROPE: usize = 4;
const RANK: usize = 24;
const VALUE: usize = 5;
const SCALE: f32 = 0.3;

/// One sequence: queries that are rotated already, latents that are normed already, and the shared
/// keys behind two columns of something else.
struct Sequence {
    heads: usize,
    q: Vec<f32>,
    latents: Vec<f32>,
    keys: Vec<f32>,
    /// `[heads, NOPE, RANK]`, then `[heads, RANK, VALUE]`.
    absorbed: [Vec<bf16>; 2],
}

impl Sequence {
    fn new(rows: usize, heads: usize) -> Self {
        Self {
            heads,
            q: values(1, rows * heads * (NOPE + ROPE)),
            latents: values(2, rows * RANK),
            keys: values(3, rows * (2 + ROPE)),
            absorbed: [weights(4, heads * NOPE * RANK), weights(5, heads * RANK * VALUE)],
        }
    }

    fn rows(&self) -> usize {
        self.latents.len() / RANK
    }

    /// The same with heads `first..first + count` alone.
    fn with_heads(&self, first: usize, count: usize) -> Self {
        let part = |all: &[bf16]| {
            let one = all.len() / self.heads;
            all[first * one..(first + count) * one].to_vec()
        };
        let width = NOPE + ROPE;
        Self {
            heads: count,
            q: columns(&self.q, self.heads * width, first * width, (first + count) * width),
            latents: self.latents.clone(),
            keys: self.keys.clone(),
            absorbed: [part(&self.absorbed[0]), part(&self.absorbed[1])],
        }
    }

    fn dims(&self) -> LatentDims {
        LatentDims { heads: self.heads, nope: NOPE, rope: ROPE, rank: RANK }
    }

    /// A head's key at a position, expanded from its latent, and the shared one behind it.
    fn key(&self, position: usize, head: usize) -> Vec<f64> {
        let latent = &self.latents[position * RANK..][..RANK];
        let matrix = &self.absorbed[0][head * NOPE * RANK..][..NOPE * RANK];
        let shared = &self.keys[position * (2 + ROPE) + 2..][..ROPE];
        exact(latent, matrix, RANK).into_iter().chain(shared.iter().map(|&k| k.into())).collect()
    }

    fn value(&self, position: usize, head: usize) -> Vec<f64> {
        let latent = &self.latents[position * RANK..][..RANK];
        let matrix = &self.absorbed[1][head * RANK * VALUE..][..RANK * VALUE];
        let column = |v: usize| -> f64 {
            let pairs = latent.iter().zip(matrix.iter().skip(v).step_by(VALUE));
            pairs.map(|(x, w)| f64::from(*x) * w.to_f64()).sum()
        };
        (0..VALUE).map(column).collect()
    }

    fn exact(&self, row: usize) -> Vec<f64> {
        let head = |head: usize| {
            let q = &self.q[(row * self.heads + head) * (NOPE + ROPE)..][..NOPE + ROPE];
            let score = |position: usize| -> f64 {
                let key = self.key(position, head);
                let dot: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum();
                (dot * f64::from(SCALE)).exp()
            };
            let total: f64 = (0..=row).map(score).sum();
            let mut y = vec![0.0; VALUE];
            for position in 0..=row {
                let share = score(position) / total;
                let value = self.value(position, head);
                y.iter_mut().zip(value).for_each(|(y, value)| *y += share * value);
            }
            y
        };
        (0..self.heads).flat_map(head).collect()
    }
}

/// Writes and attends to rows of a sequence at these positions.
fn attend(sequence: &Sequence, positions: &[i32], tables: &[i32], layout: Tables) -> Vec<f32> {
    let mut rig = Rig::single();
    let (m, heads, dims) = (positions.len(), sequence.heads, sequence.dims());
    let max_blocks = match layout {
        Tables::Shared => tables.len(),
        Tables::PerRow => tables.len() / m,
    };
    let paging = Paging {
        cache: rig.room(8 * BLOCK * (RANK + ROPE) * 4),
        pages: Pages {
            tables: rig.put(tables),
            positions: rig.put(positions),
            layout,
            blocks: 8,
            block_size: BLOCK,
            max_blocks,
        },
        kv_heads: 1,
        head_dim: RANK + ROPE,
    };
    let q = rig.put(&sequence.q[..m * heads * (NOPE + ROPE)]);
    let latents = rig.put(&sequence.latents[..m * RANK]);
    let base = rig.put(&sequence.keys[..m * (2 + ROPE)]);
    let keys = Columns { base, width: 2 + ROPE, first: 2 };
    let [key, value] = sequence.absorbed.each_ref().map(|matrix| rig.put(matrix));
    rig.launch(LatentWrite { latents, keys, paging, m, dims });
    let absorbed = rig.room(m * heads * RANK * 4);
    let (width, blocks) = (NOPE + ROPE, 8);
    let (x, w, y, k, n) = (q, key, absorbed, NOPE, RANK);
    rig.launch(HeadLinear { x, w, y, m, heads, width, k, n, blocks });
    let attended = rig.room(m * heads * RANK * 4);
    rig.launch(LatentAttention { absorbed, q, paging, y: attended, m, dims, scale: SCALE });
    let y = rig.room(m * heads * VALUE * 4);
    let (x, w, width, k, n) = (attended, value, RANK, RANK, VALUE);
    rig.launch(HeadLinear { x, w, y, m, heads, width, k, n, blocks });
    rig.get(y, m * heads * VALUE)
}

#[test]
fn absorbed_attention_is_that_of_expanded_keys_and_values() {
    let sequence = Sequence::new(11, 3);
    let positions: Vec<i32> = (0..11).collect();
    let found = attend(&sequence, &positions, &[6, 1, 4], Tables::Shared);
    let expected: Vec<f64> = (0..sequence.rows()).flat_map(|row| sequence.exact(row)).collect();
    assert_near(&found, &expected, 1e-5);
}

#[test]
fn a_head_has_the_same_bits_with_others_and_without() {
    let sequence = Sequence::new(9, 4);
    let positions: Vec<i32> = (0..9).collect();
    let all = attend(&sequence, &positions, &[2, 0, 7], Tables::Shared);
    for first in [0, 2] {
        let part = sequence.with_heads(first, 2);
        let own = attend(&part, &positions, &[2, 0, 7], Tables::Shared);
        let wanted = columns(&all, 4 * VALUE, first * VALUE, (first + 2) * VALUE);
        assert_eq!(bits(&own), bits(&wanted), "heads {first} and {}", first + 1);
    }
}

#[test]
fn a_padding_row_writes_nothing_and_is_zero() {
    let sequence = Sequence::new(3, 2);
    let alone = attend(&sequence, &[0], &[3], Tables::PerRow);
    let tables = [3, 5, 3];
    let padded = attend(&sequence, &[0, 0, -1], &tables, Tables::PerRow);
    assert_eq!(bits(&padded[..2 * VALUE]), bits(&alone), "the padding row wrote over block 3");
    assert!(padded[4 * VALUE..].iter().all(|&value| value == 0.0));
}

/// Rotates one row at position 1 with the angles 1 and 2.
fn rotated(interleaved: bool, position: i32) -> (Vec<f32>, Vec<f32>) {
    let mut rig = Rig::single();
    let dims = LatentDims { heads: 2, nope: 1, rope: 4, rank: 3 };
    let angles = [1.0f32, 2.0];
    let mut table = vec![7.0f32; 4];
    table.extend(angles.map(f32::cos));
    table.extend(angles.map(f32::sin));
    let q = rig.put(&[9.0f32, 1.0, 2.0, 3.0, 4.0, 8.0, 5.0, 6.0, 7.0, 8.0]);
    let base = rig.put(&[1.5f32, 1.0, 2.0, 3.0, 4.0]);
    let (positions, table) = (rig.put(&[position]), rig.put(&table));
    let keys = Columns { base, width: 5, first: 1 };
    let (m, max_positions) = (1, 2);
    rig.launch(LatentRope { q, keys, positions, table, m, dims, max_positions, interleaved });
    (rig.get(q, 10), rig.get(base, 5))
}

#[test]
fn rotary_parts_turn_by_neighbours_or_by_halves() {
    let ([cos1, cos2], [sin1, sin2]) = ([1.0f64.cos(), 2.0f64.cos()], [1.0f64.sin(), 2.0f64.sin()]);
    let turn = |a: f64, b: f64, cos: f64, sin: f64| [a * cos - b * sin, b * cos + a * sin];
    let pairs = |v: [f64; 4]| -> Vec<f64> {
        [turn(v[0], v[1], cos1, sin1), turn(v[2], v[3], cos2, sin2)].concat()
    };
    let halves = |v: [f64; 4]| -> Vec<f64> {
        let (first, second) = (turn(v[0], v[2], cos1, sin1), turn(v[1], v[3], cos2, sin2));
        vec![first[0], second[0], first[1], second[1]]
    };
    let (low, high) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
    for interleaved in [true, false] {
        let turned = |v: [f64; 4]| if interleaved { pairs(v) } else { halves(v) };
        let (q, key) = rotated(interleaved, 1);
        let expected = [vec![9.0], turned(low), vec![8.0], turned(high)].concat();
        assert_near(&q, &expected, 1e-5);
        assert_near(&key, &[vec![1.5], turned(low)].concat(), 1e-5);
        let (q, key) = rotated(interleaved, -1);
        assert_eq!((q[1..3].to_vec(), key[1..3].to_vec()), (vec![1.0, 2.0], vec![1.0, 2.0]));
    }
}

#[test]
fn some_columns_are_normed_as_if_they_were_alone() {
    let (m, width, first, n, eps) = (3, 40, 7, 24, 1e-6);
    let (x, w) = (values(6, m * width), weights(7, n));
    let mut rig = Rig::single();
    let weight = rig.put(&w);
    let (y, alone) = (rig.room(m * n * 4), rig.put(&columns(&x, width, first, first + n)));
    let x = rig.put(&x);
    rig.launch(SliceNorm { x, weight, y, m, width, first, n, eps });
    let weight = NormWeight::Bf16(weight);
    rig.launch(RmsNorm { x: alone, weight, y: alone, m, hidden: n, eps });
    assert_eq!(bits(&rig.get(y, m * n)), bits(&rig.get(alone, m * n)));
}

#[test]
fn columns_beyond_a_row_and_caches_of_another_width_are_assertions() {
    let mut rig = Rig::single();
    let at = rig.put(&[0.0f32; 64]);
    let assertion = |result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Assert { .. })), "{result:?}");
    };
    let (m, width, first, n, eps) = (1, 4, 2, 3, 1.0);
    assertion(rig.try_launch(SliceNorm { x: at, weight: at, y: at, m, width, first, n, eps }));
    let (heads, width, k, n, blocks) = (1, 2, 3, 1, 1);
    assertion(rig.try_launch(HeadLinear { x: at, w: at, y: at, m, heads, width, k, n, blocks }));
    let dims = LatentDims { heads: 1, nope: 1, rope: 2, rank: 3 };
    let (blocks, block_size, max_blocks, kv_heads, head_dim) = (1, 1, 1, 1, 6);
    let (cache, tables, positions, layout) = (at, at, at, Tables::Shared);
    let pages = Pages { tables, positions, layout, blocks, block_size, max_blocks };
    let paging = Paging { cache, pages, kv_heads, head_dim };
    let keys = Columns { base: at, width: 2, first: 0 };
    assertion(rig.try_launch(LatentWrite { latents: at, keys, paging, m, dims }));
    let (absorbed, q, scale) = (at, at, 1.0);
    assertion(rig.try_launch(LatentAttention { absorbed, q, paging, y: at, m, dims, scale }));
}
