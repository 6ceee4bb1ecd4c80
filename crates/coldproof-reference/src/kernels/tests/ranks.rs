//! The same bits on 1, 2, 4 and 8 ranks.

use super::*;
use coldproof_contract::words::Topology;

use crate::kernels::{
    Add, AllReduce, Embed, ExpertLinear, ExpertOrder, ExpertStage, GatedMul, Gather, KvWrite,
    Linear, LocalExperts, MoeCombine, PagedAttention, Pages, Paging, SelectExperts, SelectRows,
    StageReceive, StageSend, Tables,
};
use coldproof_checkpoint::arch::Activation;

/// The result that all ranks share, as bits.
fn agreed(results: Vec<Vec<f32>>) -> Vec<u32> {
    let first = bits(&results[0]);
    assert!(results.iter().all(|result| bits(result) == first), "ranks differ");
    first
}

#[test]
fn row_parallel_products_agree() {
    let (m, k, n) = (3, 160, 37);
    let (x, w) = (values(1, m * k), weights(2, n * k));
    let on = |tp: usize| {
        agreed(on_ranks(tp, |rig| {
            let (rank, local) = (rig.device.rank(), k / tp);
            let (start, end) = (rank * local, (rank + 1) * local);
            let x = rig.put(&columns(&x, k, start, end));
            let w = rig.put(&columns(&w, k, start, end));
            let y = rig.room(m * n * 4);
            rig.launch(Linear { x, w, y, m, k: local, n, blocks: 8 / tp });
            rig.launch(AllReduce { y, m, width: n });
            rig.get(y, m * n)
        }))
    };
    let one = on(1);
    let values: Vec<f32> = one.iter().map(|&bits| f32::from_bits(bits)).collect();
    assert_near(&values, &exact(&x, &w, k), 1e-4);
    for tp in [2, 4, 8] {
        assert_eq!(on(tp), one, "tp {tp}");
    }
}

#[test]
fn embeddings_and_gathered_logits_agree() {
    let (vocabulary, hidden) = (331, 16);
    let ids = [0i32, 330, 100, 200];
    let table = weights(3, vocabulary * hidden);
    let on = |tp: usize| {
        let shard_rows = vocabulary.next_multiple_of(64 * tp) / tp;
        let mut padded = table.clone();
        padded.resize(shard_rows * tp * hidden, bf16::ZERO);
        agreed(on_ranks(tp, |rig| {
            let first = rig.device.rank() * shard_rows * hidden;
            let table = rig.put(&padded[first..first + shard_rows * hidden]);
            let (ids, m) = (rig.put(&ids), ids.len());
            let (y, shard) = (rig.room(m * hidden * 4), rig.room(m * shard_rows * 4));
            let logits = rig.room(m * vocabulary * 4);
            rig.launch(Embed { ids, table, y, m, hidden, shard_rows });
            rig.launch(SelectRows { ids, y, m, hidden, shard_rows });
            rig.launch(Linear { x: y, w: table, y: shard, m, k: hidden, n: shard_rows, blocks: 8 });
            rig.launch(Gather { x: shard, y: logits, m, shard: shard_rows, total: vocabulary });
            [rig.get(y, m * hidden), rig.get(logits, m * vocabulary)].concat()
        }))
    };
    let one = on(1);
    let row: Vec<u32> =
        table[330 * hidden..331 * hidden].iter().map(|w| w.to_f32().to_bits()).collect();
    assert_eq!(one[hidden..2 * hidden], row);
    for tp in [2, 4] {
        assert_eq!(on(tp), one, "tp {tp}");
    }
}

