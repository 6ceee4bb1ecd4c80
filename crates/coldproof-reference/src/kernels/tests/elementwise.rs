//! Norm, rotary embedding, embedding, element-wise kernels and the router.

use super::*;
use crate::kernels::{
    Add, AddBias, Copy, Embed, GatedMul, Join, NormWeight, RmsNorm, Rope, RouterTopK, Scale,
    SelectRows,
};
use coldproof_checkpoint::arch::Activation;

fn norm_exact(row: &[f32], weight: &[bf16], eps: f64) -> Vec<f64> {
    let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
    let scale = (squares / row.len() as f64 + eps).sqrt().recip();
    row.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * w.to_f64()).collect()
}

#[test]
fn norms_agree_with_f64_in_both_weight_types() {
    let (m, hidden, eps) = (3, 160, 1e-6);
    let (x, w) = (values(1, m * hidden), weights(2, hidden));
    let wide: Vec<f32> = w.iter().map(|w| w.to_f32()).collect();
    let expected: Vec<f64> =
        x.chunks_exact(hidden).flat_map(|row| norm_exact(row, &w, 1e-6)).collect();
    let mut rig = Rig::single();
    let source = rig.put(&x);
    for weight in [NormWeight::Bf16(rig.put(&w)), NormWeight::F32(rig.put(&wide))] {
        let y = rig.room(m * hidden * 4);
        rig.launch(RmsNorm { x: source, weight, y, m, hidden, eps });
        assert_near(&rig.get(y, m * hidden), &expected, 1e-5);
    }
    let less_one: Vec<bf16> = w.iter().map(|w| bf16::from_f32(w.to_f32() - 1.0)).collect();
    let whole: Vec<bf16> = less_one.iter().map(|w| bf16::from_f32(w.to_f32() + 1.0)).collect();
    let expected: Vec<f64> =
        x.chunks_exact(hidden).flat_map(|row| norm_exact(row, &whole, 1e-6)).collect();
    let (y, weight) = (rig.room(m * hidden * 4), NormWeight::LessOne(rig.put(&less_one)));
    rig.launch(RmsNorm { x: source, weight, y, m, hidden, eps });
    // The whole weight is rounded once more than what the kernel adds.
    assert_near(&rig.get(y, m * hidden), &expected, 0.02);
}

fn rope_exact(head: &[f64], angles: &[f64]) -> Vec<f64> {
    let half = head.len() / 2;
    let rotated = |i: usize| if i < half { -head[i + half] } else { head[i - half] };
    let angle = |i: usize| angles[i % half];
    (0..head.len()).map(|i| head[i] * angle(i).cos() + rotated(i) * angle(i).sin()).collect()
}

#[test]
fn rope_norms_and_rotates_q_and_k_and_leaves_v_and_padding() {
    let (q_heads, kv_heads, head_dim, max_positions) = (2, 1, 8, 16);
    let width = (q_heads + 2 * kv_heads) * head_dim;
    let angles = |position: usize| -> Vec<f64> {
        (0..head_dim / 2).map(|i| position as f64 / 10f64.powi(i as i32)).collect()
    };
    let table: Vec<f32> = (0..max_positions)
        .flat_map(|p| {
            [
                angles(p).iter().map(|a| a.cos()).collect::<Vec<_>>(),
                angles(p).iter().map(|a| a.sin()).collect(),
            ]
        })
        .flatten()
        .map(|value| value as f32)
        .collect();
    let positions = [3i32, -1, 15];
    let x = values(3, positions.len() * width);
    let (q_norm, k_norm) = (weights(4, head_dim), weights(5, head_dim));
    let mut rig = Rig::single();
    let kernel = Rope {
        qkv: rig.put(&x),
        positions: rig.put(&positions),
        table: rig.put(&table),
        q_norm: Some(NormWeight::Bf16(rig.put(&q_norm))),
        k_norm: Some(NormWeight::Bf16(rig.put(&k_norm))),
        m: positions.len(),
        q_heads,
        kv_heads,
        head_dim,
        max_positions,
        eps: 1e-6,
    };
    rig.launch(kernel.clone());
    let mut expected = Vec::new();
    for (row, &position) in x.chunks_exact(width).zip(&positions) {
        for (head, values) in row.chunks_exact(head_dim).enumerate() {
            let weight = if head < q_heads { &q_norm } else { &k_norm };
            let untouched = head >= q_heads + kv_heads || position < 0;
            let head: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
            expected.extend(match usize::try_from(position) {
                Ok(position) if !untouched => {
                    rope_exact(&norm_exact(values, weight, 1e-6), &angles(position))
                }
                _ => head,
            });
        }
    }
    assert_near(&rig.get(kernel.qkv, x.len()), &expected, 1e-5);
}

#[test]
fn a_position_outside_the_rotary_table_reads_beyond_it() {
    let mut rig = Rig::single();
    let qkv = rig.put(&values(1, 24));
    let positions = rig.put(&[i32::MAX]);
    let table = rig.put(&[0.0f32; 8]);
    let kernel = Rope {
        qkv,
        positions,
        table,
        q_norm: None,
        k_norm: None,
        m: 1,
        q_heads: 1,
        kv_heads: 1,
        head_dim: 8,
        max_positions: 1,
        eps: 0.0,
    };
    assert_eq!(kernel_name(kernel.clone().into()), "rope");
    let address = table.plus(i32::MAX as u64 * 32);
    let illegal = DeviceError::IllegalAccess { kernel: "rope", address };
    assert_eq!(rig.try_launch(kernel), Err(illegal));
}

