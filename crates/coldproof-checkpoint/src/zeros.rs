//! Zeros that lose their sign, as those of a weight that is read by its own multiplication do.

use coldproof_contract::words::Dtype;

/// The bytes of a negative zero, where a multiplication takes the type.
pub(crate) const fn negative_zero(dtype: Dtype) -> Option<&'static [u8]> {
    match dtype {
        Dtype::F16 | Dtype::Bf16 => Some(&[0, 0x80]),
        Dtype::F32 => Some(&[0, 0, 0, 0x80]),
        Dtype::F64 => Some(&[0, 0, 0, 0, 0, 0, 0, 0x80]),
        _ => None,
    }
}

/// Makes each element that is `zero` a positive one; whether there was any.
pub(crate) fn made_positive(elements: &mut [u8], zero: &[u8]) -> bool {
    let mut found = false;
    for element in elements.chunks_exact_mut(zero.len()).filter(|element| *element == zero) {
        element.fill(0);
        found = true;
    }
    found
}
