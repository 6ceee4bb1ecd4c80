//! Binary floats by their parameters: one codec for all widths.

use coldproof_contract::words::Dtype;

/// A float format. Magnitudes, read as integers, are ordered as their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of the fraction.
    pub(crate) mantissa: u32,
    /// Exponent of 1.0.
    pub(crate) bias: u64,
    /// The sign bit, or 0 in a format without signs.
    pub(crate) sign: u64,
    /// The largest finite magnitude; what lies above is an infinity or no number.
    pub(crate) largest: u64,
}

impl Format {
    /// The format of a float dtype.
    pub(crate) const fn of(dtype: Dtype) -> Option<Self> {
        let (mantissa, bias, sign, largest) = match dtype {
            Dtype::F8E4M3 => (3, 7, 0x80, 0x7e),
            Dtype::F8E5M2 => (2, 15, 0x80, 0x7b),
            Dtype::F8E8M0 => (0, 127, 0, 0xfe),
            Dtype::F16 => (10, 15, 0x8000, 0x7bff),
            Dtype::Bf16 => (7, 127, 0x8000, 0x7f7f),
            Dtype::F32 => (23, 127, 0x8000_0000, 0x7f7f_ffff),
            Dtype::F64 => (52, 1023, 1 << 63, 0x7fef_ffff_ffff_ffff),
            _ => return None,
        };
        Some(Self { mantissa, bias, sign, largest })
    }

    pub(crate) const fn magnitude(self, bits: u64) -> u64 {
        bits & !self.sign
    }

    pub(crate) const fn is_finite(self, bits: u64) -> bool {
        self.magnitude(bits) <= self.largest
    }

    /// Whether two patterns are one value: zero has two.
    pub(crate) const fn same_value(self, a: u64, b: u64) -> bool {
        // Without signs the pattern 0 is a power of two and stands for itself.
        a == b || (self.magnitude(a) == 0 && self.magnitude(b) == 0)
    }

    /// The pattern of the integer `value`, which the format must hold exactly.
    pub(crate) const fn integer(self, value: u64) -> u64 {
        if value == 0 {
            return 0;
        }
        let exponent = value.ilog2();
        let fraction = (value ^ (1 << exponent)) << self.mantissa >> exponent;
        ((exponent as u64 + self.bias) << self.mantissa) | fraction
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_exact() {
        for value in 0..=255_u64 {
            let float = value as f32;
            let pattern = |dtype| Format::of(dtype).unwrap().integer(value);
            assert_eq!(pattern(Dtype::F32), u64::from(float.to_bits()));
            assert_eq!(pattern(Dtype::F64), f64::from(float).to_bits());
            assert_eq!(pattern(Dtype::F16), u64::from(half::f16::from_f32(float).to_bits()));
            assert_eq!(pattern(Dtype::Bf16), u64::from(half::bf16::from_f32(float).to_bits()));
        }
        // OCP FP8: 1 is 0x38 in E4M3 and 0x3c in E5M2; 15 is 0x57; 7 is 0x47.
        assert_eq!(Format::of(Dtype::F8E4M3).unwrap().integer(1), 0x38);
        assert_eq!(Format::of(Dtype::F8E4M3).unwrap().integer(15), 0x57);
        assert_eq!(Format::of(Dtype::F8E5M2).unwrap().integer(1), 0x3c);
        assert_eq!(Format::of(Dtype::F8E5M2).unwrap().integer(7), 0x47);
    }

    #[test]
    fn the_largest_finite_is_that_of_the_format() {
        let largest = |dtype| Format::of(dtype).unwrap().largest;
        assert_eq!(largest(Dtype::F32), u64::from(f32::MAX.to_bits()));
        assert_eq!(largest(Dtype::F64), f64::MAX.to_bits());
        assert_eq!(largest(Dtype::F16), u64::from(half::f16::MAX.to_bits()));
        assert_eq!(largest(Dtype::Bf16), u64::from(half::bf16::MAX.to_bits()));
    }
}
