//! What a kernel says of its arguments is what it does with them.

use coldproof_checkpoint::arch::{Activation, EncoderActivation};
use coldproof_contract::evidence::ArgAccess;

use super::*;
use crate::kernels::{
    Activate, Add, AddBias, AllReduce, CausalConv, ClampedSwiglu, Columns, Copy, Embed,
    EncoderAttention, ExpertBias, ExpertLinear, ExpertOrder, ExpertPairs, ExpertStage, GatedMul,
    GatedNorm, Gather, GroupedTopK, HeadLinear, Join, KvFetch, KvWrite, LatentAttention,
    LatentDims, LatentRope, LatentWrite, LayerNorm, Linear, LinearPermuted, LocalExperts,
    LoraExpand, LoraShrink, MoeCombine, NormWeight, PagedAttention, Pages, Paging, Patches,
    RmsNorm, Rope, RouterTopK, Scale, SelectExperts, SelectRows, SliceNorm, SquaredRelu, StateScan,
    States, Tables, TowerRows,
};

/// A block that fills a segment of its own.
const BLOCK_BYTES: u64 = 1280 << 10;

const fn paging(cache: Address, tables: Address, positions: Address) -> Paging {
    let layout = Tables::PerRow;
    let (blocks, block_size, max_blocks) = (1, 4, 2);
    let (kv_heads, head_dim) = (1, 8);
    let pages = Pages { tables, positions, layout, blocks, block_size, max_blocks };
    Paging { cache, pages, kv_heads, head_dim }
}