#[test]
fn attention_with_fewer_key_heads_than_ranks_agrees() {
    let (m, heads, kv_heads, head_dim) = (6, 4, 2, 8);
    let (q, kv) = (values(4, m * heads * head_dim), values(5, 2 * m * kv_heads * head_dim));
    let (keys, vals) = kv.split_at(m * kv_heads * head_dim);
    let on = |tp: usize| -> Vec<u32> {
        let (q_local, kv_local) = (heads / tp, (kv_heads / tp).max(1));
        let shards = on_ranks(tp, |rig| {
            let rank = rig.device.rank();
            let kv_first = rank * kv_heads / tp;
            let head = |all: &[f32], of: usize, first: usize, count: usize| {
                columns(all, of * head_dim, first * head_dim, (first + count) * head_dim)
            };
            let parts = [
                head(&q, heads, rank * q_local, q_local),
                head(keys, kv_heads, kv_first, kv_local),
                head(vals, kv_heads, kv_first, kv_local),
            ];
            let row = |row: usize| {
                parts
                    .iter()
                    .flat_map(move |part| &part[row * part.len() / m..(row + 1) * part.len() / m])
            };
            let fused: Vec<f32> = (0..m).flat_map(row).copied().collect();
            let positions: Vec<i32> = (0..m as i32).collect();
            let paging = Paging {
                cache: rig.room(2 * 2 * 4 * kv_local * head_dim * 4),
                pages: Pages {
                    tables: rig.put(&[1i32, 0]),
                    positions: rig.put(&positions),
                    layout: Tables::Shared,
                    blocks: 2,
                    block_size: 4,
                    max_blocks: 2,
                },
                kv_heads: kv_local,
                head_dim,
            };
            let (qkv, y) = (rig.put(&fused), rig.room(m * q_local * head_dim * 4));
            rig.launch(KvWrite { qkv, paging, m, q_heads: q_local });
            let (q_heads, scale, window, sinks) = (q_local, 0.35, None, None);
            rig.launch(PagedAttention { qkv, paging, y, m, q_heads, scale, window, sinks });
            rig.get(y, m * q_local * head_dim)
        });
        let width = q_local * head_dim;
        (0..m)
            .flat_map(|row| {
                shards.iter().flat_map(move |y| bits(&y[row * width..(row + 1) * width]))
            })
            .collect()
    };
    let one = on(1);
    for tp in [2, 4] {
        assert_eq!(on(tp), one, "tp {tp}");
    }
}

/// One expert layer, its width cut into `tp` ranks and its experts into `ep`.
fn expert_layer(
    rig: &mut Rig,
    (tp, ep): (usize, usize),
    w13: &[bf16],
    w2: &[bf16],
    (expert_rank, map): (usize, &[i32]),
) -> Vec<f32> {
    const EXPERTS: usize = 6;
    const HIDDEN: usize = 48;
    const INNER: usize = 64;
    let (m, top_k, local) = (2, 2, INNER / tp);
    let held = EXPERTS / ep;
    let own = |all: usize| expert_rank * all / ep..(expert_rank + 1) * all / ep;
    let (w13, w2) = (&w13[own(w13.len())], &w2[own(w2.len())]);
    let rank = rig.device.rank();
    let half = INNER * HIDDEN;
    let gate_up = w13
        .chunks_exact(half)
        .flat_map(|half| half[rank * local * HIDDEN..(rank + 1) * local * HIDDEN].iter().copied());
    let gate_up: Vec<bf16> = gate_up.collect();
    let w13: Vec<bf16> = gate_up
        .chunks_exact(2 * local * HIDDEN)
        .flat_map(|expert| packed(expert, HIDDEN))
        .collect();
    let down = columns(w2, INNER, rank * local, (rank + 1) * local);
    let w2: Vec<bf16> = down.chunks_exact(HIDDEN * local).flat_map(|e| packed(e, local)).collect();
    let (w13, w2) = (rig.put(&w13), rig.put(&w2));
    let (x, ids) = (rig.put(&values(8, m * HIDDEN)), rig.put(&[5i32, 1, 0, 5]));
    let (chosen, map) = (ids, rig.put(map));
    let places = rig.room(m * top_k * 4);
    rig.launch(LocalExperts { ids, map, places, m, top_k, experts: EXPERTS });
    let ids = places;
    let weights = rig.put(&[0.6f32, 0.3, 0.5, 0.2]);
    let pairs = m * top_k;
    let (a, b) = (rig.room(pairs * 2 * local * 4), rig.room(pairs * local * 4));
    let (c, fed) = (rig.room(pairs * HIDDEN * 4), rig.room(m * HIDDEN * 4));
    let experts = held;
    let stage = ExpertStage::GateUp;
    let (k, n) = (HIDDEN, 2 * local);
    let (w, y, blocks, order) = (w13, a, 8, ExpertOrder::OutputsFirst);
    rig.launch(ExpertLinear { stage, x, ids, w, order, y, m, top_k, experts, k, n, blocks });
    rig.launch(GatedMul { activation: Activation::Silu, gate_up: a, y: b, m: pairs, width: local });
    let stage = ExpertStage::Down;
    let (k, n, blocks) = (local, HIDDEN, 8 / tp);
    let (x, w, y) = (b, w2, c);
    rig.launch(ExpertLinear { stage, x, ids, w, order, y, m, top_k, experts, k, n, blocks });
    rig.launch(AllReduce { y: c, m: pairs, width: HIDDEN });
    rig.launch(SelectExperts { places, y: c, m, top_k, width: HIDDEN });
    rig.launch(MoeCombine { x: c, ids: chosen, weights, y: fed, m, top_k, hidden: HIDDEN });
    rig.get(fed, m * HIDDEN)
}

