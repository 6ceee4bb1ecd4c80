//! Digests of sources whose zeros have lost their sign, as a weight that is read by its own
//! multiplication has.

use std::collections::BTreeMap;

use coldproof_contract::digest::{SourceKey, digest_range};
use coldproof_contract::words::{Dtype, Hex128};

use crate::container::{Checkpoint, TensorRef};
use crate::error::CheckpointError;

/// Bytes of one read.
const READ_BYTES: u64 = 256 << 10;

/// The digest (R61) that each source with a negative zero would have if all its zeros were
/// positive, by name.
///
/// # Errors
/// A file that cannot be read, or that changed meanwhile.
pub fn unsigned_digests(
    checkpoint: &Checkpoint,
) -> Result<BTreeMap<String, Hex128>, CheckpointError> {
    let mut digests = BTreeMap::new();
    for tensor in checkpoint.in_file_order() {
        if let Some(zero) = negative_zero(tensor.dtype)
            && let Some(digest) = unsigned(tensor, zero)?
        {
            digests.insert(tensor.name.clone(), digest);
        }
    }
    checkpoint.verify_unchanged()?;
    Ok(digests)
}

/// The bytes of a negative zero, where a multiplication takes the type.
const fn negative_zero(dtype: Dtype) -> Option<&'static [u8]> {
    match dtype {
        Dtype::F16 | Dtype::Bf16 => Some(&[0, 0x80]),
        Dtype::F32 => Some(&[0, 0, 0, 0x80]),
        Dtype::F64 => Some(&[0, 0, 0, 0, 0, 0, 0, 0x80]),
        _ => None,
    }
}

fn unsigned(tensor: &TensorRef, zero: &[u8]) -> Result<Option<Hex128>, CheckpointError> {
    let key = SourceKey::new(&tensor.name, tensor.dtype, &tensor.shape)
        .map_err(|error| CheckpointError::key(&tensor.file, error))?;
    let reader = tensor.open()?;
    let mut buffer = vec![0; READ_BYTES as usize];
    let (mut total, mut start, mut found) = (0_u128, 0, false);
    while start < tensor.bytes {
        let end = key.block_start(start.saturating_add(READ_BYTES)).min(tensor.bytes);
        // At most the buffer's length, since a block start is never beyond what was asked for.
        let bytes = &mut buffer[..(end - start) as usize];
        reader.read_range(start, bytes)?;
        // A block begins and ends between elements.
        for element in bytes.chunks_exact_mut(zero.len()).filter(|element| *element == zero) {
            element.fill(0);
            found = true;
        }
        let sum = digest_range(&key, start, bytes).map_err(|error| {
            CheckpointError::io(&tensor.file, "digest it", std::io::Error::other(error))
        })?;
        total = total.wrapping_add(sum.0);
        start = end;
    }
    Ok(found.then_some(Hex128(total)))
}
