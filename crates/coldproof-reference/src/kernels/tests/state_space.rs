//! Convolution, recurrence and gated norm of a state-space mixer, over paged states.

use super::*;
use crate::kernels::{CausalConv, GatedNorm, Pages, SquaredRelu, StateScan, States, Tables};

const BLOCK: usize = 3;
const BLOCKS: usize = 4;
/// Blocks of a sequence, in its order.
const TABLE: [i32; 3] = [2, 0, 3];
const TAPS: usize = 4;
const CHANNELS: usize = 5;
/// Elements of a row before those that are convolved.
const FIRST: usize = 2;

/// What the cache's fresh memory holds: no kernel may read it.
const GARBAGE: f32 = 1e30;

fn cache(rig: &mut Rig, width: usize) -> Address {
    rig.put(&vec![GARBAGE; BLOCKS * width])
}

/// The states of these positions of one sequence.
fn states(
    rig: &mut Rig,
    (cache, width): (Address, usize),
    layout: Tables,
    positions: &[i32],
) -> States {
    let tables = if layout == Tables::Shared { 1 } else { positions.len() };
    States {
        cache,
        pages: Pages {
            tables: rig.put(&TABLE.repeat(tables)),
            positions: rig.put(positions),
            layout,
            blocks: BLOCKS,
            block_size: BLOCK,
            max_blocks: TABLE.len(),
        },
        width,
    }
}

/// The sequence in pieces: the first in one launch, each other as decode steps beside padding.
const PIECES: [(usize, usize, Tables); 4] = [
    (0, 5, Tables::Shared),
    (5, 6, Tables::PerRow),
    (6, 7, Tables::PerRow),
    (7, 9, Tables::Shared),
];
const ROWS: usize = 9;

/// Launches the rows of the sequence piece by piece, over one cache.
fn in_pieces(
    pieces: &[(usize, usize, Tables)],
    width: usize,
    launch: impl Fn(&mut Rig, usize, usize, States) -> Vec<f32>,
) -> Vec<f32> {
    let mut rig = Rig::single();
    let cache = cache(&mut rig, width);
    let mut all = Vec::new();
    for &(from, to, layout) in pieces {
        let mut positions: Vec<i32> = (from as i32..to as i32).collect();
        if layout == Tables::PerRow {
            positions.push(-1);
        }
        let states = states(&mut rig, (cache, width), layout, &positions);
        let y = launch(&mut rig, from, positions.len(), states);
        let per_row = y.len() / positions.len();
        let (rows, padding) = y.split_at((to - from) * per_row);
        assert!(padding.iter().all(|&value| value == 0.0), "padding is zero");
        all.extend_from_slice(rows);
    }
    all
}

fn silu(value: f64) -> f64 {
    value / (1.0 + (-value).exp())
}

/// Rows from `from` on, of which the last may be padding.
fn rows_of(all: &[f32], width: usize, from: usize, m: usize) -> Vec<f32> {
    let mut rows = all[from * width..].to_vec();
    rows.resize(m * width, 0.5);
    rows
}

