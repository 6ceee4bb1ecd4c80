//! The factors of a LoRA adapter, read and written as PEFT does it.
//!
//! A module that computes `W x` computes `W x + scale · B (A x)` with it.

use std::collections::BTreeMap;

use camino::Utf8Path;
use coldproof_contract::words::{Dtype, Factor};
use half::bf16;

use crate::adapter::{Adapter, CONFIG};
use crate::arch::adapter_scale;
use crate::container::{Checkpoint, Layout, TensorRef, TensorSpec, read_small, write_checkpoint};
use crate::error::{CheckpointError, Fault};

/// What PEFT puts before a module's name.
const PREFIX: &str = "base_model.model.";
/// Both, in the order of a pair.
const FACTORS: [Factor; 2] = [Factor::A, Factor::B];

/// Both factors of one module, in the element type of the models.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// Columns of A: inputs of the module.
    pub inputs: u64,
    /// Rows of B: outputs of the module.
    pub outputs: u64,
    /// A, `[rank, inputs]`.
    pub a: Vec<bf16>,
    /// B, `[outputs, rank]`.
    pub b: Vec<bf16>,
}

impl Factors {
    /// Of a module of this shape (outputs, inputs), rounded to BF16.
    #[must_use]
    pub fn rounded((outputs, inputs): (u64, u64), a: &[f32], b: &[f32]) -> Self {
        let round = |values: &[f32]| values.iter().map(|&value| bf16::from_f32(value)).collect();
        Self { inputs, outputs, a: round(a), b: round(b) }
    }
}

/// An adapter with its factors.
#[derive(Clone, Debug)]
pub struct Lora {
    /// What it is.
    pub adapter: Adapter,
    /// The factor of `B (A x)`.
    pub scale: f32,
    /// Factors by the module's name in the base model.
    pub factors: BTreeMap<String, Factors>,
}

impl Lora {
    /// Reads the adapter in a folder. Factors of F32 are rounded to BF16, the models' own type.
    ///
    /// # Errors
    /// As [`Adapter::read`]; a configuration that changes the mathematics; a tensor that is no
    /// factor, has no counterpart or another rank, or is neither BF16 nor F32.
    pub fn read(folder: &Utf8Path) -> Result<Self, CheckpointError> {
        let weights = Checkpoint::open_adapter(folder)?;
        let path = folder.join(CONFIG);
        let (config, _) = read_small(&path)?;
        let adapter = Adapter::of(&weights, &path, &config)?;
        let scale = adapter_scale(&config)
            .map_err(|error| CheckpointError::file(&path, Fault::Config(error)))?;
        let mut pairs: BTreeMap<&str, [Option<&TensorRef>; 2]> = BTreeMap::new();
        for tensor in weights.tensors().values() {
            let (module, side) =
                factor_of(&tensor.name).ok_or_else(|| tensor.fault(Fault::NoFactor))?;
            pairs.entry(module).or_default()[side] = Some(tensor);
        }
        let mut factors = BTreeMap::new();
        for (module, [a, b]) in pairs {
            let (a, b) = match (a, b) {
                (Some(a), Some(b)) => (a, b),
                (Some(one), None) | (None, Some(one)) => return Err(one.fault(Fault::FactorAlone)),
                (None, None) => continue,
            };
            factors.insert(module.to_owned(), read_factors(a, b, adapter.rank)?);
        }
        weights.verify_unchanged()?;
        Ok(Self { adapter, scale: scale as f32, factors })
    }

    /// Writes an adapter of factors of BF16 into a folder, which must not exist or be empty.
    ///
    /// # Errors
    /// A folder that holds something, a file that cannot be written, factors of another rank.
    pub fn write(
        folder: &Utf8Path,
        (rank, alpha): (u64, f64),
        factors: &BTreeMap<String, Factors>,
    ) -> Result<(), CheckpointError> {
        let specs = factors.iter().flat_map(|(module, factors)| {
            let shapes = [vec![rank, factors.inputs], vec![factors.outputs, rank]];
            FACTORS.into_iter().zip(shapes).map(move |(factor, shape)| TensorSpec {
                name: factor_name(module, factor),
                dtype: Dtype::Bf16,
                shape,
            })
        });
        write_checkpoint(folder, &Layout::adapter(specs.collect()), |spec| {
            let found = factor_of(&spec.name).and_then(|(module, side)| {
                factors.get(module).map(|factors| if side == 0 { &factors.a } else { &factors.b })
            });
            Ok(found.into_iter().flatten().flat_map(|value| value.to_le_bytes()).collect())
        })?;
        let config = serde_json::json!({ "peft_type": "LORA", "r": rank, "lora_alpha": alpha });
        let path = folder.join(CONFIG);
        std::fs::write(&path, format!("{config:#}\n"))
            .map_err(|error| CheckpointError::io(&path, "write it", error))
    }
}

/// The name of a module's factor in an adapter's file.
#[must_use]
pub fn factor_name(module: &str, factor: Factor) -> String {
    format!("{PREFIX}{module}{}", suffix(factor))
}

/// What PEFT puts behind a module's name.
fn suffix(factor: Factor) -> String {
    format!(".{}.weight", factor.name())
}

/// The module of a factor, and 0 for A or 1 for B.
fn factor_of(name: &str) -> Option<(&str, usize)> {
    let inner = name.strip_prefix(PREFIX)?;
    let of = |(side, factor)| Some((inner.strip_suffix(&suffix(factor))?, side));
    FACTORS.into_iter().enumerate().find_map(of)
}

