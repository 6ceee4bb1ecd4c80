//! The mixer: one block, its position and the source's key give 128 bits.
//!
//! Two lanes of 64 bits that share nothing but the input, each two levels of multiply-and-fold (the
//! construction of wyhash). Integer operations only, no table, so that a device kernel computes the
//! same bits.

/// Words of key material: six a lane.
pub(super) const KEY_WORDS: usize = 12;

/// Spreads the index of a block over the word, for lane 0 (2^64 divided by the golden ratio, odd).
const SPREAD_0: u64 = 0x9e37_79b9_7f4a_7c15;
/// The same for lane 1 (2^64 divided by the square root of 3, odd).
const SPREAD_1: u64 = 0x93cd_3a2c_8198_e269;

const BLOCK: usize = super::BLOCK_BYTES as usize;
/// A cache line: two blocks.
const LINE: usize = 2 * BLOCK;
/// How many lines are asked for together, while as many are mixed.
const LINES_TOGETHER: usize = 8;
/// How many lines ahead of the mixer these are.
const LINES_AHEAD: usize = 32;

/// The two halves of the 128-bit product, combined.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// The contribution of one block. Lane 0 is the low half.
#[inline(always)]
pub(super) fn mix(key: &[u64; KEY_WORDS], index: u64, words: [u64; 4]) -> u128 {
    let [a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5] = *key;
    let [w0, w1, w2, w3] = words;
    let p = index.wrapping_mul(SPREAD_0);
    let low = fold(
        fold(w0 ^ a0.wrapping_add(p), w1 ^ a1) ^ a4,
        fold(w2 ^ a2.wrapping_add(p), w3 ^ a3) ^ a5,
    );
    let q = index.wrapping_mul(SPREAD_1);
    let high = fold(
        fold(w0 ^ b0, w2 ^ b1.wrapping_add(q)) ^ b4,
        fold(w1 ^ b2, w3 ^ b3.wrapping_add(q)) ^ b5,
    );
    (u128::from(high) << 64) | u128::from(low)
}

/// The four little-endian words of a full block.
#[inline(always)]
fn words(block: &[u8; BLOCK]) -> [u64; 4] {
    let (words, _) = block.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

/// Asks for a line without waiting for it: a block takes so many instructions that the mixer alone
/// keeps only a few lines on their way.
#[inline(always)]
fn ask_for(line: &[u8; LINE]) {
    #[cfg(target_arch = "x86_64")]
    safe_arch::prefetch_t0(line);
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(line[0]);
}

/// The sum over consecutive blocks, the first of which has this index. A short last block is padded
/// with zero bytes: the key binds the shape, so its length is no secret.
///
/// Both halves are mixed in turns of a few lines: a processor fetches two runs of lines faster than
/// one, and the loop over blocks has no instruction but the mixer's.
pub(super) fn sum(key: &[u64; KEY_WORDS], first: u64, bytes: &[u8]) -> u128 {
    let (lines, _) = bytes.as_chunks::<LINE>();
    let half = lines.len() / 2;
    let mut total = 0_u128;
    for at in (0..half).step_by(LINES_TOGETHER) {
        let many = LINES_TOGETHER.min(half - at);
        for at in [at, half + at] {
            let ahead = at + LINES_AHEAD;
            lines.get(ahead..ahead + many).unwrap_or_default().iter().for_each(ask_for);
            let (blocks, _) = lines[at..at + many].as_flattened().as_chunks();
            let mut index = first.wrapping_add(2 * at as u64);
            for block in blocks {
                total = total.wrapping_add(mix(key, index, words(block)));
                index = index.wrapping_add(1);
            }
        }
    }
    let done = 4 * half;
    for (i, rest) in bytes[done * BLOCK..].chunks(BLOCK).enumerate() {
        let mut block = [0; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        let index = first.wrapping_add((done + i) as u64);
        total = total.wrapping_add(mix(key, index, words(&block)));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight million pairs would collide at random in 2^-82: any collision is a defect.
    #[test]
    fn single_bits_and_neighbours_never_collide_in_either_lane() {
        let key: [u64; KEY_WORDS] =
            std::array::from_fn(|i| (i as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93));
        let mut low = Vec::new();
        let mut high = Vec::new();
        for index in 0..16 {
            let mut inputs = vec![[0_u64; 4]];
            for bit in 0..256 {
                let mut words = [0_u64; 4];
                words[bit / 64] = 1 << (bit % 64);
                inputs.push(words);
            }
            for words in inputs {
                let value = mix(&key, index, words);
                low.push(value as u64);
                high.push((value >> 64) as u64);
            }
        }
        for lane in [&mut low, &mut high] {
            let count = lane.len();
            lane.sort_unstable();
            lane.dedup();
            assert_eq!(lane.len(), count);
        }
    }

    /// Each input bit flips about half of the output bits, in each lane.
    #[test]
    fn a_flipped_bit_flips_about_half_of_each_lane() {
        let key: [u64; KEY_WORDS] =
            std::array::from_fn(|i| (i as u64 + 5).wrapping_mul(0x2545_f491_4f6c_dd1d));
        let base = [0x3f80_3f81_3e12_bd00, 0, u64::MAX, 0x0102_0304_0506_0708];
        for bit in 0..256 {
            let (mut low, mut high) = (0, 0);
            for index in 0..64 {
                let mut changed = base;
                changed[bit / 64] ^= 1 << (bit % 64);
                let difference = mix(&key, index, base) ^ mix(&key, index, changed);
                low += (difference as u64).count_ones();
                high += ((difference >> 64) as u64).count_ones();
            }
            // 4,096 fair coins: 2,048 with a standard deviation of 32.
            assert!((1800..=2296).contains(&low), "bit {bit}: {low}");
            assert!((1800..=2296).contains(&high), "bit {bit}: {high}");
        }
    }
}
