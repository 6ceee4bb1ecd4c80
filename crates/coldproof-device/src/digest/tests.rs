//! The twin of the kernel equals the contract's digest, over any layout.

use coldproof_contract::digest::{SourceKey, digest_whole};
use coldproof_contract::words::{Address, Dtype};
use proptest::prelude::*;

use super::twin::{Memory, digests};
use super::{Table, TensorView};

/// Elements of a view in row-major order.
fn logical(view: &TensorView, memory: Memory<'_>) -> Vec<u8> {
    let element = view.dtype.bytes() as i64;
    let mut out = Vec::new();
    let mut at = vec![0_u64; view.shape.len()];
    for _ in 0..view.shape.iter().product() {
        let steps = at.iter().zip(&view.stride).map(|(i, stride)| *i as i64 * stride).sum::<i64>();
        let offset = view.address.0 as i64 + steps * element - memory.address.0 as i64;
        out.extend_from_slice(&memory.bytes[offset as usize..(offset + element) as usize]);
        for axis in (0..at.len()).rev() {
            at[axis] += 1;
            if at[axis] < view.shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
    out
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

fn agree(views: &[TensorView], memory: Memory<'_>, tile_blocks: u64) {
    let mut table = Table::new(tile_blocks);
    for (index, view) in views.iter().enumerate() {
        table.push(&format!("t{index}"), view).unwrap();
    }
    let found = digests(&table, memory);
    for (index, view) in views.iter().enumerate() {
        let key = SourceKey::new(&format!("t{index}"), view.dtype, &view.shape).unwrap();
        let expected = digest_whole(&key, &logical(view, memory)).unwrap();
        assert_eq!(found[index], expected, "{view:?} in tiles of {tile_blocks}");
    }
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(vec![Dtype::U8, Dtype::Bf16, Dtype::F32, Dtype::F64])
}

/// A view into 128 KiB: sizes, a permutation of the axes, gaps, an offset, expanded axes.
fn view() -> impl Strategy<Value = TensorView> {
    let shape = prop_oneof![
        prop::collection::vec(0_u64..6, 0..5),
        (1_u64..40, 1_u64..70).prop_map(|(rows, columns)| vec![rows, columns]),
        (0_u64..3000).prop_map(|length| vec![length]),
    ];
    (dtype(), shape, any::<u64>(), 0_u64..9, 0_i64..3).prop_map(
        |(dtype, shape, order, offset, gap)| {
            let mut stride = vec![0_i64; shape.len()];
            let mut axes: Vec<usize> = (0..shape.len()).collect();
            if order % 3 == 0 {
                let turn = (order / 3) as usize % axes.len().max(1);
                axes.rotate_left(turn);
            }
            let mut step = if order % 5 == 0 { 1 + gap } else { 1 };
            for axis in axes.into_iter().rev() {
                stride[axis] = if order % 7 == 0 && axis == 0 { 0 } else { step };
                step *= shape[axis].max(1) as i64;
                step += if order % 2 == 0 { gap } else { 0 };
            }
            let address = Address(0x7000_0000 + offset * dtype.bytes());
            TensorView { address, dtype, shape, stride }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_twin_equals_the_digest(
        views in prop::collection::vec(view(), 1..4), seed in any::<u64>(), tile in 1_u64..80,
    ) {
        let bytes = noise(1 << 17, seed);
        agree(&views, Memory { address: Address(0x7000_0000), bytes: &bytes }, tile);
    }
}

#[test]
fn contiguous_tensors_of_odd_sizes_and_places() {
    let bytes = noise(1 << 16, 7);
    let memory = Memory { address: Address(0x10_0000), bytes: &bytes };
    let views: Vec<TensorView> = [0, 1, 2, 7, 8, 16, 31]
        .into_iter()
        .flat_map(|offset| {
            [1, 15, 31, 32, 33, 63, 64, 1000, 4096, 32_768, 40_001].map(|length| {
                TensorView::contiguous(Address(0x10_0000 + offset), Dtype::U8, &[length])
            })
        })
        .collect();
    agree(&views, memory, 1024);
    agree(&views, memory, 37);
}

#[test]
fn a_transposed_weight_is_taken_by_columns() {
    let bytes = noise(1 << 16, 9);
    let memory = Memory { address: Address(0x10_0000), bytes: &bytes };
    let view = TensorView {
        address: memory.address,
        dtype: Dtype::Bf16,
        shape: vec![96, 130],
        stride: vec![1, 96],
    };
    let mut table = Table::default();
    table.push("t", &view).unwrap();
    assert_eq!(table.layouts[0].by_column, 1);
    agree(&[view], memory, 1024);
}

#[test]
fn a_changed_byte_changes_its_tensor_alone() {
    let mut bytes = noise(4096, 3);
    let view = |start: u64| TensorView::contiguous(Address(0x1000 + start), Dtype::Bf16, &[8, 64]);
    let mut table = Table::default();
    table.push("a", &view(0)).unwrap();
    table.push("b", &view(1024)).unwrap();
    let before = digests(&table, Memory { address: Address(0x1000), bytes: &bytes });
    bytes[1500] ^= 1;
    let after = digests(&table, Memory { address: Address(0x1000), bytes: &bytes });
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
}

#[test]
fn an_empty_tensor_may_have_any_extents() {
    let memory = Memory { address: Address(0x1000), bytes: &[] };
    for shape in [vec![0, 1 << 40, 1 << 40], vec![1 << 40, 1 << 40, 0], vec![1 << 60, 3, 0, 5]] {
        let key = SourceKey::new("t", Dtype::F32, &shape).unwrap();
        let stride = vec![i64::MAX; shape.len()];
        let view = TensorView { address: memory.address, dtype: Dtype::F32, shape, stride };
        let mut table = Table::default();
        table.push("t", &view).unwrap();
        assert_eq!(digests(&table, memory), [digest_whole(&key, &[]).unwrap()]);
        assert_eq!(table.spans()[0].bytes, 0);
    }
}

#[test]
fn what_cannot_be_read_in_place_is_refused() {
    let mut table = Table::default();
    let mut view = TensorView::contiguous(Address(0x1000), Dtype::F32, &[4, 4]);
    view.stride.pop();
    let text = table.push("a", &view).unwrap_err().to_string();
    assert_eq!(text, "`a` has 2 axes and 1 strides; pass one stride an axis");
    let view = TensorView {
        address: Address(0x1002),
        dtype: Dtype::F32,
        shape: vec![4, 4],
        stride: vec![1, 4],
    };
    assert!(table.push("b", &view).unwrap_err().to_string().contains("does not lie on 4 bytes"));
    let view = TensorView {
        address: Address(0x1000),
        dtype: Dtype::U8,
        shape: vec![2; 9],
        stride: (0..9).map(|axis| 3_i64.pow(9 - axis)).collect(),
    };
    assert!(table.push("c", &view).unwrap_err().to_string().contains("8 separate axes"));
    assert!(table.is_empty());
}
