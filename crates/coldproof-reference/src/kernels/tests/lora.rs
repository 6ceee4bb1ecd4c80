//! The products of an adapter.

use super::*;
use crate::kernels::{AllReduce, ELSEWHERE, ExpertPairs, ExpertStage, LoraExpand, LoraShrink};

const RANK: usize = 5;
const EXPERTS: usize = 3;
const TOP_K: usize = 2;

/// What the base model had in `y`, plus `scale · B (A x)` in columns `at..`, in f64.
fn adapted(
    (y, width, at): (&[f32], usize, usize),
    scale: f32,
    (a, b): (&[bf16], &[bf16]),
    (x, k): (&[f32], usize),
) -> Vec<f64> {
    let t: Vec<f32> = exact(x, a, k).into_iter().map(|value| value as f32).collect();
    let delta = exact(&t, b, RANK);
    let n = b.len() / RANK;
    let mut y: Vec<f64> = y.iter().copied().map(f64::from).collect();
    for (row, delta) in delta.chunks_exact(n).enumerate() {
        let columns = &mut y[row * width + at..row * width + at + n];
        columns.iter_mut().zip(delta).for_each(|(y, delta)| *y += f64::from(scale) * delta);
    }
    y
}

#[test]
fn an_adapter_is_added_in_its_columns_alone() {
    let (m, k, n, at, width) = (3, 40, 6, 2, 11);
    let (x, y) = (values(1, m * k), values(2, m * width));
    let (a, b) = (weights(3, RANK * k), weights(4, n * RANK));
    let mut rig = Rig::single();
    let (t, found) = (rig.room(m * RANK * 4), rig.put(&y));
    let (x_at, a_at, b_at, scale) = (rig.put(&x), rig.put(&a), rig.put(&b), rig.put(&[0.5_f32]));
    rig.launch(LoraShrink { x: x_at, a: a_at, t, m, k, rank: RANK, blocks: 8, pairs: None });
    rig.launch(LoraExpand {
        t,
        b: b_at,
        scale,
        y: found,
        m,
        rank: RANK,
        n,
        at,
        width,
        pairs: None,
    });
    let found = rig.get(found, m * width);
    assert_near(&found, &adapted((&y, width, at), 0.5, (&a, &b), (&x, k)), 1e-4);
    let outside = |values: &[f32]| {
        let row = |row: &[f32]| [&row[..at], &row[at + n..]].concat();
        bits(&values.chunks_exact(width).flat_map(row).collect::<Vec<f32>>())
    };
    assert_eq!(outside(&found), outside(&y));
}

#[test]
fn each_pair_meets_the_factors_of_its_expert_and_one_elsewhere_none() {
    let (m, k, n) = (3, 40, 6);
    let ids = [2, 0, 1, ELSEWHERE, 0, 1];
    let (a, b) = (weights(3, EXPERTS * RANK * k), weights(4, EXPERTS * n * RANK));
    for (stage, rows) in [(ExpertStage::GateUp, m), (ExpertStage::Down, m * TOP_K)] {
        let (x, y) = (values(1, rows * k), values(2, m * TOP_K * n));
        let mut rig = Rig::single();
        let ids_at = rig.put(&ids);
        let pairs = Some(ExpertPairs { stage, ids: ids_at, top_k: TOP_K, experts: EXPERTS });
        let (t, found) = (rig.room(m * TOP_K * RANK * 4), rig.put(&y));
        let (x_at, a_at) = (rig.put(&x), rig.put(&a));
        let (b_at, scale) = (rig.put(&b), rig.put(&[2.0_f32]));
        rig.launch(LoraShrink { x: x_at, a: a_at, t, m, k, rank: RANK, blocks: 8, pairs });
        rig.launch(LoraExpand {
            t,
            b: b_at,
            scale,
            y: found,
            m,
            rank: RANK,
            n,
            at: 0,
            width: n,
            pairs,
        });
        let expected: Vec<f64> = ids
            .iter()
            .enumerate()
            .flat_map(|(pair, &expert)| {
                let y = &y[pair * n..(pair + 1) * n];
                let Ok(expert) = usize::try_from(expert) else {
                    return y.iter().copied().map(f64::from).collect();
                };
                let row = pair * rows / ids.len();
                let a = &a[expert * RANK * k..(expert + 1) * RANK * k];
                let b = &b[expert * n * RANK..(expert + 1) * n * RANK];
                adapted((y, n, 0), 2.0, (a, b), (&x[row * k..(row + 1) * k], k))
            })
            .collect();
        assert_near(&rig.get(found, m * TOP_K * n), &expected, 1e-3);
        assert_eq!(rig.get(t, m * TOP_K * RANK)[3 * RANK..4 * RANK], [0.0; RANK]);
    }
}

#[test]
fn columns_beyond_those_of_y_are_refused() {
    let mut rig = Rig::single();
    let at = rig.room(4096);
    let kernel = LoraExpand {
        t: at,
        b: at,
        scale: at,
        y: at,
        m: 1,
        rank: 1,
        n: 4,
        at: 2,
        width: 5,
        pairs: None,
    };
    let error = rig.try_launch(kernel).unwrap_err().to_string();
    assert!(error.contains("columns 2..6 are outside the 5"), "{error}");
}

#[test]
fn a_split_input_has_the_bits_of_one_rank() {
    let (m, k, n) = (3, 160, 7);
    let (x, y) = (values(1, m * k), values(2, m * n));
    let (a, b) = (weights(3, RANK * k), weights(4, n * RANK));
    let on = |tp: usize| {
        on_ranks(tp, |rig| {
            let (rank, local) = (rig.device.rank(), k / tp);
            let (start, end) = (rank * local, (rank + 1) * local);
            let x = rig.put(&columns(&x, k, start, end));
            let a = rig.put(&columns(&a, k, start, end));
            let (b, scale, y) = (rig.put(&b), rig.put(&[0.5_f32]), rig.put(&y));
            let t = rig.room(m * RANK * 4);
            let (blocks, pairs, rank) = (8 / tp, None, RANK);
            rig.launch(LoraShrink { x, a, t, m, k: local, rank, blocks, pairs });
            rig.launch(AllReduce { y: t, m, width: RANK });
            rig.launch(LoraExpand { t, b, scale, y, m, rank, n, at: 0, width: n, pairs });
            bits(&rig.get(y, m * n))
        })
    };
    let one = on(1);
    for tp in [2, 4, 8] {
        assert!(on(tp).iter().all(|found| *found == one[0]), "tp {tp}");
    }
}
