"""The walk and the digest over torch tensors."""

from __future__ import annotations

import sys

import torch

from coldproof import _native
from coldproof.errors import DigestError

_SPELLINGS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


def walk(root: object, *, name: str = "", max_objects: int | None = None) -> _native.Walk:
    """Find every torch tensor that can be reached from ``root``: see ``_native.walk``."""
    return _native.walk(root, tensor_type=torch.Tensor, name=name, max_objects=max_objects)


def digest(tensor: torch.Tensor, *, name: str | None = None) -> str:
    """Return the digest of a tensor's elements, as 32 hexadecimal digits.

    With a name, it is what ``coldproof digest`` says of a tensor of that name in a checkpoint;
    without one, that of the bare bytes. The elements are taken row-major. Nothing is copied where
    they lie so in this process's memory; else the tensor is copied once.
    """
    if sys.byteorder != "little":
        raise DigestError("elements are digested little-endian; this machine is not")
    if tensor.is_meta:
        raise DigestError("a meta tensor has no elements; load it first")
    if tensor.layout is not torch.strided:
        raise DigestError(f"a tensor of layout {tensor.layout} has no rows; digest its parts")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    nbytes = plain.numel() * plain.element_size()
    if name is None:
        return _native.content_digest(plain.data_ptr(), nbytes)
    shape = list(plain.shape)
    return _native.source_digest(name, spelling(plain.dtype), shape, plain.data_ptr(), nbytes)


def spelling(dtype: torch.dtype) -> str:
    """Spell an element type as safetensors does; one that it lacks keeps torch's name."""
    name = str(dtype).removeprefix("torch.")
    return _SPELLINGS.get(name, name)
