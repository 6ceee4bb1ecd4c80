//! The eight fields of a tensor's fingerprint, read from the tensor.

use coldproof_contract::words::{Address, Dtype, Fingerprint, StorageId};
use pyo3::prelude::*;

use crate::digest::dtype_of;
use crate::errors::Raise;

/// The eight fields that make a storage the same storage.
#[pyclass(frozen, name = "Fingerprint", module = "coldproof")]
#[derive(Clone, Debug)]
pub(crate) struct TensorFingerprint(pub(crate) Fingerprint);

#[pymethods]
impl TensorFingerprint {
    /// The serial of the allocation; never reused within its registry.
    #[getter]
    const fn storage(&self) -> u64 {
        self.0.storage.0
    }

    /// The address of the first element.
    #[getter]
    const fn address(&self) -> u64 {
        self.0.address.0
    }

    /// Bytes of the whole storage.
    #[getter]
    const fn storage_bytes(&self) -> u64 {
        self.0.storage_bytes
    }

    /// Elements along each axis.
    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.0.shape.clone()
    }

    /// Elements between neighbours along each axis.
    #[getter]
    fn stride(&self) -> Vec<u64> {
        self.0.stride.clone()
    }

    /// Elements between the storage's start and the first element.
    #[getter]
    const fn offset(&self) -> u64 {
        self.0.offset
    }

    /// The element type, spelled as in safetensors.
    #[getter]
    const fn dtype(&self) -> &'static str {
        self.0.dtype.name()
    }

    /// Where the storage lies.
    #[getter]
    fn device(&self) -> &str {
        &self.0.device
    }

    fn __repr__(&self) -> String {
        let Fingerprint { storage, address, storage_bytes, shape, stride, offset, dtype, device } =
            &self.0;
        format!(
            "Fingerprint(storage={storage}, address={address}, storage_bytes={storage_bytes}, \
             shape={shape:?}, stride={stride:?}, offset={offset}, dtype={dtype}, device={device})"
        )
    }
}

/// Reads a tensor's fingerprint; `storage` is the serial of its storage, `bytes` its size.
pub(crate) fn read(
    tensor: &Bound<'_, PyAny>,
    storage: StorageId,
    storage_bytes: u64,
) -> PyResult<Fingerprint> {
    Ok(Fingerprint {
        storage,
        address: Address(tensor.call_method0("data_ptr")?.extract()?),
        storage_bytes,
        shape: tensor.getattr("shape")?.extract()?,
        stride: tensor.call_method0("stride")?.extract()?,
        offset: tensor.call_method0("storage_offset")?.extract()?,
        dtype: dtype(&tensor.getattr("dtype")?)?,
        device: tensor.getattr("device")?.str()?.extract()?,
    })
}

/// `torch.bfloat16` is `BF16`.
fn dtype(dtype: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    let text: String = dtype.str()?.extract()?;
    let name = match text.trim_start_matches("torch.") {
        "bool" => "BOOL",
        "uint8" => "U8",
        "int8" => "I8",
        "uint16" => "U16",
        "int16" => "I16",
        "uint32" => "U32",
        "int32" => "I32",
        "uint64" => "U64",
        "int64" => "I64",
        "float8_e4m3fn" => "F8_E4M3",
        "float8_e5m2" => "F8_E5M2",
        "float8_e8m0fnu" => "F8_E8M0",
        "float16" => "F16",
        "bfloat16" => "BF16",
        "float32" => "F32",
        "float64" => "F64",
        other => other,
    };
    dtype_of(name).ok_or_else(|| {
        let hint = "register a view of it with an integer type of the same size";
        Raise::Registry.with(dtype.py(), format!("element type `{text}` is not covered; {hint}"))
    })
}
