//! Garbage: what memory holds before anybody writes to it.

/// What a fill writes. The word of an address depends on the address alone, so that a fill of two
/// halves equals a fill of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Seeded garbage: as I32 large and odd, as F32 and BF16 finite, of both signs, between 2^7 and
    /// 2^36; never zero and never NaN, so that a stale read gives wrong numbers, not loud ones.
    Garbage(u64),
    /// The same word everywhere.
    Word(u64),
}

impl Pattern {
    /// Fills `words`, the first of which lies at `address` (bytes).
    pub(super) fn fill(self, address: u64, words: &mut [u64]) {
        match self {
            Self::Word(word) => words.fill(word),
            Self::Garbage(seed) => {
                let first = address / 8;
                for (index, word) in (first..).zip(words) {
                    *word = garbage(mix(seed).wrapping_add(index));
                }
            }
        }
    }
}

/// SplitMix64's output function.
pub(super) const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Four bf16 values: random sign and mantissa (odd), exponent between 2^7 and 2^36.
const fn garbage(value: u64) -> u64 {
    const SIGN_AND_MANTISSA: u64 = 0x807f_807f_807f_807f;
    const LOWEST_EXPONENT: u64 = 0x4300_4300_4300_4300;
    const ODD: u64 = 0x0001_0001_0001_0001;
    let bits = mix(value);
    // Twice a sum of two random digits in the exponent field (from bit 7): 0 to 28 each, no carry.
    let exponent = ((bits >> 7) & 0x0007_0007_0007_0007) + ((bits >> 10) & 0x0007_0007_0007_0007);
    ((bits & SIGN_AND_MANTISSA) | ODD) + LOWEST_EXPONENT + (exponent << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_large_odd_and_finite_in_every_view() {
        let mut words = vec![0u64; 4096];
        Pattern::Garbage(7).fill(0x1000, &mut words);
        for &value in bytemuck::cast_slice::<u64, i32>(&words) {
            assert!(value % 2 != 0 && value.unsigned_abs() > 1 << 29, "{value}");
        }
        for &value in bytemuck::cast_slice::<u64, f32>(&words) {
            assert!((128.0..6.9e10).contains(&value.abs()), "{value}");
        }
        for &value in bytemuck::cast_slice::<u64, half::bf16>(&words) {
            assert!((128.0..6.9e10).contains(&value.to_f32().abs()), "{value}");
        }
    }

    #[test]
    fn two_halves_equal_the_whole_and_seeds_differ() {
        let (mut whole, mut halves, mut other) = ([0u64; 8], [0u64; 8], [0u64; 8]);
        Pattern::Garbage(1).fill(64, &mut whole);
        let (low, high) = halves.split_at_mut(4);
        Pattern::Garbage(1).fill(64, low);
        Pattern::Garbage(1).fill(96, high);
        Pattern::Garbage(2).fill(64, &mut other);
        assert_eq!(whole, halves);
        assert_ne!(whole, other);
    }
}
