//! Stacked, packed experts.

use super::*;
use crate::kernels::{
    ClampedSwiglu, ExpertBias, ExpertLinear, ExpertOrder, ExpertStage, MoeCombine,
};

const EXPERTS: usize = 3;
const TOP_K: usize = 2;

fn stacked(matrices: &[bf16], k: usize) -> Vec<bf16> {
    let matrix = matrices.len() / EXPERTS;
    matrices.chunks_exact(matrix).flat_map(|matrix| packed(matrix, k)).collect()
}

fn run(stage: ExpertStage, x: &[f32], ids: &[i32], w: &[bf16], k: usize) -> Vec<f32> {
    run_stored(ExpertOrder::OutputsFirst, stage, (x, ids), (w, &stacked(w, k)), k)
}

/// `w` as it is `stored`.
fn run_stored(
    order: ExpertOrder,
    stage: ExpertStage,
    (x, ids): (&[f32], &[i32]),
    (w, stored): (&[bf16], &[bf16]),
    k: usize,
) -> Vec<f32> {
    let mut rig = Rig::single();
    let (m, n) = (ids.len() / TOP_K, w.len() / EXPERTS / k);
    let kernel = ExpertLinear {
        stage,
        x: rig.put(x),
        ids: rig.put(ids),
        w: rig.put(stored),
        order,
        y: rig.room(m * TOP_K * n * 4),
        m,
        top_k: TOP_K,
        experts: EXPERTS,
        k,
        n,
        blocks: 8,
    };
    rig.launch(kernel.clone());
    rig.get(kernel.y, m * TOP_K * n)
}

#[test]
fn each_token_meets_its_own_experts() {
    // 40 columns: two panels of 16 and one of 8; blocks of 5 cross the panels.
    let (k, n) = (40, 6);
    let ids = [2, 0, 1, 2, 0, 1];
    let w = weights(1, EXPERTS * n * k);
    for (stage, rows) in [(ExpertStage::GateUp, 3), (ExpertStage::Down, 6)] {
        let x = values(2, rows * k);
        let expected: Vec<f64> = ids
            .iter()
            .enumerate()
            .flat_map(|(pair, &expert)| {
                let row = pair * rows / ids.len();
                let expert = expert as usize * n * k;
                exact(&x[row * k..(row + 1) * k], &w[expert..expert + n * k], k)
            })
            .collect();
        assert_near(&run(stage, &x, &ids, &w, k), &expected, 1e-5);
    }
}

#[test]
fn inputs_before_outputs_give_the_same_bits() {
    // 20 outputs: a panel of 16 and one of 4.
    let (k, n) = (40, 20);
    let ids = [2, 0, 1, 2];
    let (x, w) = (values(6, 4 * k), weights(7, EXPERTS * n * k));
    let turned: Vec<bf16> = w
        .chunks_exact(n * k)
        .flat_map(|w| (0..k * n).map(move |index| w[index % n * k + index / n]))
        .collect();
    let stored = stacked(&turned, n);
    let found =
        run_stored(ExpertOrder::InputsFirst, ExpertStage::Down, (&x, &ids), (&w, &stored), k);
    assert_eq!(bits(&found), bits(&run(ExpertStage::Down, &x, &ids, &w, k)));
}

#[test]
fn each_pair_has_the_bias_of_its_expert() {
    let (ids, n) = ([2, 0, 1, 2], 5);
    let w = weights(8, EXPERTS * n);
    let mut rig = Rig::single();
    let (ids_at, bias, y) = (rig.put(&ids), rig.put(&w), rig.room(4 * n * 4));
    rig.launch(ExpertBias { ids: ids_at, bias, y, m: 2, top_k: TOP_K, experts: EXPERTS, n });
    let row = |expert: i32| &w[expert as usize * n..(expert as usize + 1) * n];
    let expected: Vec<f64> = ids.into_iter().flat_map(row).map(|w| w.to_f64()).collect();
    assert_near(&rig.get(y, 4 * n), &expected, 0.0);
}

#[test]
fn a_gate_is_clamped_above_and_up_on_both_sides() {
    let gate_up = [0.5f32, 0.25, 9.0, 9.0, -9.0, -9.0, 2.0, -1.0];
    let mut rig = Rig::single();
    let (at, y) = (rig.put(&gate_up), rig.room(16));
    let (alpha, limit) = (1.702, 7.0);
    rig.launch(ClampedSwiglu { gate_up: at, y, m: 2, width: 2, alpha, limit });
    let gated = |gate: f64, up: f64| (up + 1.0) * gate / (1.0 + (-1.702 * gate).exp());
    let expected = [gated(0.5, 0.25), gated(7.0, 7.0), gated(-9.0, -7.0), 0.0];
    assert_near(&rig.get(y, 4), &expected, 1e-5);
}

#[test]
fn a_token_has_the_same_bits_in_every_batch() {
    let (k, n) = (64, 5);
    let ids = [2, 0, 1, 2, 0, 2];
    let (x, w) = (values(3, 3 * k), weights(4, EXPERTS * n * k));
    let batch = run(ExpertStage::GateUp, &x, &ids, &w, k);
    for row in 0..3 {
        let one = &x[row * k..(row + 1) * k];
        let alone = run(ExpertStage::GateUp, one, &ids[row * TOP_K..(row + 1) * TOP_K], &w, k);
        assert_eq!(bits(&alone), bits(&batch[row * TOP_K * n..(row + 1) * TOP_K * n]));
    }
}

#[test]
fn packed_and_plain_storage_differ() {
    let w = weights(5, 4 * 40);
    assert_ne!(packed(&w, 40), w);
}

fn combine(x: &[f32], ids: &[i32], shares: &[f32]) -> Vec<f32> {
    let mut rig = Rig::single();
    let hidden = x.len() / ids.len();
    let (x, ids, weights) = (rig.put(x), rig.put(ids), rig.put(shares));
    let y = rig.room(hidden * 4);
    rig.launch(MoeCombine { x, ids, weights, y, m: 1, top_k: shares.len(), hidden });
    rig.get(y, hidden)
}

#[test]
fn experts_are_added_in_ascending_id_whatever_their_order() {
    // In f32, (1e8 - 1e8) + 1 is 1 and (1 - 1e8) + 1e8 is 0: the order shows.
    let sum = combine(&[1.0, 1e8, -1e8], &[7, 2, 5], &[1.0, 1.0, 1.0]);
    assert_eq!(sum, [1.0]);
    let other = combine(&[1.0, 1e8, -1e8], &[2, 5, 7], &[1.0, 1.0, 1.0]);
    assert_eq!(other, [0.0]);
    let weighted = combine(&[1.0, 2.0, 10.0, 20.0], &[1, 0], &[0.5, 0.25]);
    assert_eq!(weighted, [3.0, 6.0]);
}
