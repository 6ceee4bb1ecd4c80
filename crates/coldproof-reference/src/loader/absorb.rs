//! Absorbed matrices: what each head of `kv_b_proj` does to a latent, turned so that queries enter
//! the latent space and attended latents leave it.

use coldproof_checkpoint::arch::Mla;

/// Bytes of a BF16.
const ELEMENT: usize = 2;

/// Of `[heads * (nope + value), rank]`: the rows of keys as `[heads, nope, rank]`, and those of
/// values, transposed, as `[heads, rank, value]`. BF16, bit for bit.
pub(super) fn absorb(weight: &[u8], mla: &Mla) -> (Vec<u8>, Vec<u8>) {
    let row = mla.kv_lora_rank as usize * ELEMENT;
    let (nope, value) = (mla.nope_dim as usize, mla.value_dim as usize);
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for head in weight.chunks_exact(((nope + value) * row).max(1)) {
        let (key, own) = head.split_at(nope * row);
        keys.extend_from_slice(key);
        for column in (0..row).step_by(ELEMENT) {
            for of_value in own.chunks_exact(row) {
                values.extend_from_slice(&of_value[column..column + ELEMENT]);
            }
        }
    }
    (keys, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_rows_and_values_turn() {
        let mla = Mla {
            q_lora_rank: None,
            kv_lora_rank: 3,
            nope_dim: 1,
            rope_dim: 2,
            value_dim: 2,
            interleaved: true,
        };
        // Two heads of one key row and two value rows; element `n` is the word `n`.
        let weight: Vec<u8> = (0u16..18).flat_map(u16::to_le_bytes).collect();
        let (keys, values) = absorb(&weight, &mla);
        let words = |bytes: &[u8]| -> Vec<u16> {
            bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
        };
        assert_eq!(words(&keys), [0, 1, 2, 9, 10, 11]);
        assert_eq!(words(&values), [3, 6, 4, 7, 5, 8, 12, 15, 13, 16, 14, 17]);
    }
}
