//! The kernel on the host: the same tiles, threads, units and sums, over memory that is handed in.
//!
//! It shares the records with the kernel and nothing with the contract's digest, so that equality
//! of the two shows that the records and the partition are right, without a device.

use coldproof_contract::words::{Address, Hex128};

use super::record::{LayoutRecord, TensorRecord};
use super::table::Table;

const SPREAD_LOW: u64 = 0x9e37_79b9_7f4a_7c15;
const SPREAD_HIGH: u64 = 0x93cd_3a2c_8198_e269;
const WARP: u64 = 32;

/// Device memory as the host has it: bytes from one address on.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'m> {
    /// The address of the first byte.
    pub address: Address,
    /// The bytes.
    pub bytes: &'m [u8],
}

impl Memory<'_> {
    /// One load of the kernel, which must lie on its size: a device faults elsewhere.
    fn load(self, address: u64, unit: u64) -> u64 {
        assert!(address.is_multiple_of(unit), "{address:#x} does not lie on {unit} bytes");
        let start = usize::try_from(address - self.address.0).unwrap_or(usize::MAX);
        let bytes = &self.bytes[start..start + unit as usize];
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn block(self, address: u64, inner: u64, bytes: u64, unit: u64) -> [u64; 4] {
        if unit == 16 {
            assert!(address.is_multiple_of(16), "{address:#x} does not lie on 16 bytes");
            return std::array::from_fn(|word| self.load(address + 8 * word as u64, 8));
        }
        std::array::from_fn(|word| {
            let places = (0..8).step_by(unit as usize).map(|byte| (byte, word as u64 * 8 + byte));
            places.filter(|(_, at)| *at < bytes).fold(0, |value, (byte, at)| {
                let from = address.wrapping_add((at / unit).wrapping_mul(inner));
                value | self.load(from, unit) << (8 * byte)
            })
        })
    }
}

/// Digests every tensor of a table as the kernel does.
///
/// # Panics
/// Where the kernel would fault: a load outside of `memory`, or one that does not lie on its size.
#[must_use]
pub fn digests(table: &Table, memory: Memory<'_>) -> Vec<Hex128> {
    let mut sums = vec![0_u128; table.len()];
    for tile in &table.tiles {
        let tensor = &table.tensors[tile.tensor as usize];
        let layout = &table.layouts[tensor.layout as usize];
        let first = u64::from(tile.ordinal) * table.tile_blocks;
        let end = tensor.blocks.min(first + table.tile_blocks);
        for lane in 0..WARP {
            let mut rest = first;
            let mut sum = 0_u128;
            if tensor.is_flat != 0 {
                rest = end.min(tensor.row_bytes / 32);
                sum = streamed(tensor, memory, first + lane, rest);
            }
            sum = sum.wrapping_add(scattered(tensor, layout, memory, rest + lane, end));
            sums[tile.tensor as usize] = sums[tile.tensor as usize].wrapping_add(sum);
        }
    }
    sums.into_iter().map(Hex128).collect()
}

fn streamed(tensor: &TensorRecord, memory: Memory<'_>, from: u64, end: u64) -> u128 {
    let blocks = (from..end).step_by(WARP as usize);
    blocks.fold(0, |sum, at| {
        let words = memory.block(tensor.base + at * 32, 16, 32, 16);
        sum.wrapping_add(mix(&tensor.key, at, words))
    })
}

fn scattered(
    tensor: &TensorRecord,
    layout: &LayoutRecord,
    memory: Memory<'_>,
    from: u64,
    end: u64,
) -> u128 {
    let blocks = (from..end).step_by(WARP as usize);
    blocks.fold(0, |sum, at| {
        let (row, block) = if layout.by_column == 0 {
            (at / tensor.row_blocks, at % tensor.row_blocks)
        } else {
            let rows = tensor.blocks / tensor.row_blocks;
            (at % rows, at / rows)
        };
        let mut address = tensor.base;
        let mut left = row;
        for axis in (0..layout.axes as usize).rev() {
            let coordinate = left % layout.extent[axis];
            left /= layout.extent[axis];
            address = address.wrapping_add(coordinate.wrapping_mul(layout.pitch[axis] as u64));
        }
        let bytes = (tensor.row_bytes - block * 32).min(32);
        let unit = u64::from(if bytes == 32 { tensor.unit } else { tensor.tail_unit });
        let inner = if layout.is_strided == 0 { unit } else { layout.inner as u64 };
        let start = address.wrapping_add((block * 32 / unit).wrapping_mul(inner));
        let words = memory.block(start, inner, bytes, unit);
        sum.wrapping_add(mix(&tensor.key, row * tensor.row_blocks + block, words))
    })
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

fn mix(k: &[u64; 12], index: u64, w: [u64; 4]) -> u128 {
    let (p, q) = (index.wrapping_mul(SPREAD_LOW), index.wrapping_mul(SPREAD_HIGH));
    let low = fold(
        fold(w[0] ^ k[0].wrapping_add(p), w[1] ^ k[1]) ^ k[4],
        fold(w[2] ^ k[2].wrapping_add(p), w[3] ^ k[3]) ^ k[5],
    );
    let high = fold(
        fold(w[0] ^ k[6], w[2] ^ k[7].wrapping_add(q)) ^ k[10],
        fold(w[1] ^ k[8], w[3] ^ k[9].wrapping_add(q)) ^ k[11],
    );
    u128::from(high) << 64 | u128::from(low)
}