#[test]
fn a_convolution_sees_its_last_inputs_across_pieces_and_blocks() {
    let width = FIRST + CHANNELS;
    let (x, w, bias) = (values(1, ROWS * width), weights(2, CHANNELS * TAPS), weights(3, CHANNELS));
    let run = |pieces: &[_], bias: Option<&[bf16]>| {
        in_pieces(pieces, CHANNELS * (TAPS - 1), |rig, from, m, states| {
            let y = rig.room(m * CHANNELS * 4);
            let kernel = CausalConv {
                x: rig.put(&rows_of(&x, width, from, m)),
                weight: rig.put(&w),
                bias: bias.map(|bias| rig.put(bias)),
                states,
                y,
                m,
                width,
                first: FIRST,
                channels: CHANNELS,
                taps: TAPS,
            };
            rig.launch(kernel);
            rig.get(y, m * CHANNELS)
        })
    };
    let exact = |row: usize, channel: usize| {
        let past = |tap: usize| (row + tap + 1).checked_sub(TAPS);
        let input =
            |tap: usize| past(tap).map_or(0.0, |row| f64::from(x[row * width + FIRST + channel]));
        let taps = 0..TAPS;
        taps.map(|tap| w[channel * TAPS + tap].to_f64() * input(tap)).sum::<f64>()
    };
    let all = |with_bias: bool| -> Vec<f64> {
        let one = |index: usize| {
            let (row, channel) = (index / CHANNELS, index % CHANNELS);
            let bias = if with_bias { bias[channel].to_f64() } else { 0.0 };
            silu(exact(row, channel) + bias)
        };
        (0..ROWS * CHANNELS).map(one).collect()
    };
    let whole = [(0, ROWS, Tables::Shared)];
    let biased = run(&whole, Some(&bias));
    assert_near(&biased, &all(true), 1e-5);
    assert_eq!(bits(&run(&PIECES, Some(&bias))), bits(&biased));
    assert_near(&run(&PIECES, None), &all(false), 1e-5);
}

const HEADS: usize = 4;
const GROUPS: usize = 2;
const HEAD: usize = 3;
const STATE: usize = 5;
const INNER: usize = HEADS * HEAD;

/// The inputs of a scan: x with both matrices, steps, rates, what goes past, biases.
struct Scan {
    x: Vec<f32>,
    steps: Vec<f32>,
    a: Vec<f32>,
    d: Vec<bf16>,
    dt_bias: Vec<bf16>,
}

impl Scan {
    const ROW: usize = INNER + 2 * GROUPS * STATE;

    fn new() -> Self {
        let mut steps = values(12, ROWS * HEADS);
        // Beyond the bound of the logarithm.
        steps[HEADS] = 25.0;
        Self {
            x: values(11, ROWS * Self::ROW),
            steps,
            a: values(13, HEADS).iter().map(|a| -a.abs() - 0.1).collect(),
            d: weights(14, HEADS),
            dt_bias: weights(15, HEADS),
        }
    }

    fn launch(&self, rig: &mut Rig, from: usize, m: usize, states: States) -> Vec<f32> {
        let y = rig.room(m * INNER * 4);
        let kernel = StateScan {
            x: rig.put(&rows_of(&self.x, Self::ROW, from, m)),
            projected: rig.put(&rows_of(&self.steps, HEADS, from, m)),
            a: rig.put(&self.a),
            d: rig.put(&self.d),
            dt_bias: rig.put(&self.dt_bias),
            states,
            y,
            m,
            width: HEADS,
            heads: HEADS,
            groups: GROUPS,
            head_dim: HEAD,
            state_size: STATE,
        };
        rig.launch(kernel);
        rig.get(y, m * INNER)
    }

    fn run(&self, pieces: &[(usize, usize, Tables)]) -> Vec<f32> {
        in_pieces(pieces, INNER * STATE, |rig, from, m, states| self.launch(rig, from, m, states))
    }

    /// `Σ over s ≤ t of exp(a · Σ steps in s + 1..=t) · step(s) · x(s) · (b(s) · c(t))`.
    fn exact(&self, row: usize, channel: usize) -> f64 {
        let head = channel / HEAD;
        let group = head / (HEADS / GROUPS) * STATE;
        let step = |row: usize| {
            let raw = f64::from(self.steps[row * HEADS + head]) + self.dt_bias[head].to_f64();
            raw.exp().ln_1p()
        };
        let x = |row: usize| f64::from(self.x[row * Self::ROW + channel]);
        let part = |row: usize, first: usize| {
            let first = row * Self::ROW + INNER + first + group;
            self.x[first..first + STATE].iter().map(|value| f64::from(*value)).collect::<Vec<_>>()
        };
        let c = part(row, GROUPS * STATE);
        let of = |past: usize| {
            let product: f64 = part(past, 0).iter().zip(&c).map(|(b, c)| b * c).sum();
            let between: f64 = (past + 1..=row).map(step).sum();
            (f64::from(self.a[head]) * between).exp() * step(past) * x(past) * product
        };
        (0..=row).map(of).sum::<f64>() + self.d[head].to_f64() * x(row)
    }
}

