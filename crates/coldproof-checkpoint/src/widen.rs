//! A checkpoint's content in a wider element type, as a trainer holds it.

use camino::Utf8Path;
use coldproof_contract::words::Dtype;
use half::{bf16, f16};

use crate::container::{Checkpoint, Layout, TensorSpec, write_checkpoint};
use crate::error::CheckpointError;

/// Writes `from` with each tensor of BF16 or F16 as F32, every value as it is; others are copied.
/// `out` must not exist or be empty.
///
/// # Errors
/// A file that cannot be read or written, or a `from` that changed meanwhile.
pub fn widen(from: &Checkpoint, out: &Utf8Path) -> Result<(), CheckpointError> {
    let specs = from.tensors().values().map(|tensor| TensorSpec {
        dtype: if is_narrow(tensor.dtype) { Dtype::F32 } else { tensor.dtype },
        ..TensorSpec::from(tensor)
    });
    let sources = from.tensors();
    write_checkpoint(out, &Layout::single(specs.collect()), |spec| {
        let Some(tensor) = sources.get(&spec.name) else { return Ok(Vec::new()) };
        let bytes = tensor.read()?;
        Ok(match tensor.dtype {
            Dtype::Bf16 => widened(&bytes, |bits| bf16::from_bits(bits).to_f32()),
            Dtype::F16 => widened(&bytes, |bits| f16::from_bits(bits).to_f32()),
            _ => bytes,
        })
    })?;
    from.verify_unchanged()
}

const fn is_narrow(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Bf16 | Dtype::F16)
}

fn widened(bytes: &[u8], value: impl Fn(u16) -> f32) -> Vec<u8> {
    let (elements, _) = bytes.as_chunks::<2>();
    elements.iter().flat_map(|bits| value(u16::from_le_bytes(*bits)).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_stays_and_only_halves_are_widened() {
        let scratch = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(scratch.path()).unwrap();
        let (narrow, wide) = (root.join("narrow"), root.join("wide"));
        let spec = |name: &str, dtype| TensorSpec { name: name.to_owned(), dtype, shape: vec![2] };
        let specs = vec![
            spec("bf16", Dtype::Bf16),
            spec("f16", Dtype::F16),
            spec("f32", Dtype::F32),
            spec("i64", Dtype::I64),
        ];
        let (one, minus_zero) = (1.5_f32, -0.0_f32);
        write_checkpoint(&narrow, &Layout::single(specs), |spec| {
            Ok(match spec.dtype {
                Dtype::Bf16 => [one, minus_zero]
                    .iter()
                    .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
                    .collect(),
                Dtype::F16 => {
                    [one, minus_zero].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
                }
                Dtype::F32 => [one, minus_zero].iter().flat_map(|v| v.to_le_bytes()).collect(),
                _ => [7_i64, 8].iter().flat_map(|v| v.to_le_bytes()).collect(),
            })
        })
        .unwrap();
        std::fs::write(narrow.join("config.json"), "{}").unwrap();
        widen(&Checkpoint::open(&narrow).unwrap(), &wide).unwrap();
        let read = Checkpoint::open(&wide).unwrap();
        let floats: Vec<u8> = [one, minus_zero].iter().flat_map(|v| v.to_le_bytes()).collect();
        for name in ["bf16", "f16", "f32"] {
            let tensor = read.get(name).unwrap();
            assert_eq!(tensor.dtype, Dtype::F32, "{name}");
            assert_eq!(tensor.read().unwrap(), floats, "{name}");
        }
        assert_eq!(read.get("i64").unwrap().dtype, Dtype::I64);
    }
}