fn read_factors(a: &TensorRef, b: &TensorRef, rank: u64) -> Result<Factors, CheckpointError> {
    let shape = |tensor: &TensorRef, axis: usize| match tensor.shape.as_slice() {
        found @ [_, _] if found[axis] == rank => Ok(found[1 - axis]),
        found => Err(tensor.fault(Fault::FactorShape { shape: found.to_vec(), rank })),
    };
    let (inputs, outputs) = (shape(a, 0)?, shape(b, 1)?);
    Ok(Factors { inputs, outputs, a: elements(a)?, b: elements(b)? })
}

fn elements(tensor: &TensorRef) -> Result<Vec<bf16>, CheckpointError> {
    match tensor.dtype {
        Dtype::Bf16 => {
            let bytes = tensor.read()?;
            Ok(bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes)).collect())
        }
        Dtype::F32 => {
            let bytes = tensor.read()?;
            let values = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            Ok(values.map(bf16::from_f32).collect())
        }
        dtype => Err(tensor.fault(Fault::DtypeUnfit { dtype, what: "hold an adapter's factor" })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "model.layers.0.self_attn.q_proj";

    /// Rank 2, three inputs, one output.
    fn factors() -> BTreeMap<String, Factors> {
        let (a, b) = ([1.0, 2.0, 3.0, -1.0, 0.5, 0.25], [4.0, -8.0]);
        let factors = Factors::rounded((1, 3), &a, &b);
        BTreeMap::from([(MODULE.to_owned(), factors)])
    }

    fn scratch() -> (tempfile::TempDir, camino::Utf8PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(scratch.path()).unwrap().join("adapter");
        (scratch, folder)
    }

    /// An adapter of these tensors, of zeros.
    fn of(tensors: &[(&str, Dtype, &[u64])]) -> Result<Lora, CheckpointError> {
        let (_scratch, folder) = scratch();
        let specs = tensors.iter().map(|(name, dtype, shape)| TensorSpec {
            name: (*name).to_owned(),
            dtype: *dtype,
            shape: shape.to_vec(),
        });
        write_checkpoint(&folder, &Layout::adapter(specs.collect()), |spec| {
            let bytes = spec.shape.iter().product::<u64>() * spec.dtype.bytes();
            Ok(vec![0; bytes as usize])
        })
        .unwrap();
        std::fs::write(folder.join(CONFIG), r#"{"r":2,"lora_alpha":3}"#).unwrap();
        Lora::read(&folder)
    }

    #[test]
    fn what_was_written_is_read() {
        let (_scratch, folder) = scratch();
        Lora::write(&folder, (2, 5.0), &factors()).unwrap();
        let read = Lora::read(&folder).unwrap();
        assert_eq!(read.factors, factors());
        assert_eq!((read.scale, read.adapter.rank), (2.5, 2));
        assert_eq!(read.adapter.content, Adapter::read(&folder).unwrap().content);
    }

    #[test]
    fn f32_is_rounded_to_the_nearest_bf16() {
        let (_scratch, folder) = scratch();
        let specs = FACTORS.map(|factor| TensorSpec {
            name: factor_name(MODULE, factor),
            dtype: Dtype::F32,
            shape: vec![1, 1],
        });
        write_checkpoint(&folder, &Layout::adapter(specs.to_vec()), |_| {
            Ok(1.007_f32.to_le_bytes().to_vec())
        })
        .unwrap();
        std::fs::write(folder.join(CONFIG), r#"{"r":1,"lora_alpha":1}"#).unwrap();
        let read = Lora::read(&folder).unwrap();
        assert_eq!(read.factors[MODULE].a, [bf16::from_bits(0x3f81)]);
    }

    #[test]
    fn a_tensor_that_is_no_factor_is_refused_by_name() {
        let (a, b) = (format!("{PREFIX}m.lora_A.weight"), format!("{PREFIX}m.lora_B.weight"));
        let (a, b): (&str, &str) = (&a, &b);
        let embedding = format!("{PREFIX}m.lora_embedding_A");
        let bf16 = Dtype::Bf16;
        for (tensors, named, code) in [
            (vec![(embedding.as_str(), bf16, [2, 3])], embedding.as_str(), "no-factor"),
            (vec![("m.lora_A.weight", bf16, [2, 3])], "m.lora_A.weight", "no-factor"),
            (vec![(a, bf16, [2, 3])], a, "factor-alone"),
            (vec![(b, bf16, [3, 2])], b, "factor-alone"),
            (vec![(a, bf16, [4, 3]), (b, bf16, [3, 2])], a, "factor-shape"),
            (vec![(a, bf16, [2, 3]), (b, bf16, [3, 4])], b, "factor-shape"),
            (vec![(a, bf16, [2, 3]), (b, Dtype::F16, [3, 2])], b, "dtype-unfit"),
        ] {
            let tensors: Vec<_> =
                tensors.iter().map(|(name, dtype, shape)| (*name, *dtype, &shape[..])).collect();
            let error = of(&tensors).unwrap_err();
            assert_eq!((error.object(), error.code()), (named, code));
        }
        assert!(of(&[(a, bf16, &[2, 3]), (b, bf16, &[5, 2])]).is_ok());
    }
}