#[test]
fn a_scan_is_the_sum_of_all_that_came_before_across_pieces_and_blocks() {
    let scan = Scan::new();
    let expected: Vec<f64> =
        (0..ROWS * INNER).map(|index| scan.exact(index / INNER, index % INNER)).collect();
    let whole = scan.run(&[(0, ROWS, Tables::Shared)]);
    assert_near(&whole, &expected, 1e-4);
    assert_eq!(bits(&scan.run(&PIECES)), bits(&whole));
}

#[test]
fn a_full_block_holds_the_state_that_the_next_position_starts_from() {
    let scan = Scan::new();
    let whole = scan.run(&[(0, ROWS, Tables::Shared)]);
    let mut rig = Rig::single();
    let width = INNER * STATE;
    let cache = cache(&mut rig, width);
    let launch = |rig: &mut Rig, from: usize| {
        let positions: Vec<i32> = (from as i32..ROWS as i32).collect();
        let states = states(rig, (cache, width), Tables::Shared, &positions);
        bits(&scan.launch(rig, from, positions.len(), states))
    };
    launch(&mut rig, 0);
    // Another request with the same first block, then one with the same two.
    for known in [BLOCK, 2 * BLOCK] {
        assert_eq!(launch(&mut rig, known), bits(&whole[known * INNER..]), "{known}");
    }
}

/// A norm of one row cut into `tp` ranks, each with whole groups, or all with the only one.
fn normed(tp: usize, groups: usize) -> Vec<u32> {
    let (width, steps) = (32, 3);
    let (x, gate, weight) = (values(31, width), values(32, width), weights(33, width));
    let shards = on_ranks(tp, |rig| {
        let (rank, local) = (rig.device.rank(), width / tp);
        let own = rank * local..(rank + 1) * local;
        let shared = groups == 1;
        let mut gate = gate[own.clone()].to_vec();
        gate.resize(local + steps, GARBAGE);
        let y = rig.room(local * 4);
        let kernel = GatedNorm {
            x: rig.put(&x[own.clone()]),
            gate: rig.put(&gate),
            weight: rig.put(&weight[own]),
            y,
            m: 1,
            width: local,
            gate_width: local + steps,
            groups: (groups / tp).max(1),
            blocks: if shared { 8 / tp } else { 8 },
            sharing: if shared { tp } else { 1 },
            eps: 1e-5,
        };
        rig.launch(kernel);
        rig.get(y, local)
    });
    let found = shards.concat();
    let gated = |index: usize| f64::from(x[index]) * silu(f64::from(gate[index]));
    let per_group = width / groups;
    let expected = (0..width).map(|index| {
        let first = index / per_group * per_group;
        let squares: f64 = (first..first + per_group).map(|at| gated(at).powi(2)).sum();
        gated(index) / (squares / per_group as f64 + 1e-5).sqrt() * weight[index].to_f64()
    });
    assert_near(&found, &expected.collect::<Vec<_>>(), 1e-5);
    bits(&found)
}

#[test]
fn a_gated_norm_has_the_same_bits_on_any_ranks() {
    for groups in [1, 4] {
        let one = normed(1, groups);
        for tp in [2, 4] {
            assert_eq!(normed(tp, groups), one, "{groups} groups, tp {tp}");
        }
    }
}

#[test]
fn a_squared_relu_keeps_what_is_no_number() {
    let mut rig = Rig::single();
    let y = rig.put(&[-2.0, -0.0, 1.5, f32::NAN]);
    rig.launch(SquaredRelu { y, m: 2, width: 2 });
    let found = rig.get(y, 4);
    assert_eq!(found[..3], [0.0, 0.0, 2.25]);
    assert!(found[3].is_nan());
}
