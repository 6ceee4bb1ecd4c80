//! Elements as bit patterns, whatever their width.

use coldproof_contract::words::Dtype;

use super::Format;

/// The pattern of one element's bytes, little-endian.
pub(crate) fn load(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

/// Writes a pattern into one element's bytes.
pub(crate) fn store(bits: u64, into: &mut [u8]) {
    for (byte, from) in into.iter_mut().zip(bits.to_le_bytes()) {
        *byte = from;
    }
}

/// Calls `each` with the index and the pattern of every element, and stores what it gives.
pub(crate) fn for_each(dtype: Dtype, bytes: &mut [u8], mut each: impl FnMut(u64, u64) -> u64) {
    for (index, element) in (0_u64..).zip(bytes.chunks_exact_mut(dtype.bytes() as usize)) {
        store(each(index, load(element)), element);
    }
}

/// Patterns of other values close to this one, nearest first, in the preferred direction first
/// (away from zero, or up). Those of a float are finite. Bool has one, all others at least three.
pub(crate) fn neighbours(dtype: Dtype, bits: u64, away: bool) -> Vec<u64> {
    if dtype == Dtype::Bool {
        return vec![u64::from(bits == 0)];
    }
    let steps: [i64; 6] = if away { [1, -1, 2, -2, 3, -3] } else { [-1, 1, -2, 2, -3, 3] };
    let Some(format) = Format::of(dtype) else {
        let mask = u64::MAX >> (64 - 8 * dtype.bytes());
        return steps.iter().map(|&step| bits.wrapping_add_signed(step) & mask).collect();
    };
    let sign = bits & format.sign;
    if !format.is_finite(bits) {
        return (0..3).map(|below| sign | (format.largest - below)).collect();
    }
    let moved = |&step: &i64| {
        let magnitude = format.magnitude(bits).checked_add_signed(step)?;
        // Zero is met from both sides; without signs it is a value like any other.
        (magnitude <= format.largest).then_some(sign | magnitude)
    };
    steps.iter().filter_map(moved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Dtype; 15] = [
        Dtype::U8,
        Dtype::I8,
        Dtype::U16,
        Dtype::I16,
        Dtype::U32,
        Dtype::I32,
        Dtype::U64,
        Dtype::I64,
        Dtype::F8E4M3,
        Dtype::F8E5M2,
        Dtype::F8E8M0,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F32,
        Dtype::F64,
    ];

    #[test]
    fn every_pattern_has_three_other_finite_values_beside_it() {
        for dtype in ALL {
            let mask = u64::MAX >> (64 - 8 * dtype.bytes());
            let sample = (0..=u64::from(u16::MAX)).map(|i| i.wrapping_mul(0x0001_0001_0001_0001));
            for bits in sample.map(|bits| bits & mask) {
                for away in [true, false] {
                    let mut found = neighbours(dtype, bits, away);
                    let format = Format::of(dtype);
                    for &other in &found {
                        assert_ne!(other, bits, "{dtype} {bits:x}");
                        assert!(format.is_none_or(|f| f.is_finite(other)), "{dtype} {bits:x}");
                    }
                    found.sort_unstable();
                    found.dedup();
                    assert!(found.len() >= 3, "{dtype} {bits:x}: {found:x?}");
                }
            }
        }
    }

    #[test]
    fn bytes_and_patterns_round_trip() {
        let mut bytes = [0x34, 0x12];
        assert_eq!(load(&bytes), 0x1234);
        store(0xabcd, &mut bytes);
        assert_eq!(bytes, [0xcd, 0xab]);
        let mut many = [1, 0, 2, 0];
        for_each(Dtype::U16, &mut many, |index, bits| bits * 256 + index);
        assert_eq!(many, [0, 1, 1, 2]);
    }
}