/// Kernel number `index` over these addresses in the order of its arguments; all of its integer
/// inputs may be 0.
fn kernel(index: usize, a: &[Address]) -> Option<Kernel> {
    let (m, k, n) = (2, 16, 3);
    let (hidden, shard_rows, top_k, experts) = (16, 5, 2, 2);
    Some(match index {
        0 => Embed { ids: a[0], table: a[1], y: a[2], m, hidden, shard_rows }.into(),
        1 => SelectRows { ids: a[0], y: a[1], m, hidden, shard_rows }.into(),
        2 => {
            RmsNorm { x: a[0], weight: NormWeight::Bf16(a[1]), y: a[2], m, hidden, eps: 1.0 }.into()
        }
        3 => {
            RmsNorm { x: a[0], weight: NormWeight::F32(a[1]), y: a[2], m, hidden, eps: 1.0 }.into()
        }
        4 => Linear { x: a[0], w: a[1], y: a[2], m, k, n, blocks: 8 }.into(),
        5 => {
            let (permutation, workspace) = (a[2], a[3]);
            let (x, w, y) = (a[0], a[1], a[4]);
            LinearPermuted { x, w, permutation, workspace, y, m, k, n, blocks: 8 }.into()
        }
        6 => {
            let (q_norm, k_norm) = (Some(NormWeight::Bf16(a[3])), Some(NormWeight::LessOne(a[4])));
            let (q_heads, kv_heads, head_dim, max_positions) = (1, 1, 8, 1);
            let (qkv, positions, table, eps) = (a[0], a[1], a[2], 1.0);
            Rope {
                qkv,
                positions,
                table,
                q_norm,
                k_norm,
                m,
                q_heads,
                kv_heads,
                head_dim,
                max_positions,
                eps,
            }
            .into()
        }
        7 => KvWrite { qkv: a[0], paging: paging(a[1], a[2], a[3]), m, q_heads: 2 }.into(),
        8 => {
            let paging = paging(a[1], a[2], a[3]);
            let (qkv, y, sinks) = (a[0], a[4], Some(a[5]));
            let (q_heads, scale, window) = (2, 1.0, Some(1));
            PagedAttention { qkv, paging, y, m, q_heads, scale, window, sinks }.into()
        }
        9 => GatedMul { activation: Activation::Silu, gate_up: a[0], y: a[1], m, width: 5 }.into(),
        10 => Add { a: a[0], b: a[1], y: a[2], m, width: 5 }.into(),
        11 => Copy { source: a[0], target: a[1], bytes: 24, rows: m }.into(),
        12 => {
            let (logits, ids, weights) = (a[0], a[1], a[2]);
            RouterTopK { logits, ids, weights, m, experts: 4, top_k, renormalise: true }.into()
        }
        13 | 14 => {
            let stage = if index == 13 { ExpertStage::GateUp } else { ExpertStage::Down };
            let (x, ids, w, y) = (a[0], a[1], a[2], a[3]);
            let order = ExpertOrder::OutputsFirst;
            ExpertLinear { stage, x, ids, w, order, y, m, top_k, experts, k, n, blocks: 8 }.into()
        }
        15 => {
            let (x, ids, weights, y) = (a[0], a[1], a[2], a[3]);
            MoeCombine { x, ids, weights, y, m, top_k, hidden }.into()
        }
        16 => AllReduce { y: a[0], m, width: 5 }.into(),
        17 => Gather { x: a[0], y: a[1], m, shard: 5, total: 4 }.into(),
        18 => AddBias { y: a[0], bias: a[1], m, n: 6 }.into(),
        19 => GatedMul { activation: Activation::GeluTanh, gate_up: a[0], y: a[1], m, width: 5 }
            .into(),
        20 => Scale { y: a[0], factor: a[1], m, width: 5 }.into(),
        21 => {
            let weight = NormWeight::LessOne(a[1]);
            RmsNorm { x: a[0], weight, y: a[2], m, hidden, eps: 1.0 }.into()
        }
        22 => {
            let (stage, order) = (ExpertStage::GateUp, ExpertOrder::InputsFirst);
            let (x, ids, w, y) = (a[0], a[1], a[2], a[3]);
            ExpertLinear { stage, x, ids, w, order, y, m, top_k, experts, k, n, blocks: 8 }.into()
        }
        23 => ExpertBias { ids: a[0], bias: a[1], y: a[2], m, top_k, experts, n: 6 }.into(),
        24 => {
            let (gate_up, y) = (a[0], a[1]);
            ClampedSwiglu { gate_up, y, m, width: 5, alpha: 1.0, limit: 2.0 }.into()
        }
        25 => {
            let (ids, map, places) = (a[0], a[1], a[2]);
            LocalExperts { ids, map, places, m, top_k, experts }.into()
        }
        26 => SelectExperts { places: a[0], y: a[1], m, top_k, width: 5 }.into(),
        27 => Patches { pixels: a[0], y: a[1], channels: 2, size: 4, patch: 2 }.into(),
        28 => {
            let (patches, class, positions, y) = (a[0], a[1], a[2], a[3]);
            TowerRows { patches, class, positions, y, m, width: 6 }.into()
        }
        29 => {
            let (x, weight, bias, y) = (a[0], a[1], a[2], a[3]);
            LayerNorm { x, weight, bias, y, m, width: 6, eps: 1.0 }.into()
        }
        30 => {
            let (heads, head_dim, scale) = (2, 8, 1.0);
            EncoderAttention { qkv: a[0], y: a[1], m, heads, head_dim, scale }.into()
        }
        31 => Activate { activation: EncoderActivation::Gelu, y: a[0], m, width: 5 }.into(),
        _ => return latent_kernel(index, a),
    })
}