fn kernel_name(kernel: Kernel) -> &'static str {
    kernel.name()
}

#[test]
fn embedding_takes_table_rows_and_refuses_a_token_that_nobody_holds() {
    let (hidden, shard_rows) = (4, 10);
    let table = weights(1, shard_rows * hidden);
    let mut rig = Rig::single();
    let ids = rig.put(&[9i32, 0]);
    let (table_at, y) = (rig.put(&table), rig.room(2 * hidden * 4));
    let select = SelectRows { ids, y, m: 2, hidden, shard_rows };
    rig.launch(Embed { ids, table: table_at, y, m: 2, hidden, shard_rows });
    rig.launch(select.clone());
    let expected: Vec<f64> =
        [&table[36..40], &table[0..4]].concat().iter().map(|w| w.to_f64()).collect();
    assert_near(&rig.get(y, 2 * hidden), &expected, 0.0);
    rig.device.write(ids, bytemuck::bytes_of(&10i32)).unwrap();
    let error = rig.try_launch(select).unwrap_err();
    assert!(matches!(&error, DeviceError::Assert { text, .. } if text.contains("token 10")));
}

#[test]
fn element_wise_kernels_agree_with_f64() {
    let (m, width) = (3, 7);
    let (a, b) = (values(1, m * width), values(2, m * width));
    let gate_up: Vec<f32> = a
        .chunks_exact(width)
        .zip(b.chunks_exact(width))
        .flat_map(|(gate, up)| [gate, up].concat())
        .collect();
    let mut rig = Rig::single();
    let (a_at, b_at, both) = (rig.put(&a), rig.put(&b), rig.put(&gate_up));
    let (y, copy) = (rig.room(m * width * 4), rig.room(m * width * 4));
    rig.launch(GatedMul { activation: Activation::Silu, gate_up: both, y, m, width });
    let pairs = || a.iter().zip(&b).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let silu: Vec<f64> = pairs().map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
    assert_near(&rig.get(y, m * width), &silu, 1e-6);
    rig.launch(GatedMul { activation: Activation::GeluTanh, gate_up: both, y, m, width });
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let half = |x: f64| 0.5 * x * (1.0 + (root * (x + 0.044_715 * x.powi(3))).tanh());
    let gelu: Vec<f64> = pairs().map(|(gate, up)| half(gate) * up).collect();
    assert_near(&rig.get(y, m * width), &gelu, 1e-6);
    let factor = rig.put(&[2.5f32]);
    rig.launch(Scale { y, factor, m, width });
    let scaled: Vec<f64> = gelu.iter().map(|value| 2.5 * value).collect();
    assert_near(&rig.get(y, m * width), &scaled, 1e-5);
    rig.launch(Add { a: a_at, b: b_at, y: a_at, m, width });
    let sum: Vec<f64> = pairs().map(|(a, b)| a + b).collect();
    assert_near(&rig.get(a_at, m * width), &sum, 1e-6);
    let bias = weights(3, width);
    let biased: Vec<f64> =
        sum.iter().enumerate().map(|(i, sum)| sum + bias[i % width].to_f64()).collect();
    let bias = rig.put(&bias);
    rig.launch(AddBias { y: a_at, bias, m, n: width });
    assert_near(&rig.get(a_at, m * width), &biased, 1e-6);
    let joined = rig.room(2 * m * width * 4);
    rig.launch(Join { a: a_at, b: b_at, y: joined, m, width });
    let columns =
        |row: usize| rig.get(joined, 2 * m * width)[row * 2 * width..][..2 * width].to_vec();
    let of = |at| rig.get(at, m * width);
    for row in 0..m {
        let own = |at| of(at)[row * width..][..width].to_vec();
        assert_eq!(columns(row), [own(a_at), own(b_at)].concat());
    }
    rig.launch(Copy { source: a_at, target: copy, bytes: m * width * 4, rows: m });
    assert_eq!(rig.get(copy, m * width), rig.get(a_at, m * width));
}

fn route(logits: &[f32], top_k: usize, renormalise: bool) -> (Vec<i32>, Vec<f32>) {
    let mut rig = Rig::single();
    let (at, ids, weights) = (rig.put(logits), rig.room(top_k * 4), rig.room(top_k * 4));
    let experts = logits.len();
    rig.launch(RouterTopK { logits: at, ids, weights, m: 1, experts, top_k, renormalise });
    (rig.device.view(ids, top_k).unwrap().to_vec(), rig.get(weights, top_k))
}

#[test]
fn the_router_takes_the_largest_and_of_equals_the_lower_id() {
    let logits = [1.0, 3.0, 2.0, 3.0, 2.0];
    let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let share = |logit: f64| logit.exp() / total;
    let (ids, weights) = route(&logits, 3, false);
    assert_eq!(ids, [1, 3, 2]);
    assert_near(&weights, &[share(3.0), share(3.0), share(2.0)], 1e-6);
    let (ids, weights) = route(&logits, 3, true);
    assert_eq!(ids, [1, 3, 2]);
    let kept = 2.0 * share(3.0) + share(2.0);
    assert_near(&weights, &[share(3.0), share(3.0), share(2.0)].map(|s| s / kept), 1e-6);
}