#[test]
fn experts_agree() {
    let (w13, w2) = (weights(6, 6 * 2 * 64 * 48), weights(7, 6 * 48 * 64));
    let here: Vec<i32> = (0..6).collect();
    let on =
        |tp: usize| agreed(on_ranks(tp, |rig| expert_layer(rig, (tp, 1), &w13, &w2, (0, &here))));
    let one = on(1);
    for tp in [2, 4] {
        assert_eq!(on(tp), one, "tp {tp}");
    }
    for (tp, ep) in [(1, 2), (1, 3), (2, 3)] {
        let topology = Topology { tp: tp as u32, pp: 1, ep: ep as u32, dp: 1 };
        let groups = Groups::of(topology);
        let spread = with_groups(groups, |rig| {
            let rank = rig.device.groups().experts.rank();
            let first = (rank * 6 / ep) as i32;
            let held = first..first + 6 / ep as i32;
            let place = |id: i32| if held.contains(&id) { id - first } else { -1 };
            let map: Vec<i32> = (0..6).map(place).collect();
            expert_layer(rig, (tp, ep), &w13, &w2, (rank, &map))
        });
        assert_eq!(agreed(spread), one, "tp {tp}, ep {ep}");
    }
}

#[test]
fn rows_go_from_stage_to_stage() {
    let (m, width) = (2, 3);
    let groups = Groups::of(Topology { tp: 1, pp: 3, ep: 1, dp: 1 });
    let results = with_groups(groups, |rig| {
        let y = rig.put(&values(9, m * width));
        let (first, last) = {
            let groups = rig.device.groups();
            (groups.previous.is_none(), groups.next.is_none())
        };
        if !first {
            let lost = rig.put(&[f32::NAN; 6]);
            rig.launch(StageReceive { y: lost, m, width });
            rig.launch(Add { a: y, b: lost, y, m, width });
        }
        if !last {
            rig.launch(StageSend { x: y, m, width });
        }
        rig.get(y, m * width)
    });
    let own = values(9, m * width);
    let times = |n: f32| own.iter().map(|value| value * n).collect::<Vec<f32>>();
    assert_eq!(results, [times(1.0), times(2.0), times(3.0)]);
}

#[test]
fn a_stage_without_a_neighbour_neither_sends_nor_receives() {
    let mut rig = Rig::single();
    let y = rig.put(&[1.0f32; 4]);
    let sent = rig.try_launch(StageSend { x: y, m: 1, width: 4 });
    assert!(matches!(sent, Err(DeviceError::Assert { kernel: "stage_send", .. })));
    let mut rig = Rig::single();
    let received = rig.try_launch(StageReceive { y, m: 1, width: 4 });
    assert!(matches!(received, Err(DeviceError::Assert { kernel: "stage_receive", .. })));
}

#[test]
fn an_expert_that_no_rank_has_gives_zeros_and_the_first_of_several_counts() {
    let groups = Groups::of(Topology { tp: 1, pp: 1, ep: 2, dp: 1 });
    let results = with_groups(groups, |rig| {
        let rank = rig.device.groups().experts.rank();
        let places = rig.put(&[[0i32, -1, 1], [2, -1, -1]][rank]);
        let y = rig.put(&[rank as f32 + 1.0; 3]);
        rig.launch(SelectExperts { places, y, m: 1, top_k: 3, width: 1 });
        rig.get(y, 3)
    });
    assert_eq!(results, [vec![1.0, 0.0, 1.0], vec![1.0, 0.0, 1.0]]);
}

#[test]
fn a_rank_that_dies_ends_the_others() {
    let results = on_ranks(2, |rig| {
        let y = rig.put(&[1.0f32; 4]);
        let y = if rig.device.rank() == 1 { Address(4) } else { y };
        rig.try_launch(AllReduce { y, m: 1, width: 4 }).unwrap_err()
    });
    assert!(matches!(&results[0], DeviceError::Collective { kernel: "all_reduce", .. }));
    let illegal = DeviceError::IllegalAccess { kernel: "all_reduce", address: Address(4) };
    assert_eq!(results[1], illegal);
}