/// Those of latent attention and of a choice by groups.
fn latent_kernel(index: usize, a: &[Address]) -> Option<Kernel> {
    let (m, eps, width) = (2, 1.0, 8);
    let dims = LatentDims { heads: 2, nope: 3, rope: 2, rank: 6 };
    let keys = |base: Address| Columns { base, width: 9, first: 7 };
    Some(match index {
        32 => SliceNorm { x: a[0], weight: a[1], y: a[2], m, width, first: 2, n: 6, eps }.into(),
        33 => {
            let (q, keys, positions, table) = (a[0], keys(a[1]), a[2], a[3]);
            let (max_positions, interleaved) = (1, true);
            LatentRope { q, keys, positions, table, m, dims, max_positions, interleaved }.into()
        }
        34 => {
            let (latents, keys, paging) = (a[0], keys(a[1]), paging(a[2], a[3], a[4]));
            LatentWrite { latents, keys, paging, m, dims }.into()
        }
        35 => {
            let (absorbed, q, paging, y) = (a[0], a[1], paging(a[2], a[3], a[4]), a[5]);
            LatentAttention { absorbed, q, paging, y, m, dims, scale: 1.0 }.into()
        }
        36 => {
            let (x, w, y, heads, k, n) = (a[0], a[1], a[2], 2, 6, 4);
            HeadLinear { x, w, y, m, heads, width, k, n, blocks: 8 }.into()
        }
        37 => {
            let (logits, correction, ids, weights) = (a[0], a[1], a[2], a[3]);
            let (experts, top_k, groups, chosen) = (4, 2, 2, 1);
            let (renormalise, scale) = (true, 1.0);
            GroupedTopK {
                logits,
                correction,
                ids,
                weights,
                m,
                experts,
                top_k,
                groups,
                chosen,
                renormalise,
                scale,
            }
            .into()
        }
        _ => return lora_kernel(index, a),
    })
}

/// Those of adapters.
fn lora_kernel(index: usize, a: &[Address]) -> Option<Kernel> {
    let (m, k, n, top_k, experts) = (2, 16, 3, 2, 2);
    Some(match index {
        38..=40 => {
            let of = |stage| ExpertPairs { stage, ids: a[3], top_k, experts };
            let pairs = [None, Some(of(ExpertStage::GateUp)), Some(of(ExpertStage::Down))];
            let (x, t, pairs) = (a[0], a[2], pairs[index - 38]);
            LoraShrink { x, a: a[1], t, m, k, rank: 3, blocks: 8, pairs }.into()
        }
        41 | 42 => {
            let stage = ExpertStage::Down;
            let pairs = ExpertPairs { stage, ids: a[4], top_k, experts };
            let pairs = (index == 42).then_some(pairs);
            let (t, b, scale, y) = (a[0], a[1], a[2], a[3]);
            LoraExpand { t, b, scale, y, m, rank: 2, n, at: 1, width: 5, pairs }.into()
        }
        _ => return of_state_space(index, a),
    })
}

const fn states(a: &[Address], first: usize, width: usize) -> States {
    let (cache, tables, positions) = (a[first], a[first + 1], a[first + 2]);
    let layout = Tables::PerRow;
    let (blocks, block_size, max_blocks) = (1, 4, 2);
    let pages = Pages { tables, positions, layout, blocks, block_size, max_blocks };
    States { cache, pages, width }
}

/// Those of a state-space mixer.
fn of_state_space(index: usize, a: &[Address]) -> Option<Kernel> {
    let m = 2;
    Some(match index {
        43 => {
            let (x, weight, bias, y) = (a[0], a[1], Some(a[2]), a[6]);
            let (width, first, channels, taps) = (9, 2, 4, 3);
            let states = states(a, 3, 8);
            CausalConv { x, weight, bias, states, y, m, width, first, channels, taps }.into()
        }
        44 => {
            let (x, projected, rates, d, dt_bias, y) = (a[0], a[1], a[2], a[3], a[4], a[8]);
            let (width, heads, groups, head_dim, state_size) = (7, 2, 1, 2, 4);
            let (a, states) = (rates, states(a, 5, 16));
            StateScan {
                x,
                projected,
                a,
                d,
                dt_bias,
                states,
                y,
                m,
                width,
                heads,
                groups,
                head_dim,
                state_size,
            }
            .into()
        }
        45 => {
            let (x, gate, weight, y) = (a[0], a[1], a[2], a[3]);
            let (width, gate_width, groups, blocks, sharing, eps) = (6, 9, 2, 8, 1, 1.0);
            GatedNorm { x, gate, weight, y, m, width, gate_width, groups, blocks, sharing, eps }
                .into()
        }
        46 => SquaredRelu { y: a[0], m, width: 5 }.into(),
        47 => Join { a: a[0], b: a[1], y: a[2], m, width: 5 }.into(),
        48 => {
            let (bytes, spans) = (vec![0; 36].into(), vec![(a[0], 24), (a[1], 12)]);
            KvFetch { bytes, spans, rows: m }.into()
        }
        _ => return None,
    })
}

/// Arguments that a kernel reads at an index: with all indices 0 it does not reach their end.
fn is_indexed(kernel: &Kernel, arg: usize) -> bool {
    matches!(
        (kernel.name(), arg),
        ("kv_write" | "paged_attention" | "expert_bias" | "local_experts", 1)
            | ("moe_lora_shrink" | "moe_lora_expand", 1)
            | ("latent_write" | "latent_attention" | "moe_gate_up" | "moe_down", 2)
            | ("causal_conv", 3)
            | ("state_scan", 5)
    )
}

/// Kernel number `index` with each argument's extent at the end of a segment; argument
/// `shifted` reaches 4 bytes too far, into memory that nothing backs. Inputs are 0.
fn at_the_end(rig: &mut Rig, index: usize, shifted: Option<usize>) -> Option<Kernel> {
    let args = kernel(index, &[Address(0); 9])?.args();
    let mut addresses = [Address(0); 9];
    // Segments follow one another: only behind the last is nothing.
    let mut order: Vec<usize> = (0..args.len()).collect();
    order.sort_by_key(|&position| shifted == Some(position));
    for position in order {
        let arg = &args[position];
        let block = rig.room(BLOCK_BYTES as usize);
        let fill = if arg.access == ArgAccess::Write { 0x55 } else { 0 };
        rig.device.write(block, &vec![fill; BLOCK_BYTES as usize]).unwrap();
        let shift = if shifted == Some(position) { 4 } else { 0 };
        addresses[position] = block.plus(BLOCK_BYTES - arg.bytes + shift);
    }
    kernel(index, &addresses)
}

/// Bytes of the argument's block before the argument, then the argument's.
fn block(rig: &Rig, address: Address, bytes: u64) -> (Vec<u8>, Vec<u8>) {
    let start = address.0 + bytes - BLOCK_BYTES;
    let all = rig.device.read(Address(start), BLOCK_BYTES).unwrap();
    let (before, own) = all.split_at((BLOCK_BYTES - bytes) as usize);
    (before.to_vec(), own.to_vec())
}

#[test]
fn a_kernel_touches_its_extents_and_writes_only_what_it_says() {
    for index in 0.. {
        let mut rig = Rig::single();
        let Some(kernel) = at_the_end(&mut rig, index, None) else { break };
        rig.launch(kernel.clone());
        for (position, arg) in kernel.args().iter().enumerate() {
            let name = format!("{} argument {position}", kernel.name());
            let (before, own) = block(&rig, arg.address, arg.bytes);
            let fill = if arg.access == ArgAccess::Write { 0x55 } else { 0 };
            assert!(before.iter().all(|&byte| byte == fill), "{name} reaches before its extent");
            match arg.access {
                // A word of the fill is no result of any kernel over zeros.
                ArgAccess::Write => assert!(
                    own.chunks_exact(4).all(|word| word != [0x55; 4]),
                    "{name} is not written wholly"
                ),
                ArgAccess::Read => assert!(own.iter().all(|&b| b == 0), "{name} was written"),
                _ => {}
            }
        }
    }
}

#[test]
fn an_extent_that_is_not_backed_to_its_end_is_an_illegal_access() {
    for index in 0.. {
        let Some(sample) = kernel(index, &[Address(0); 9]) else { break };
        for position in 0..sample.args().len() {
            if is_indexed(&sample, position) {
                continue;
            }
            let mut rig = Rig::single();
            let kernel = at_the_end(&mut rig, index, Some(position)).unwrap();
            let arg = &kernel.args()[position];
            let address = Address(arg.address.0 + arg.bytes - 4);
            let name = kernel.name();
            let found = rig.try_launch(kernel);
            let expected = DeviceError::IllegalAccess { kernel: name, address };
            assert_eq!(found, Err(expected), "{name} argument {position}");
        }
    }
}
